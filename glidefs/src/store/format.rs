//! The bytes of the objects in a store, and the checks that make it safe to believe them.
//!
//! Owns encoding and decoding; `docs/format.md` shows the same layouts for people and other tools. Does not own where
//! objects are or when they are made. Invariant: a decoder answers an error for any bytes that no encoder produced; it
//! never panics, and allocates no more than the limits stated here, whatever the bytes say.
//!
//! Every structure opens with a magic number and a version and closes with the BLAKE3 of all that precedes:
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

mod builder;
mod cursor;
mod index;
mod manifest;
mod marker;
mod pack;
mod records;
mod sections;
mod zstd;

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

pub use self::builder::{EncodedPack, PackBuilder, PackOptions, PushError};
pub use self::index::{Codec, IndexEntry, PackIndex, Piece, PieceKind};
pub use self::manifest::{Manifest, Origin, PACKS_MAX, PackRef};
pub use self::marker::Marker;
pub use self::pack::{PackHeader, PackTrailer, TRAILER_BYTES, decode_block, verify_pack};
pub use self::records::{CANDIDATES_MAX, Candidate, Candidates, NameRecord, Snapshot, Tombstone};
pub use self::sections::{DAMAGED_RANGES_MAX, Deletion, Holder, Sections};

/// Version of every structure in a store, except of a manifest that has sections. Another version is refused, never guessed
/// at.
pub const FORMAT_VERSION: u16 = 1;
/// Most data in a block of a pack, bytes. A block is compressed, checked and fetched as a whole.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Most sectors in a block; blocks do not cross multiples of it.
pub const BLOCK_SECTORS_MAX: u64 = BLOCK_BYTES_MAX as u64 / crate::units::SECTOR_BYTES;
/// How long packs should be, bytes: one that holds more than this is complete.
pub const PACK_BYTES_TARGET: u64 = 32 << 20;
/// Longest pack, bytes. One PUT carries a pack, and stores take 5 GiB in one.
pub const PACK_BYTES_MAX: u64 = 4 << 30;
/// Most entries in a pack's index.
pub const ENTRIES_MAX: usize = 1 << 20;

/// Length of a BLAKE3.
pub const HASH_BYTES: usize = blake3::OUT_LEN;

/// Why bytes are not the structure they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too few or too many bytes.
    #[error("{found} bytes where {needed} are needed")]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// Something else, or nothing at all.
    #[error("the magic number of this structure is missing")]
    Magic,
    /// The bytes changed since they were written.
    #[error("checksum mismatch")]
    Checksum,
    /// Intact, but laid out as this glidefs does not know.
    #[error(
        "format version {found}, this glidefs reads version {FORMAT_VERSION}: run the glidefs that wrote it, or a newer one"
    )]
    Version {
        /// Version found.
        found: u16,
    },
    /// Intact, with a section that this glidefs does not know.
    #[error(
        "a section of kind {tag}, which this glidefs does not know: run the glidefs that wrote it, or a newer one"
    )]
    Section {
        /// Its kind.
        tag: u16,
    },
    /// Intact, but it belongs elsewhere.
    #[error("it belongs to another {0}")]
    Elsewhere(&'static str),
    /// Intact, but it says what no glidefs writes.
    #[error("impossible contents: {0}")]
    Malformed(&'static str),
}

impl FormatError {
    /// Whether the bytes may be intact, and a newer glidefs could read them.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Section { .. })
            || matches!(self, Self::Version { found } if *found > FORMAT_VERSION)
    }

    /// Whether the bytes may be intact, and another glidefs could read them.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Section { .. })
    }
}

/// CRC-32C, as kept for every block.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A structure begun: magic, version, and two bytes that mean nothing yet.
fn begin(magic: [u8; 8]) -> Vec<u8> {
    begin_version(magic, FORMAT_VERSION)
}

fn begin_version(magic: [u8; 8], version: u16) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes
}

/// Bytes that [`begin`] writes.
const BEGIN_BYTES: usize = 12;

/// Closes a structure.
fn seal(bytes: &mut Vec<u8>) {
    let hash = blake3::hash(bytes);
    bytes.extend_from_slice(hash.as_bytes());
}

/// What stands between the beginning and the end of an intact structure of this `magic` and [`FORMAT_VERSION`].
fn open(bytes: &[u8], magic: [u8; 8]) -> Result<cursor::Cursor<'_>, FormatError> {
    open_version(bytes, magic, FORMAT_VERSION).map(|(_, cursor)| cursor)
}

/// As [`open`], of a structure that has versions up to `newest`, and its version.
///
/// The version comes after the checksum, so that a damaged version number is reported as damage.
fn open_version(bytes: &[u8], magic: [u8; 8], newest: u16) -> Result<(u16, cursor::Cursor<'_>), FormatError> {
    let needed = BEGIN_BYTES + HASH_BYTES;
    let (Some(body_bytes), Some(found)) = (bytes.len().checked_sub(HASH_BYTES), bytes.first_chunk()) else {
        return Err(FormatError::Length { found: bytes.len() as u64, needed: needed as u64 });
    };
    if *found != magic {
        return Err(FormatError::Magic);
    }
    let (body, hash) = bytes.split_at(body_bytes);
    if blake3::hash(body) != *hash {
        return Err(FormatError::Checksum);
    }
    let mut cursor = cursor::Cursor::new(body);
    cursor.array::<8>()?;
    let version = cursor.u16()?;
    if !(FORMAT_VERSION..=newest).contains(&version) {
        return Err(FormatError::Version { found: version });
    }
    cursor.zeroes(2)?;
    Ok((version, cursor))
}

#[cfg(test)]
mod tests;
