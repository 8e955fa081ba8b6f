//! The log on the local disk: segment files, the bytes in a segment, and what a walk finds in a segment again.
//!
//! Owns the disk, the formats, the table of segments and the segments that are appended to. Knows no store and no cut, and of an
//! export only the id: the floors above say what data means. Invariant: no file here imports anything of the cache outside this
//! folder.

pub(super) mod batch;
pub mod directory;
pub mod disk;
pub mod error;
pub mod format;
pub(super) mod heat;
pub(super) mod info;
pub(super) mod life;
pub mod mapping;
pub(super) mod pressure;
pub(super) mod scan;
pub(super) mod seal;
pub(super) mod segment;
pub(super) mod sums;
pub(super) mod superblock;
pub(super) mod table;
pub(super) mod walk;
