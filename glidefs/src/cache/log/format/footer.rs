//! The footer of a sealed segment: everything that the segment's record headers say, in one place, so that recovery reads no
//! data.
//!
//! Does not own the footer's place: the trailer names the place and holds the footer's CRC, so a footer cannot be decoded without
//! the trailer. Invariant: the records of a decoded footer ascend, do not overlap, and end before the footer begins.

use super::entry::{ENTRY_BYTES, Entry, FRAME_CRC_BYTES, decode_entries};
use super::{
    BODY_AT, FORMAT_VERSION, FormatError, SegmentKey, Trailer, check_key, check_preamble, check_unused,
    field, frame_crc, put, put_preamble,
};
use crate::units::FRAME_BYTES;

pub(super) const MAGIC: [u8; 8] = *b"GLIDEFTR";

// Footer, a whole number of frames. What is behind the last record is zero.
//
//    0     8    10   12             16         32           40         ...
//   ┌─────┬─────┬────┬──────────────┬──────────┬────────────┬──────────┬──────────┬────┐
//   │magic│vers.│ .. │ record count │ cache id │ segment id │ record 0 │ record 1 │ .. │
//   └─────┴─────┴────┴──────────────┴──────────┴────────────┴──────────┴──────────┴────┘
//
// Record. Entries are as in a record header; CRC i is that of data frame i.
//
//    0          4             8         12                   12 + 28 entries
//   ┌──────────┬─────────────┬─────────┬────────────────────┬──────────────────────┐
//   │ position │ data frames │ entries │ entries × 28 bytes │ data frames × 4 bytes│
//   └──────────┴─────────────┴─────────┴────────────────────┴──────────────────────┘
const RESERVED_AT: usize = 10;
const RECORD_COUNT_AT: usize = 12;
const RECORD_BYTES: usize = 12;

/// Most memory that a footer gets in advance.
const ROOM_BYTES_MAX: usize = 1 << 20;

/// Gathers the contents of a segment's record headers while records are appended.
#[derive(Clone, Debug)]
pub struct FooterBuilder {
    /// The footer so far, with room for the fields that `encode` fills in.
    bytes: Vec<u8>,
    /// Memory to reserve with the first record.
    room_bytes: usize,
    records: u32,
    /// Where the last record begins.
    last: usize,
}

impl Default for FooterBuilder {
    /// A builder of a footer without records.
    fn default() -> Self {
        Self { bytes: vec![0; BODY_AT], room_bytes: 0, records: 0, last: BODY_AT }
    }
}

/// The state of a [`FooterBuilder`] at some moment.
#[derive(Clone, Copy, Debug)]
pub struct FooterMark {
    bytes: usize,
    records: u32,
    last: usize,
}

impl FooterBuilder {
    /// A footer without records. The first record takes the memory for all records of a segment of `segment_frames` frames filled
    /// with writes: so a segment that waits for a writer takes next to none, and further records allocate nothing. Many zero ranges, or a
    /// very long segment, may need more memory.
    pub fn with_room(segment_frames: u32) -> Self {
        // Of all writes of data, a write of one frame in a record with many others takes most of the footer for each frame.
        let room_bytes =
            (segment_frames as usize).saturating_mul(ENTRY_BYTES + FRAME_CRC_BYTES).min(ROOM_BYTES_MAX);
        Self { room_bytes, ..Self::default() }
    }

    /// Adds the record appended at frame `position_frames`, which is behind every record added before.
    ///
    /// An entry that no record header can hold makes a footer that does not decode; recovery then scans the segment.
    pub fn add_record(&mut self, position_frames: u32, entries: &[Entry], crcs: &[u32]) {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        self.bytes.reserve_exact(std::mem::take(&mut self.room_bytes));
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&position_frames.to_le_bytes());
        self.bytes.extend_from_slice(&count(crcs.len()));
        self.bytes.extend_from_slice(&count(entries.len()));
        for entry in entries {
            self.bytes.extend_from_slice(&entry.encode().unwrap_or_default());
        }
        for crc in crcs {
            self.bytes.extend_from_slice(&crc.to_le_bytes());
        }
        self.records = self.records.saturating_add(1);
    }

    /// The present state, for [`Self::retract`] to come back to.
    pub fn mark(&self) -> FooterMark {
        FooterMark { bytes: self.bytes.len(), records: self.records, last: self.last }
    }

    /// Forgets the records added since `mark` was taken.
    pub fn retract(&mut self, mark: FooterMark) {
        self.bytes.truncate(mark.bytes);
        self.records = mark.records;
        self.last = mark.last;
    }

    /// The footer's bytes for the record that was added last; empty before the first record.
    pub fn last_record(&self) -> &[u8] {
        self.bytes.get(self.last..).unwrap_or_default()
    }

    /// Length of the footer in bytes, in whole frames, without the trailer.
    pub fn encoded_len(&self) -> usize {
        self.bytes.len().next_multiple_of(FRAME_BYTES)
    }

    /// Value of [`Self::encoded_len`] if `records` more records, with `entries` entries and `data_frames` data frames in all,
    /// were added.
    pub fn encoded_len_with(&self, records: usize, entries: usize, data_frames: usize) -> usize {
        let more = records * RECORD_BYTES + entries * ENTRY_BYTES + data_frames * FRAME_CRC_BYTES;
        (self.bytes.len() + more).next_multiple_of(FRAME_BYTES)
    }

    /// The footer of the segment `key`. [`Trailer::of`] makes the trailer for the footer.
    pub fn encode(&self, key: &SegmentKey) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        bytes.extend_from_slice(&self.bytes);
        bytes.resize(self.encoded_len(), 0);
        put_preamble(&mut bytes, MAGIC, key);
        put(&mut bytes, RECORD_COUNT_AT, &self.records.to_le_bytes());
        bytes
    }
}

/// The contents of one record header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterRecord {
    /// Frame of the record header in the segment; the record's data is in the frames behind.
    pub position_frames: u32,
    /// The record's entries, at least one.
    pub entries: Vec<Entry>,
    /// CRC-32C of each data frame.
    pub crcs: Vec<u32>,
}

/// Whether the frame begins as a footer of segment `key` does. The rest of the frame is not looked at.
pub fn is_footer(frame: &[u8], key: &SegmentKey) -> bool {
    check_preamble(frame, MAGIC, FORMAT_VERSION, |_| true).is_ok_and(|(_, found)| found == *key)
}

/// Reads the footer that `trailer` names.
pub fn decode_footer(bytes: &[u8], trailer: &Trailer) -> Result<Vec<FooterRecord>, FormatError> {
    if bytes.len() != trailer.footer_bytes as usize {
        return Err(FormatError::Length { found: bytes.len(), needed: trailer.footer_bytes as usize });
    }
    let (frame, key) =
        check_preamble(bytes, MAGIC, FORMAT_VERSION, |_| frame_crc(bytes) == trailer.footer_crc)?;
    check_key(&key, &trailer.key)?;
    check_unused(&frame[RESERVED_AT..RECORD_COUNT_AT])?;
    let count = u32::from_le_bytes(field(frame, RECORD_COUNT_AT));
    let mut rest = &bytes[BODY_AT..];
    let mut records = Vec::new();
    let mut end = 1;
    for _ in 0..count {
        let record = take_record(&mut rest)?;
        if record.position_frames < end {
            return Err(FormatError::Malformed("records overlap"));
        }
        // Each term is below 2^32.
        let record_end = u64::from(record.position_frames) + 1 + record.crcs.len() as u64;
        match u32::try_from(record_end) {
            Ok(record_end) if record_end <= trailer.footer_frame => end = record_end,
            _ => return Err(FormatError::Malformed("a record reaches into the footer")),
        }
        records.push(record);
    }
    if rest.len() >= FRAME_BYTES {
        return Err(FormatError::Malformed("a footer with frames that hold no record"));
    }
    check_unused(rest)?;
    Ok(records)
}

pub(super) fn take_record(rest: &mut &[u8]) -> Result<FooterRecord, FormatError> {
    const SHORT: FormatError =
        FormatError::Malformed("more records, entries or data frames than the bytes hold");
    let mut field = || {
        let (field, behind) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
        *rest = behind;
        Ok(u32::from_le_bytes(*field))
    };
    let (position_frames, data_frames, entries) = (field()?, field()? as usize, field()? as usize);
    let entries_bytes = entries.checked_mul(ENTRY_BYTES).ok_or(SHORT)?;
    let crcs_bytes = data_frames.checked_mul(FRAME_CRC_BYTES).ok_or(SHORT)?;
    let (entries, behind) = rest.split_at_checked(entries_bytes).ok_or(SHORT)?;
    let (crcs, behind) = behind.split_at_checked(crcs_bytes).ok_or(SHORT)?;
    *rest = behind;
    let (crcs, _) = crcs.as_chunks::<FRAME_CRC_BYTES>();
    Ok(FooterRecord {
        position_frames,
        entries: decode_entries(entries, data_frames)?,
        crcs: crcs.iter().map(|crc| u32::from_le_bytes(*crc)).collect(),
    })
}
