//! A record header: one frame that says which sectors of which exports the frames behind the header hold.
//!
//! Owns the record header frame and the frame's builder. Does not own the entries (`entry`) or the data frames, which are written
//! and read beside the header. Invariant: a header of version 2 repeats the header before wherever there is room, so that one
//! lost header loses nothing.

use super::entry::{ENTRY_BYTES, Entry, EntryKind, FRAME_CRC_BYTES, decode_entries};
use super::footer::{FooterRecord, take_record};
use super::sparse::crc_around;
use super::{
    BODY_AT, CRC_AT, FormatError, Frame, SegmentKey, VERSION_AT, check_frame, check_key, check_unused, field,
    owner, put, put_preamble,
};
use crate::units::FRAME_BYTES;

pub(super) const MAGIC: [u8; 8] = *b"GLIDEREC";

// Record header, one frame. Entries grow upwards and CRCs downwards, so both are written in place as they come.
//
//    0     8    10        12            14     16         32           40         44              48        ...       4092
//   ┌─────┬─────┬─────────┬─────────────┬──────┬──────────┬────────────┬──────────┬───────────────┬─────────┬────┬──────┬─────┐
//   │magic│vers.│ entries │ data frames │ repe.│ cache id │ segment id │ position │ stable frames │ entry 0 │ .. │ CRC 0│ CRC │
//   └─────┴─────┴─────────┴─────────────┴──────┴──────────┴────────────┴──────────┴───────────────┴─────────┴────┴──────┴─────┘
//
// Entry i is at 48 + 28 i. The CRC of data frame i is at 4088 - 4 i. Behind the entries are `repe.` bytes: a footer's description of
// the record before this one. The rest is zero. Version 1 repeats nothing, and counts the data frames in 32 bits.
pub(in crate::cache) const VERSION_REPEATING: u16 = 2;
const ENTRY_COUNT_AT: usize = 10;
const DATA_FRAMES_AT: usize = 12;
const REPEATED_AT: usize = 14;
const POSITION_AT: usize = BODY_AT;
const STABLE_AT: usize = POSITION_AT + 4;
const ENTRIES_AT: usize = STABLE_AT + 4;

/// Most entries that a record can hold: entries without data, which need no CRC.
pub const RECORD_ENTRIES_MAX: usize = (CRC_AT - ENTRIES_AT) / ENTRY_BYTES;

#[repr(C, align(4096))]
struct AlignedFrame(Frame);

/// Builds record headers one after the other in the same aligned frame, without allocating.
pub struct RecordBuilder {
    frame: Box<AlignedFrame>,
    entries: u16,
    data_frames: u16,
    /// Bytes that [`Self::finish`] put behind the entries.
    repeated: u16,
}

crate::units::debug_by_name!(RecordBuilder);

impl Default for RecordBuilder {
    /// A builder of a record without entries.
    fn default() -> Self {
        Self { frame: Box::new(AlignedFrame([0; FRAME_BYTES])), entries: 0, data_frames: 0, repeated: 0 }
    }
}

impl RecordBuilder {
    /// Number of entries that were added.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        usize::from(self.entries)
    }

    /// Number of data frames of the added entries.
    pub fn data_frames(&self) -> u32 {
        u32::from(self.data_frames)
    }

    /// Whether an entry with `frames` data frames, none for an entry without data, can be added.
    pub fn fits_data(&self, frames: usize) -> bool {
        let crc_bytes = frames.saturating_mul(FRAME_CRC_BYTES);
        self.room_bytes().checked_sub(ENTRY_BYTES).is_some_and(|room| crc_bytes <= room)
    }

    /// Adds `entry`, whose data follows the data of the entries added before; `crcs` has one CRC for each data frame. `false`, and
    /// nothing is added, when the record has no room, or when no record can hold the entry: no sectors, more than `u32::MAX`
    /// sectors, sequence number 0, data in another place, or another number of CRCs than of data frames. Before entries of damage or
    /// doubt, the superblock of the cache must say that there may be such entries.
    pub fn push(&mut self, entry: &Entry, crcs: &[u32]) -> bool {
        self.forget_repeated();
        let follows = match entry.kind {
            EntryKind::Data { first_frame } => first_frame == self.data_frames(),
            EntryKind::Zero | EntryKind::Damaged | EntryKind::Doubt | EntryKind::Announced => true,
        };
        if !follows || entry.data_frames() != crcs.len() as u64 || !self.fits_data(crcs.len()) {
            return false;
        }
        let (Some(bytes), Ok(frames)) = (entry.encode(), u16::try_from(crcs.len())) else { return false };
        let (entries_end, crcs_at) = (self.entries_end(), self.crcs_at());
        put(&mut self.frame.0, entries_end, &bytes);
        let table = &mut self.frame.0[crcs_at - crcs.len() * FRAME_CRC_BYTES..crcs_at];
        for (field, crc) in table.rchunks_exact_mut(FRAME_CRC_BYTES).zip(crcs) {
            field.copy_from_slice(&crc.to_le_bytes());
        }
        // Neither can overflow: both fit in the frame.
        self.entries += 1;
        self.data_frames += frames;
        true
    }

    /// Completes the record for frame `position_frames` of the segment `key`. `stable_frames` frames from the segment's start
    /// were known to be synced at this call. `before` is the footer's description of the record before this one
    /// ([`FooterBuilder::last_record`](super::FooterBuilder::last_record)). [`Self::reset`] begins the next record.
    pub fn finish(
        &mut self,
        key: &SegmentKey,
        position_frames: u32,
        stable_frames: u32,
        before: &[u8],
    ) -> &Frame {
        self.forget_repeated();
        let repeated = u16::try_from(before.len()).ok().filter(|_| before.len() <= self.room_bytes());
        self.repeated = repeated.unwrap_or(0);
        let (entries_end, crcs_at) = (self.entries_end(), self.crcs_at());
        let zeroes = entries_end + usize::from(self.repeated)..crcs_at;
        let frame = &mut self.frame.0;
        put_preamble(frame, MAGIC, key);
        put(frame, VERSION_AT, &VERSION_REPEATING.to_le_bytes());
        put(frame, ENTRY_COUNT_AT, &self.entries.to_le_bytes());
        put(frame, DATA_FRAMES_AT, &self.data_frames.to_le_bytes());
        put(frame, REPEATED_AT, &self.repeated.to_le_bytes());
        put(frame, entries_end, &before[..usize::from(self.repeated)]);
        put(frame, POSITION_AT, &position_frames.to_le_bytes());
        put(frame, STABLE_AT, &stable_frames.to_le_bytes());
        let crc = crc_around(frame, zeroes);
        put(frame, CRC_AT, &crc.to_le_bytes());
        frame
    }

    /// The frame, as [`Self::finish`] left it.
    pub fn frame(&self) -> &Frame {
        &self.frame.0
    }

    /// Forgets all entries, for the next record.
    pub fn reset(&mut self) {
        self.forget_repeated();
        let (entries_end, crcs_at) = (self.entries_end(), self.crcs_at());
        self.frame.0[ENTRIES_AT..entries_end].fill(0);
        self.frame.0[crcs_at..CRC_AT].fill(0);
        self.entries = 0;
        self.data_frames = 0;
    }

    fn forget_repeated(&mut self) {
        let entries_end = self.entries_end();
        let end = entries_end + usize::from(std::mem::take(&mut self.repeated));
        self.frame.0[entries_end..end].fill(0);
    }

    fn entries_end(&self) -> usize {
        ENTRIES_AT + usize::from(self.entries) * ENTRY_BYTES
    }

    fn crcs_at(&self) -> usize {
        CRC_AT - usize::from(self.data_frames) * FRAME_CRC_BYTES
    }

    fn room_bytes(&self) -> usize {
        self.crcs_at() - self.entries_end()
    }
}

/// The contents of a record header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's entries, at least one.
    pub entries: Vec<Entry>,
    /// CRC-32C of each data frame that follows the header.
    pub crcs: Vec<u32>,
    /// Frames from the start of the segment that were known to be synced when the record was written.
    pub stable_frames: u32,
    /// Whether the segment announces exports before their entries. Every writer of version 2 headers does so.
    pub announces: bool,
    /// The record before this one, if there was room for the description.
    pub before: Option<FooterRecord>,
}

/// The version of a record header of segment `key`, if a newer glidefs wrote the header. A frame written by a client is never a
/// header.
pub fn newer_version(frame: &[u8], key: &SegmentKey) -> Option<u16> {
    let Err(FormatError::Version { found }) = check_frame(frame, MAGIC, VERSION_REPEATING) else {
        return None;
    };
    let owner = owner(frame.first_chunk::<FRAME_BYTES>()?);
    (owner == *key && found > VERSION_REPEATING).then_some(found)
}

/// Whether `frame`, at frame `position_frames` of segment `key`, was a record header of the segment, and is damaged. A frame written by
/// a client is never a header.
pub fn is_damaged_record(frame: &[u8], key: &SegmentKey, position_frames: u32) -> bool {
    frame.starts_with(&MAGIC)
        && frame.first_chunk::<FRAME_BYTES>().is_some_and(|frame| owner(frame) == *key)
        && decode_record(frame, key, position_frames).is_err()
}

/// Reads a record header found at frame `position_frames` of the segment `key`.
///
/// The data frames are not looked at: the caller compares each data frame with the frame's CRC. The record is known to end at or
/// before frame `u32::MAX`, but may end outside the segment.
pub fn decode_record(frame: &[u8], key: &SegmentKey, position_frames: u32) -> Result<Record, FormatError> {
    let (frame, found) = check_frame(frame, MAGIC, VERSION_REPEATING)?;
    check_key(&found, key)?;
    let announces = u16::from_le_bytes(field(frame, VERSION_AT)) == VERSION_REPEATING;
    let position = u32::from_le_bytes(field(frame, POSITION_AT));
    if position != position_frames {
        return Err(FormatError::Position { found: position, expected: position_frames });
    }
    let stable_frames = u32::from_le_bytes(field(frame, STABLE_AT));
    if stable_frames > position {
        return Err(FormatError::Malformed("frames that were not written yet are called stable"));
    }
    let entry_count = usize::from(u16::from_le_bytes(field(frame, ENTRY_COUNT_AT)));
    let (data_frames, repeated) = if announces {
        let [data_frames, repeated] =
            [DATA_FRAMES_AT, REPEATED_AT].map(|at| u16::from_le_bytes(field(frame, at)));
        (u32::from(data_frames), usize::from(repeated))
    } else {
        (u32::from_le_bytes(field(frame, DATA_FRAMES_AT)), 0)
    };
    let crc_bytes = (data_frames as usize).saturating_mul(FRAME_CRC_BYTES);
    let entries_end = ENTRIES_AT + entry_count * ENTRY_BYTES;
    let crcs_at = match CRC_AT.checked_sub(crc_bytes) {
        Some(crcs_at) if crcs_at >= entries_end + repeated => crcs_at,
        _ => return Err(FormatError::Malformed("more entries or data frames than fit into a record header")),
    };
    if position.checked_add(1).and_then(|first| first.checked_add(data_frames)).is_none() {
        return Err(FormatError::Malformed("a record that ends beyond the last frame number"));
    }
    let entries = decode_entries(&frame[ENTRIES_AT..entries_end], data_frames as usize)?;
    let repeated_end = entries_end + repeated;
    let before = decode_before(&frame[entries_end..repeated_end], position)?;
    check_unused(&frame[repeated_end..crcs_at])?;
    let (table, _) = frame[crcs_at..CRC_AT].as_chunks::<FRAME_CRC_BYTES>();
    let crcs = table.iter().rev().map(|crc| u32::from_le_bytes(*crc)).collect();
    Ok(Record { entries, crcs, stable_frames, announces, before })
}

/// Decodes `bytes` of the header at frame `position`: the description of the record before, if there is one.
fn decode_before(mut bytes: &[u8], position: u32) -> Result<Option<FooterRecord>, FormatError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let before = take_record(&mut bytes)?;
    let end = u64::from(before.position_frames) + 1 + before.crcs.len() as u64;
    if !bytes.is_empty() || before.position_frames == 0 || end > u64::from(position) {
        return Err(FormatError::Malformed("a description of the record before that does not fit"));
    }
    Ok(Some(before))
}
