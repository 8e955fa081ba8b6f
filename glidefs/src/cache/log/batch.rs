//! A batch: the entries that go into a segment as one record.
//!
//! Owns the headers and the CRCs of the record to come. Does not own the place of the record or the write (`segment`). Invariant: an
//! export that is new to the segment is announced by a record of its own before the batch, by the same writes.

use std::collections::HashSet;

use super::format::{Entry, EntryKind, RecordBuilder};
use crate::units::{ExportId, FRAME_BYTES, SectorRange, Seq};

/// Most headers in one write: the header of the announcement, and the header of the record.
pub(in crate::cache) const HEADERS_MAX: usize = 2;

/// Entries that will be one record, and the figures that the footer needs of the entries.
#[derive(Debug, Default)]
pub(in crate::cache) struct Batch {
    pub(super) builder: RecordBuilder,
    pub(super) entries: Vec<Entry>,
    pub(super) crcs: Vec<u32>,
    /// How often an entry is of another export than the entry before, the first entry included: at least the number of exports.
    pub(super) changes: usize,
    /// The record that announces exports that are new to the segment. Not written when `announced` is empty.
    pub(super) announcement: RecordBuilder,
    pub(super) announced: Vec<Entry>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The CRCs of all data frames, in the order of the entries.
    pub fn crcs(&self) -> &[u32] {
        &self.crcs
    }

    pub fn data_frames(&self) -> u32 {
        self.builder.data_frames()
    }

    /// The headers that come before the data; complete once the record has a place.
    pub fn headers(&self) -> impl Iterator<Item = &[u8; FRAME_BYTES]> {
        let announcement = (!self.announced.is_empty()).then(|| self.announcement.frame());
        announcement.into_iter().chain([self.builder.frame()])
    }

    /// Number of [`Self::headers`].
    pub fn header_count(&self) -> usize {
        1 + usize::from(!self.announced.is_empty())
    }

    /// Length of the record, headers included.
    pub fn record_bytes(&self) -> usize {
        (self.data_frames() as usize + self.header_count()) * FRAME_BYTES
    }

    /// Announces the exports that are not in `known`, and adds those exports to `known`.
    pub(super) fn announce(&mut self, known: &mut HashSet<ExportId>) {
        self.announcement.reset();
        self.announced.clear();
        let mut last = None;
        for entry in &self.entries {
            if last.replace(entry.export) != Some(entry.export) && known.insert(entry.export) {
                let entry = Entry { kind: EntryKind::Announced, ..*entry };
                let pushed = self.announcement.push(&entry, &[]);
                debug_assert!(pushed, "a record has room for as many entries as another one");
                self.announced.push(entry);
            }
        }
    }

    /// Whether there is room for one more entry with `frames` frames of data, or, when `frames` is 0, for `entries` more entries
    /// without data.
    pub fn fits(&self, entries: usize, frames: usize) -> bool {
        if frames > 0 {
            return self.builder.fits_data(frames);
        }
        // One entry is as long as seven CRCs.
        self.builder.fits_data((entries - 1) * 7)
    }

    /// Adds a write of data, behind the data of the entries before; `crcs` has one CRC for each frame.
    pub fn push_data(&mut self, export: ExportId, seq: Seq, range: SectorRange, crcs: &[u32]) -> bool {
        let kind = EntryKind::Data { first_frame: self.builder.data_frames() };
        self.push(Entry { export, seq, range, kind }, crcs)
    }

    /// As [`RecordBuilder::push`].
    pub fn push(&mut self, entry: Entry, crcs: &[u32]) -> bool {
        let pushed = self.builder.push(&entry, crcs);
        if pushed {
            self.changes += usize::from(self.entries.last().is_none_or(|last| last.export != entry.export));
            self.entries.push(entry);
            self.crcs.extend_from_slice(crcs);
        }
        pushed
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
                    assert!(batch.push_data(ExportId(1), Seq(1), range, &[crc]));
                }
            }
            let fits = (1..=RECORD_ENTRIES_MAX).take_while(|entries| batch.fits(*entries, 0)).count();
            for _ in 0..fits {
                let (export, seq, kind) = (ExportId(1), Seq(1), EntryKind::Zero);
                assert!(batch.push(Entry { export, seq, range, kind }, &[]));
            }
            assert_eq!(batch.entries().len(), batch.builder.entries());
        }
    }
}
