//! A batch: the entries that go into a segment as one record.
//!
//! Owns the headers and the CRCs of the record to come. Does not own the place of the record or the write (`segment`). Invariant: an
//! export that is new to the segment is announced by a record of its own before the batch, in the same write.

use std::collections::HashSet;

use super::format::{Entry, EntryKind, PushError, RecordBuilder};
use crate::units::{ExportId, FRAME_BYTES, SectorRange, Seq};

/// Most headers that one write has: that of the announcement, and that of the record.
pub(in crate::cache) const HEADERS_MAX: usize = 2;

/// Entries that will be one record, with what the footer needs to know of them.
#[derive(Debug)]
pub(in crate::cache) struct Batch {
    pub(super) builder: RecordBuilder,
    pub(super) entries: Vec<Entry>,
    pub(super) crcs: Vec<u32>,
    /// Times that an entry is of another export than the one before it, the first included: no fewer than there are exports.
    pub(super) changes: usize,
    /// The record that announces exports that are new to the segment; empty when there are none.
    pub(super) announcement: RecordBuilder,
    pub(super) announced: Vec<Entry>,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            builder: RecordBuilder::new(),
            entries: Vec::new(),
            crcs: Vec::new(),
            changes: 0,
            announcement: RecordBuilder::new(),
            announced: Vec::with_capacity(1),
        }
    }
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn data_frames(&self) -> u32 {
        self.builder.data_frames()
    }

    /// The headers that come before the data, complete once the record has its place.
    pub fn headers(&self) -> impl Iterator<Item = &[u8; FRAME_BYTES]> {
        let announcement = (!self.announced.is_empty()).then(|| self.announcement.frame());
        announcement.into_iter().chain([self.builder.frame()])
    }

    /// How many [`Self::headers`] there are.
    pub fn header_count(&self) -> usize {
        1 + usize::from(!self.announced.is_empty())
    }

    /// Announces the exports that are not in `known`, and adds them there.
    pub(super) fn announce(&mut self, known: &mut HashSet<ExportId>) {
        self.announcement.reset();
        self.announced.clear();
        let mut last = None;
        for entry in &self.entries {
            if last.replace(entry.export) != Some(entry.export) && known.insert(entry.export) {
                let entry = Entry { kind: EntryKind::Announced, ..*entry };
                let pushed = self.announcement.push_entry(&entry);
                debug_assert!(pushed.is_ok(), "a record has room for as many entries as another one");
                self.announced.push(entry);
            }
        }
    }

    fn added(&mut self, entry: Entry) {
        self.changes += usize::from(self.entries.last().is_none_or(|last| last.export != entry.export));
        self.entries.push(entry);
    }

    /// Whether one more entry with `frames` frames of data fits, or, when `frames` is 0, `entries` more without.
    pub fn fits(&self, entries: usize, frames: usize) -> bool {
        if frames > 0 {
            return self.builder.fits_data(frames);
        }
        // An entry takes the room of seven CRCs.
        self.builder.fits_zero() && self.builder.fits_data((entries - 1) * 7)
    }

    pub fn push_data(
        &mut self,
        export: ExportId,
        seq: Seq,
        range: SectorRange,
        crcs: &[u32],
    ) -> Result<(), PushError> {
        let kind = EntryKind::Data { first_frame: self.builder.data_frames() };
        self.builder.push_data(export, seq, range, crcs)?;
        self.added(Entry { export, seq, range, kind });
        self.crcs.extend_from_slice(crcs);
        Ok(())
    }

    pub fn push_zero(&mut self, export: ExportId, seq: Seq, range: SectorRange) -> Result<(), PushError> {
        self.builder.push_zero(export, seq, range)?;
        self.added(Entry { export, seq, range, kind: EntryKind::Zero });
        Ok(())
    }

    /// Adds an entry without data.
    pub fn push_entry(&mut self, entry: Entry) -> Result<(), PushError> {
        self.builder.push_entry(&entry)?;
        self.added(entry);
        Ok(())
    }

    pub fn reset(&mut self) {
        self.builder.reset();
        self.entries.clear();
        self.crcs.clear();
        self.changes = 0;
        self.announcement.reset();
        self.announced.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::log::format::{RECORD_ENTRIES_MAX, frame_crc};

    #[test]
    fn a_batch_takes_exactly_the_zero_entries_it_says_fit() {
        let range = SectorRange::new(0, 8).unwrap();
        let crc = frame_crc(&[0; FRAME_BYTES]);
        for data in 0..130 {
            let mut batch = Batch::default();
            for _ in 0..data {
                if batch.fits(1, 1) {
                    batch.push_data(ExportId(1), Seq(1), range, &[crc]).unwrap();
                }
            }
            let fits = (1..=RECORD_ENTRIES_MAX).take_while(|entries| batch.fits(*entries, 0)).count();
            for _ in 0..fits {
                batch.push_zero(ExportId(1), Seq(1), range).unwrap();
            }
            assert_eq!(batch.entries().len(), batch.builder.entries());
        }
    }
}
