//! The first and the last frame of a segment: to which cache and use the segment belongs, and where the footer of a sealed
//! segment lies.
//!
//! Does not own the frames in between. Invariant: a trailer names a footer that lies inside the trailer's own segment.

use super::{
    BODY_AT, CRC_AT, FORMAT_VERSION, FormatError, Frame, SegmentKey, check_frame, check_key, check_unused,
    field, frame_crc, put, put_crc, put_preamble, sums_pages,
};
use crate::units::FRAME_BYTES;

/// Shard number in the header of segments that cleaning fills.
pub const CLEANER: u32 = u32::MAX;
/// Added to a shard's number where its writes with an expected FLUSH are appended: the shard fills two segments at a time, and only in
/// segments filled one after the other do the numbers of an export ascend.
pub const THROUGH: u32 = 1 << 31;

/// Smallest segment: header, one record of one data frame, footer, trailer.
pub const SEGMENT_BYTES_MIN: u64 = 5 * FRAME_BYTES as u64;

pub(super) const HEADER_MAGIC: [u8; 8] = *b"GLIDESEG";
pub(super) const TRAILER_MAGIC: [u8; 8] = *b"GLIDETRL";

// Segment header, frame 0 of a segment. Integers are little-endian; `..` are zero.
//
//    0     8    10   12      16         32           40              48      4092
//   ┌─────┬─────┬────┬───────┬──────────┬────────────┬───────────────┬───────┬────────┐
//   │magic│vers.│ .. │ shard │ cache id │ segment id │ segment bytes │  ..   │ CRC    │
//   └─────┴─────┴────┴───────┴──────────┴────────────┴───────────────┴───────┴────────┘
const SHARD_AT: usize = 12;
const SEGMENT_BYTES_AT: usize = BODY_AT;
const HEADER_END: usize = SEGMENT_BYTES_AT + 8;

// Trailer, last frame of a sealed segment.
//
//    0     8    10      12             16         32           40             44           48      4092
//   ┌─────┬─────┬───────┬──────────────┬──────────┬────────────┬──────────────┬────────────┬───────┬─────┐
//   │magic│vers.│ vital │ footer frame │ cache id │ segment id │ footer bytes │ footer CRC │  ..   │ CRC │
//   └─────┴─────┴───────┴──────────────┴──────────┴────────────┴──────────────┴────────────┴───────┴─────┘
const VITAL_AT: usize = RESERVED_AT;
const FOOTER_FRAME_AT: usize = 12;
const FOOTER_BYTES_AT: usize = BODY_AT;
const FOOTER_CRC_AT: usize = FOOTER_BYTES_AT + 4;
const TRAILER_END: usize = FOOTER_CRC_AT + 4;

const RESERVED_AT: usize = 10;

/// Frame 0 of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The cache that the segment belongs to.
    pub cache_id: [u8; 16],
    /// Identity of this use of the segment.
    pub segment_id: u64,
    /// The shard that appends to the segment. Tells who wrote; everybody may read.
    pub shard: u32,
    /// Length of the segment in bytes, a multiple of the frame.
    pub segment_bytes: u64,
}

impl SegmentHeader {
    /// The key with which all other structures of the segment are encoded and decoded.
    pub fn key(&self) -> SegmentKey {
        SegmentKey { cache_id: self.cache_id, segment_id: self.segment_id }
    }

    /// The header as the bytes of one frame.
    pub fn encode(&self) -> Frame {
        let mut frame = [0; FRAME_BYTES];
        put_preamble(&mut frame, HEADER_MAGIC, &self.key());
        put(&mut frame, SHARD_AT, &self.shard.to_le_bytes());
        put(&mut frame, SEGMENT_BYTES_AT, &self.segment_bytes.to_le_bytes());
        put_crc(&mut frame);
        frame
    }

    /// Reads a header. The caller compares the cache id and the segment's length with the caller's own cache.
    pub fn decode(frame: &[u8]) -> Result<Self, FormatError> {
        let (frame, key) = check_frame(frame, HEADER_MAGIC, FORMAT_VERSION)?;
        check_unused(&frame[RESERVED_AT..SHARD_AT])?;
        check_unused(&frame[HEADER_END..CRC_AT])?;
        let segment_bytes = u64::from_le_bytes(field(frame, SEGMENT_BYTES_AT));
        if segment_bytes < SEGMENT_BYTES_MIN || !segment_bytes.is_multiple_of(FRAME_BYTES as u64) {
            return Err(FormatError::Malformed("a segment length that is too short or not in whole frames"));
        }
        let shard = u32::from_le_bytes(field(frame, SHARD_AT));
        Ok(Self { cache_id: key.cache_id, segment_id: key.segment_id, shard, segment_bytes })
    }
}

/// Last frame of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The segment that the trailer closes.
    pub key: SegmentKey,
    /// First frame of the footer.
    pub footer_frame: u32,
    /// Length of the footer in bytes, a multiple of the frame.
    pub footer_bytes: u32,
    /// CRC-32C of all bytes of the footer.
    pub footer_crc: u32,
    /// The trailer has to be stable: a walk without this trailer would find other records than the footer has, because some of
    /// the segment is lost, or failed, or was dropped.
    pub vital: bool,
}

impl Trailer {
    /// A trailer for the encoded `footer` at frame `footer_frame`, or `None` when the footer is 4 GiB or longer.
    pub fn of(key: SegmentKey, footer_frame: u32, footer: &[u8]) -> Option<Self> {
        let footer_bytes = u32::try_from(footer.len()).ok()?;
        Some(Self { key, footer_frame, footer_bytes, footer_crc: frame_crc(footer), vital: false })
    }

    /// The trailer as the bytes of one frame.
    pub fn encode(&self) -> Frame {
        let mut frame = [0; FRAME_BYTES];
        put_preamble(&mut frame, TRAILER_MAGIC, &self.key);
        put(&mut frame, VITAL_AT, &u16::from(self.vital).to_le_bytes());
        put(&mut frame, FOOTER_FRAME_AT, &self.footer_frame.to_le_bytes());
        put(&mut frame, FOOTER_BYTES_AT, &self.footer_bytes.to_le_bytes());
        put(&mut frame, FOOTER_CRC_AT, &self.footer_crc.to_le_bytes());
        put_crc(&mut frame);
        frame
    }

    /// Reads the last frame of the segment `key` of `segment_bytes` bytes. The footer named there lies inside that segment,
    /// behind the header and before the trailer, so `footer_bytes` bytes may be allocated.
    pub fn decode(frame: &[u8], key: &SegmentKey, segment_bytes: u64) -> Result<Self, FormatError> {
        let (frame, found) = check_frame(frame, TRAILER_MAGIC, FORMAT_VERSION)?;
        check_key(&found, key)?;
        let vital = match u16::from_le_bytes(field(frame, VITAL_AT)) {
            0 => false,
            1 => true,
            _ => return Err(FormatError::Malformed("unused bytes are set")),
        };
        check_unused(&frame[TRAILER_END..CRC_AT])?;
        let trailer = Self {
            key: found,
            footer_frame: u32::from_le_bytes(field(frame, FOOTER_FRAME_AT)),
            footer_bytes: u32::from_le_bytes(field(frame, FOOTER_BYTES_AT)),
            footer_crc: u32::from_le_bytes(field(frame, FOOTER_CRC_AT)),
            vital,
        };
        let frames_are_whole =
            trailer.footer_bytes != 0 && (trailer.footer_bytes as usize).is_multiple_of(FRAME_BYTES);
        // Cannot overflow: both terms are below 2^45.
        let footer_end = trailer.footer_offset_bytes() + u64::from(trailer.footer_bytes);
        let fits = segment_bytes.checked_sub(FRAME_BYTES as u64).is_some_and(|end| footer_end <= end);
        if trailer.footer_frame == 0 || !frames_are_whole || !fits {
            return Err(FormatError::Malformed(
                "a footer that is empty, not in whole frames, or outside the segment",
            ));
        }
        Ok(trailer)
    }

    /// First frame of the sums in the segment of `frames` frames: behind the footer. `None` where there is no room for the sums before
    /// the trailer, in segments filled by a glidefs without sums.
    pub fn sums_frame(&self, frames: u32) -> Option<u32> {
        let footer_frames = u32::try_from(self.footer_bytes as usize / FRAME_BYTES).ok()?;
        let first = self.footer_frame.checked_add(footer_frames)?;
        let end = first.checked_add(sums_pages(self.footer_frame))?;
        (end < frames).then_some(first)
    }

    /// Place of the footer, in bytes from the start of the segment.
    pub fn footer_offset_bytes(&self) -> u64 {
        u64::from(self.footer_frame) * FRAME_BYTES as u64
    }
}

/// Whether `frame` may be a torn write of a header's copy or of a vital trailer. `frame` is the last frame of a segment, and
/// neither a whole header nor a whole trailer. Until a vital trailer is whole, a footer in the segment proves nothing.
pub fn is_torn_end(frame: &[u8]) -> bool {
    let is_vital = || frame.get(VITAL_AT..VITAL_AT + 2) == Some(&1_u16.to_le_bytes());
    frame.starts_with(&HEADER_MAGIC) || (frame.starts_with(&TRAILER_MAGIC) && is_vital())
}
