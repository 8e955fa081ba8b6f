//! The bytes of a cache segment: the layout of each structure on disk, and the checks that make a structure safe to believe.
//!
//! Owns encoding and decoding of the segment header, record headers, footers, sums and trailers; `docs/format.md` shows the same
//! layouts for people and other tools. Does not own files, the order of writes, or what recovery does with decoded structures.
//! Invariant: a decoder answers an error for any bytes that the encoder did not produce for this very segment and position; a
//! decoder never panics, and allocates no more than a small multiple of the bytes given.
//!
//! Every structure opens with the same fields, little-endian, at the same offsets in every version:
//!
//! ```text
//! byte 0..8    magic, tells the structures apart
//!      8..10   format version
//!      10..16  differs
//!      16..32  cache id, random, made with the cache directory
//!      32..40  segment id, never used twice in a cache
//!      40..    differs
//! ```
//!
//! The cache id is in every structure because segments also hold the data of clients, and a scan of a reused segment meets old
//! bytes. A client can guess a segment id and write a frame that looks like a record. A client cannot guess the 122 random bits
//! of a cache id that no client ever sees. So no data of a client is ever taken for a record, not even after a crash.

mod checkpoint;
mod entry;
mod footer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod record;
mod segment;
mod sparse;
mod sums;

pub use checkpoint::{
    CHECKPOINT_HEADER_BYTES, CHECKPOINT_PAGE_BYTES, CoveredSegment, ExtentReader, ExtentRows, Head, Kept,
    KeptExtent, PageChain, PageKind, Place, Row, decode_end, decode_rows, encode_end, encode_rows,
};
pub use entry::{Entry, EntryKind};
pub use footer::{FooterBuilder, FooterMark, FooterRecord, decode_footer, is_footer};
pub(in crate::cache) use record::VERSION_REPEATING;
pub use record::{
    RECORD_ENTRIES_MAX, Record, RecordBuilder, decode_record, is_damaged_record, newer_version,
};
pub use segment::{CLEANER, SegmentHeader, THROUGH, Trailer, is_torn_end};
pub use sums::{PAGE_SUMS, check_sums, encode_sums, sum_in, sums_key, sums_pages};

use crate::checksum;
use crate::units::FRAME_BYTES;

/// Version of every structure in a segment, except record headers that repeat the header before. Another version is refused,
/// never guessed at.
pub const FORMAT_VERSION: u16 = 1;

/// The bytes of one frame.
pub type Frame = [u8; FRAME_BYTES];

const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const CACHE_ID_AT: usize = 16;
const SEGMENT_ID_AT: usize = 32;
/// Where the fields begin that differ from structure to structure.
const BODY_AT: usize = 40;
/// Place of a CRC-32C of all bytes before, in the structures that are one frame long.
const CRC_AT: usize = FRAME_BYTES - 4;

/// The cache and the use of a segment that a structure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentKey {
    /// Random identity of the cache directory. Must not be shown to clients of a device.
    pub cache_id: [u8; 16],
    /// Identity of this use of the segment, never repeated in the cache.
    pub segment_id: u64,
}

/// Why bytes are not the structure that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too few or too many bytes.
    #[error("{found} bytes where the structure takes {needed}")]
    Length {
        /// Number of bytes given.
        found: usize,
        /// Number of bytes the structure takes.
        needed: usize,
    },
    /// Some other structure, client data, or nothing at all.
    #[error("the magic number of this structure is missing")]
    Magic,
    /// Damaged, or torn while it was written.
    #[error("checksum mismatch")]
    Checksum,
    /// Intact, but of a layout that this glidefs does not know.
    #[error(
        "format version {found}, this glidefs reads version {FORMAT_VERSION}: run the glidefs that wrote the segment"
    )]
    Version {
        /// Version in the structure.
        found: u16,
    },
    /// Intact, but left by an earlier use of the segment or by another cache.
    #[error("the structure belongs to segment {found} or to another cache, not to the segment that was read")]
    OtherSegment {
        /// Segment id in the structure.
        found: u64,
    },
    /// Intact, but written for another place in the segment.
    #[error("the structure was written for frame {found}, but was read from frame {expected}")]
    Position {
        /// Frame that the structure was written for.
        found: u32,
        /// Frame that the structure was read from.
        expected: u32,
    },
    /// Intact, but with contents that no glidefs writes.
    #[error("impossible contents: {0}")]
    Malformed(&'static str),
}

/// CRC-32C of `frame`, as kept for every data frame.
pub fn frame_crc(frame: &[u8]) -> u32 {
    checksum::crc32c(frame)
}

/// The field at `at`, which all callers know to be inside `bytes`.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Writes the fields that all structures share. `bytes` holds at least [`BODY_AT`] bytes.
fn put_preamble(bytes: &mut [u8], magic: [u8; 8], key: &SegmentKey) {
    put(bytes, MAGIC_AT, &magic);
    put(bytes, VERSION_AT, &FORMAT_VERSION.to_le_bytes());
    put(bytes, CACHE_ID_AT, &key.cache_id);
    put(bytes, SEGMENT_ID_AT, &key.segment_id.to_le_bytes());
}

fn put_crc(frame: &mut Frame) {
    let crc = frame_crc(&frame[..CRC_AT]);
    put(frame, CRC_AT, &crc.to_le_bytes());
}

/// The segment that the fields shared by all structures name.
fn owner(frame: &Frame) -> SegmentKey {
    SegmentKey {
        cache_id: field(frame, CACHE_ID_AT),
        segment_id: u64::from_le_bytes(field(frame, SEGMENT_ID_AT)),
    }
}

/// The frame at the start of `bytes`, with the right magic and a version up to `newest`; nothing else of the frame is checked yet.
///
/// The version is compared after the `checksum`, so that a damaged version number is reported as damage.
fn check_preamble(
    bytes: &[u8],
    magic: [u8; 8],
    newest: u16,
    checksum: impl FnOnce(&Frame) -> bool,
) -> Result<(&Frame, SegmentKey), FormatError> {
    let Some(frame) = bytes.first_chunk::<FRAME_BYTES>() else {
        return Err(FormatError::Length { found: bytes.len(), needed: FRAME_BYTES });
    };
    if field(frame, MAGIC_AT) != magic {
        return Err(FormatError::Magic);
    }
    if !checksum(frame) {
        return Err(FormatError::Checksum);
    }
    let found = u16::from_le_bytes(field(frame, VERSION_AT));
    if !(FORMAT_VERSION..=newest).contains(&found) {
        return Err(FormatError::Version { found });
    }
    Ok((frame, owner(frame)))
}

/// As [`check_preamble`], for a structure of exactly one frame with its CRC at [`CRC_AT`].
fn check_frame(bytes: &[u8], magic: [u8; 8], newest: u16) -> Result<(&Frame, SegmentKey), FormatError> {
    if bytes.len() != FRAME_BYTES {
        return Err(FormatError::Length { found: bytes.len(), needed: FRAME_BYTES });
    }
    check_preamble(bytes, magic, newest, |frame| {
        u32::from_le_bytes(field(frame, CRC_AT)) == frame_crc(&frame[..CRC_AT])
    })
}

fn check_key(found: &SegmentKey, expected: &SegmentKey) -> Result<(), FormatError> {
    if found == expected { Ok(()) } else { Err(FormatError::OtherSegment { found: found.segment_id }) }
}

/// Refuses set bits in `bytes`: bytes without a meaning are zero, so that a later version can give such bytes a meaning.
fn check_unused(bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(FormatError::Malformed("unused bytes are set"))
    }
}

#[cfg(test)]
mod tests;
