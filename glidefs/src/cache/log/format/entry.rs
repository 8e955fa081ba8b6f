//! An entry: what a record says of one range of one export.
//!
//! Owns the bytes of an entry, in a record header and in a footer. Invariant: the data of a record's entries tiles the record's data
//! frames, in order and without gaps, so no two entries share a frame and each frame has exactly one CRC.

use super::{FormatError, put};
use crate::units::{ExportId, FRAME_SECTORS, SectorRange, Seq};

// Entry.
//
//    0     8              16             20       24            26     27     28
//   ┌─────┬──────────────┬──────────────┬────────┬─────────────┬──────┬──────┐
//   │ seq │ sector start │ sector count │ export │ first frame │ kind │  ..  │
//   └─────┴──────────────┴──────────────┴────────┴─────────────┴──────┴──────┘
pub(super) const ENTRY_BYTES: usize = 28;
const KIND_DATA: u8 = 1;
const KIND_ZERO: u8 = 2;
const KIND_DAMAGED: u8 = 3;
const KIND_DOUBT: u8 = 4;
const KIND_ANNOUNCED: u8 = 5;

/// Length of the CRC of one data frame.
pub(super) const FRAME_CRC_BYTES: usize = 4;

/// The change that an entry makes to the entry's sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The sectors hold data that is in the record's data frames.
    Data {
        /// First data frame, counted from the first data frame of the record.
        first_frame: u32,
    },
    /// The sectors read as zeroes.
    Zero,
    /// The disk lost the content of the sectors: a READ fails until the sectors are written again.
    Damaged,
    /// Says nothing of the range: a record of the export may be lost, so all sectors of the export that are not newer than this
    /// entry cannot be relied on.
    Doubt,
    /// Changes nothing: entries of the export follow in this segment. The announcement is in a record of its own, before the
    /// first such entry, so that a lost header never hides an export that nothing else in the segment names.
    Announced,
}

/// One write of one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The export that the sectors belong to.
    pub export: ExportId,
    /// The write's place in the export's history.
    pub seq: Seq,
    /// The sectors: 1 to `u32::MAX` of them.
    pub range: SectorRange,
    /// The change to the sectors.
    pub kind: EntryKind,
}

impl Entry {
    /// Number of data frames that the entry has in its record: 0 for every kind but data.
    pub fn data_frames(&self) -> u64 {
        match self.kind {
            EntryKind::Data { .. } => self.range.count().div_ceil(FRAME_SECTORS),
            EntryKind::Zero | EntryKind::Damaged | EntryKind::Doubt | EntryKind::Announced => 0,
        }
    }

    /// The entry as bytes. `None` for an entry that the format has no room for or that no decoder accepts.
    pub(super) fn encode(&self) -> Option<[u8; ENTRY_BYTES]> {
        let count = u32::try_from(self.range.count()).ok().filter(|count| *count > 0)?;
        let (kind, first_frame) = match self.kind {
            EntryKind::Data { first_frame } => (KIND_DATA, u16::try_from(first_frame).ok()?),
            EntryKind::Zero => (KIND_ZERO, 0),
            EntryKind::Damaged => (KIND_DAMAGED, 0),
            EntryKind::Doubt => (KIND_DOUBT, 0),
            EntryKind::Announced => (KIND_ANNOUNCED, 0),
        };
        if self.seq == Seq::default() {
            return None;
        }
        let mut bytes = [0; ENTRY_BYTES];
        put(&mut bytes, 0, &self.seq.0.to_le_bytes());
        put(&mut bytes, 8, &self.range.start().to_le_bytes());
        put(&mut bytes, 16, &count.to_le_bytes());
        put(&mut bytes, 20, &self.export.0.to_le_bytes());
        put(&mut bytes, 24, &first_frame.to_le_bytes());
        bytes[26] = kind;
        Some(bytes)
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Result<Self, FormatError> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, rest @ ..] = *bytes;
        let [a0, a1, a2, a3, a4, a5, a6, a7, rest @ ..] = rest;
        let [c0, c1, c2, c3, e0, e1, e2, e3, f0, f1, kind, reserved] = rest;
        let seq = Seq(u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]));
        let start = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        let first_frame = u32::from(u16::from_le_bytes([f0, f1]));
        let kind = match (kind, first_frame) {
            (KIND_DATA, first_frame) => EntryKind::Data { first_frame },
            (KIND_ZERO, 0) => EntryKind::Zero,
            (KIND_DAMAGED, 0) => EntryKind::Damaged,
            (KIND_DOUBT, 0) => EntryKind::Doubt,
            (KIND_ANNOUNCED, 0) => EntryKind::Announced,
            _ => return Err(FormatError::Malformed("an entry of an unknown kind")),
        };
        if reserved != 0 {
            return Err(FormatError::Malformed("unused bytes are set"));
        }
        if seq == Seq::default() {
            return Err(FormatError::Malformed("an entry with sequence number 0"));
        }
        match SectorRange::new(start, u64::from(count)) {
            Some(range) if count > 0 => {
                Ok(Self { export: ExportId(u32::from_le_bytes([e0, e1, e2, e3])), seq, range, kind })
            }
            _ => Err(FormatError::Malformed("an entry without sectors, or with sectors beyond the last one")),
        }
    }
}

/// Decodes `bytes`, a whole number of entries. The data of the entries must tile `data_frames` frames.
pub(super) fn decode_entries(bytes: &[u8], data_frames: usize) -> Result<Vec<Entry>, FormatError> {
    let (chunks, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    debug_assert!(rest.is_empty(), "the caller counted entries");
    let mut entries = Vec::with_capacity(chunks.len());
    let mut next_frame = 0;
    for chunk in chunks {
        let entry = Entry::decode(chunk)?;
        if let EntryKind::Data { first_frame } = entry.kind {
            if u64::from(first_frame) != next_frame {
                return Err(FormatError::Malformed(
                    "the data of an entry does not follow the data of the entry before",
                ));
            }
            // Cannot overflow: an entry has fewer than 2^32 sectors, and there are fewer than 2^32 entries.
            next_frame += entry.data_frames();
        }
        entries.push(entry);
    }
    if entries.is_empty() {
        return Err(FormatError::Malformed("a record without entries"));
    }
    if next_frame != data_frames as u64 {
        return Err(FormatError::Malformed("entries and data frames disagree"));
    }
    Ok(entries)
}
