//! The beginning and the end that all structures of a store share: magic number, version, BLAKE3.
//!
//! Owns the order of the checks. Does not own the fields between beginning and end. Invariant: a structure that opens is intact.

use super::cursor::Cursor;
use super::error::FormatError;
use super::limits::{FORMAT_VERSION, HASH_BYTES};

/// The beginning of a structure: magic number, version, and two bytes without a meaning yet.
pub(super) fn begin(magic: [u8; 8]) -> Vec<u8> {
    begin_version(magic, FORMAT_VERSION)
}

pub(super) fn begin_version(magic: [u8; 8], version: u16) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes
}

/// Length of the beginning, bytes.
const BEGIN_BYTES: usize = 12;

/// Appends the BLAKE3 of all bytes so far.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let hash = blake3::hash(bytes);
    bytes.extend_from_slice(hash.as_bytes());
}

/// The fields between beginning and end of an intact structure of this `magic` and [`FORMAT_VERSION`].
pub(super) fn open(bytes: &[u8], magic: [u8; 8]) -> Result<Cursor<'_>, FormatError> {
    open_version(bytes, magic, FORMAT_VERSION).map(|(_, cursor)| cursor)
}

/// As [`open`], for a structure with versions up to `newest`; returns the version as well.
///
/// The version is checked after the checksum, so that a damaged version number is reported as damage.
pub(super) fn open_version(
    bytes: &[u8],
    magic: [u8; 8],
    newest: u16,
) -> Result<(u16, Cursor<'_>), FormatError> {
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
    let mut cursor = Cursor::new(body);
    cursor.array::<8>()?;
    let version = cursor.u16()?;
    if !(FORMAT_VERSION..=newest).contains(&version) {
        return Err(FormatError::Version { found: version });
    }
    cursor.zeroes(2)?;
    Ok((version, cursor))
}
