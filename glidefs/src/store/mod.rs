//! The object store: keys, what objects look like inside, and access to them.
//!
//! Owns the layout of a store, the formats of its objects (`docs/format.md` shows them byte by byte), requests with
//! retries and counters, and the checks on everything that is read. Does not own when data is flushed, what is compacted
//! or collected, or any cache. Invariant: objects are immutable; they are created when absent, read, and deleted, never
//! replaced. No other folder names the `object_store` crate.

pub mod format;
pub mod ids;
pub mod key;

pub use self::ids::{Entropy, PackId, StoreName, SystemEntropy, VolumeId, WriterId};
pub use self::key::{Folder, Key};
