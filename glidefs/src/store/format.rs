//! The bytes of the objects in a store, and the checks that make these bytes safe to use.
//!
//! Owns encoding and decoding; `docs/format.md` shows the same layouts for people and other tools. Does not own where objects are
//! or when objects are made. Invariant: a decoder returns an error for any bytes that no encoder made. A decoder never panics,
//! and allocates no more than the limits in `limits`, whatever the bytes say.
//!
//! Every structure opens with a magic number and a version, and closes with the BLAKE3 of all bytes before:
//!
//! ```text
//! byte 0..8    magic, tells the structures apart
//!      8..10   format version
//!      10..    differs
//!      last 32 BLAKE3 of everything before
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths are below the limits stated here, which fit 32 bits or a pointer of 64"
)]
// An overflow ends the daemon, and here are the numbers that others wrote.
#![warn(clippy::arithmetic_side_effects)]

mod builder;
mod cursor;
mod envelope;
mod error;
mod index;
mod limits;
mod manifest;
mod marker;
mod pack;
mod pack_ref;
mod properties;
mod records;
mod sections;
#[cfg(any(test, fuzzing))]
mod verify;
mod zstd;

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

pub use self::builder::{EncodedPack, PackBuilder, PackOptions, PushError};
pub use self::error::FormatError;
pub use self::index::{Codec, IndexEntry, PackIndex, PieceKind};
#[cfg(any(test, fuzzing))]
pub use self::limits::TRAILER_BYTES;
pub use self::limits::{BLOCK_BYTES_MAX, BLOCK_SECTORS_MAX, ENTRIES_MAX, PACK_BYTES_TARGET, PACKS_MAX};
pub use self::manifest::{Manifest, Origin};
pub use self::marker::Marker;
pub use self::pack::decode_block;
pub use self::pack_ref::PackRef;
pub use self::records::{Candidate, Candidates, NameRecord, Snapshot};
pub use self::sections::{DAMAGED_RANGES_MAX, Deletion, Holder, Sections};
#[cfg(test)]
pub use self::verify::verify_pack;

#[cfg(test)]
mod tests;
