//! A segment while an owner appends to the segment.
//!
//! Does not own when a segment is prepared, synced or sealed. Invariants: a record is written at the segment's end, with one
//! gather write or with several, one behind another, and counts only when the whole record was written; an export is announced in the
//! segment before the export's first entry, by the same writes; room for footer, sums and trailer is never given away.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::batch::{Batch, HEADERS_MAX};
use super::disk::SegmentFile;
use super::format::{FooterBuilder, FooterMark, RECORD_ENTRIES_MAX, SegmentHeader, SegmentKey, sums_pages};
use super::life::State;
use super::sums::Crcs;
use super::table::{Place, SegmentTable};
use crate::units::{ExportId, FRAME_BYTES};

/// Most bytes of a footer for one record, beyond the record's entries and CRCs.
const FOOTER_RECORD_BYTES: u32 = 16;
/// Most bytes of a footer for one entry, beyond the entry's CRCs.
const FOOTER_ENTRY_BYTES: u32 = 32;
const FOOTER_CRC_BYTES: u32 = 4;

/// Number of exports that a new segment has memory for.
const EXPORTS_FEW: usize = 64;

/// Log space: frames, and bytes of the footer that describes the records in the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) struct Room {
    pub frames: u32,
    pub footer_bytes: u32,
}

impl Room {
    /// The room for a request with `entries` entries and `data_frames` frames of data that gets a record of its own and whose
    /// export has to be announced.
    pub fn of(entries: u32, data_frames: u32) -> Self {
        let crcs_bytes = data_frames.saturating_mul(FOOTER_CRC_BYTES);
        Self {
            frames: data_frames.saturating_add(2),
            footer_bytes: (entries.saturating_add(1).saturating_mul(FOOTER_ENTRY_BYTES)
                + 2 * FOOTER_RECORD_BYTES)
                .saturating_add(crcs_bytes),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames.saturating_add(other.frames),
            footer_bytes: self.footer_bytes.saturating_add(other.footer_bytes),
        }
    }

    pub fn minus(self, other: Self) -> Self {
        debug_assert!(self.frames >= other.frames && self.footer_bytes >= other.footer_bytes);
        Self {
            frames: self.frames.saturating_sub(other.frames),
            footer_bytes: self.footer_bytes.saturating_sub(other.footer_bytes),
        }
    }
}

/// One past the last frame of the sums, when the records end before frame `records_end` and the footer takes `footer_frames`.
fn with_sums(records_end: u64, footer_frames: u64) -> u64 {
    let records = u32::try_from(records_end).unwrap_or(u32::MAX);
    records_end.saturating_add(footer_frames).saturating_add(u64::from(sums_pages(records)))
}

/// A place in a segment, and the footer up to that place.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Mark {
    /// First frame written, either of the announcement or of the record.
    pub position: u32,
    /// Frame of the record's own header, behind the announcement.
    pub record: u32,
    footer: FooterMark,
}

impl Mark {
    /// The byte at which the write begins.
    pub fn offset(self) -> u64 {
        u64::from(self.position) * FRAME_BYTES as u64
    }
}

/// A segment that one owner appends to.
pub(in crate::cache) struct SegmentWriter {
    pub number: u32,
    pub key: SegmentKey,
    pub file: Arc<dyn SegmentFile>,
    /// Number of the next frame to write.
    pub(super) position: u32,
    pub(super) footer: FooterBuilder,
    exports: HashSet<ExportId>,
    /// Whether the trailer will have to be stable; see [`Trailer::vital`](super::format::Trailer::vital).
    pub vital: bool,
}

crate::units::debug_by_name!(SegmentWriter);

impl SegmentWriter {
    /// Takes the free segment with number `number` into use, whose `header` is stable, and nothing else: for appends to `file`.
    pub fn begin(
        table: &SegmentTable,
        number: u32,
        header: &SegmentHeader,
        file: Arc<dyn SegmentFile>,
    ) -> Self {
        let (info, frames) = (table.get(number), table.segment_frames());
        info.keep_crcs(Crcs::new(frames));
        info.begin_use(header.segment_id, 1);
        info.enter(State::Open);
        Self::resume(number, header.key(), file, 1, FooterBuilder::with_room(frames))
    }

    /// A segment that holds the records in `footer`, up to frame `position`.
    pub fn resume(
        number: u32,
        key: SegmentKey,
        file: Arc<dyn SegmentFile>,
        position: u32,
        footer: FooterBuilder,
    ) -> Self {
        Self {
            number,
            key,
            file,
            position,
            footer,
            exports: HashSet::with_capacity(EXPORTS_FEW),
            vital: false,
        }
    }

    /// Whether `room` more can be appended, however `room` is divided into records.
    pub fn has_room(&self, table: &SegmentTable, room: Room) -> bool {
        let footer_bytes = self.footer.encoded_len() as u64 + u64::from(room.footer_bytes);
        let footer_frames = footer_bytes.div_ceil(FRAME_BYTES as u64);
        // The last frame is for the trailer.
        with_sums(u64::from(self.position) + u64::from(room.frames), footer_frames)
            < u64::from(table.segment_frames())
    }

    /// Whether the record of `batch` fits after one more request with `entries` entries and `data_frames` frames joined the
    /// batch.
    pub fn has_room_for(
        &self,
        table: &SegmentTable,
        batch: &Batch,
        entries: usize,
        data_frames: u32,
    ) -> bool {
        let frames = batch.data_frames().saturating_add(data_frames);
        let entries = batch.entries.len() + entries + batch.changes + 1;
        let footer_bytes = self.footer.encoded_len_with(HEADERS_MAX, entries, frames as usize);
        let records_end = u64::from(self.position) + HEADERS_MAX as u64 + u64::from(frames);
        with_sums(records_end, (footer_bytes / FRAME_BYTES) as u64) < u64::from(table.segment_frames())
    }

    /// Whether `room` fits into a segment without records.
    pub fn empty_has_room(table: &SegmentTable, room: Room) -> bool {
        let footer_frames = u64::from(room.footer_bytes).div_ceil(FRAME_BYTES as u64) + 1;
        with_sums(1 + u64::from(room.frames), footer_frames) < u64::from(table.segment_frames())
    }

    /// Appends the record of `batch` and returns the frame of the record. `data` is in the order of the batch's entries. After an
    /// error the segment is as before the call; the bytes behind the segment's end on disk are undefined.
    pub fn append<'a>(
        &mut self,
        table: &SegmentTable,
        batch: &mut Batch,
        data: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<u32> {
        let mark = self.place_record(table, batch);
        match Self::write_record(&*self.file, mark, batch, data, 0..batch.record_bytes()) {
            Ok(()) => {
                table.get(self.number).set_appended(self.position);
                Ok(mark.record)
            }
            Err(error) => {
                self.retract(mark);
                batch.announced.iter().for_each(|entry| {
                    self.exports.remove(&entry.export);
                });
                Err(error)
            }
        }
    }

    /// Gives the record of `batch` a place at the segment's end and completes the record's header. The record counts once the
    /// record was written and the table was told ([`SegmentInfo::set_appended`](super::info::SegmentInfo::set_appended)).
    pub fn place_record(&mut self, table: &SegmentTable, batch: &mut Batch) -> Mark {
        let info = table.get(self.number);
        let stable = info.synced().min(self.position);
        let mut mark = Mark { position: self.position, record: self.position, footer: self.footer.mark() };
        batch.announce(&mut self.exports);
        if !batch.announced.is_empty() {
            batch.announcement.finish(&self.key, mark.position, stable, self.footer.last_record());
            self.footer.add_record(mark.position, &batch.announced, &[]);
            mark.record += 1;
        }
        batch.builder.finish(&self.key, mark.record, stable, self.footer.last_record());
        info.set_crcs(mark.record + 1, &batch.crcs);
        self.footer.add_record(mark.record, &batch.entries, &batch.crcs);
        self.position = mark.record + 1 + batch.data_frames();
        mark
    }

    /// Writes the bytes `window` of the record of `batch`, which was placed at `mark`, to `file` with one call.
    pub fn write_record<'h, 'd: 'h>(
        file: &dyn SegmentFile,
        mark: Mark,
        batch: &'h Batch,
        data: impl Iterator<Item = &'d [u8]>,
        window: Range<usize>,
    ) -> io::Result<()> {
        let mut parts = ArrayVec::<IoSlice<'_>, { RECORD_ENTRIES_MAX + HEADERS_MAX }>::new();
        let mut bytes = 0;
        let headers = batch.headers().map(|header| -> &'h [u8] { header });
        for piece in headers.chain(data.map(|piece| -> &'h [u8] { piece })) {
            let start = window.start.max(bytes) - bytes;
            let end = window.end.saturating_sub(bytes).min(piece.len());
            bytes += piece.len();
            if start < end {
                parts.try_push(IoSlice::new(&piece[start..end])).map_err(|_| mismatch())?;
            }
        }
        if bytes != batch.record_bytes() {
            return Err(mismatch());
        }
        file.write_at(&parts, mark.offset() + window.start as u64)
    }

    /// Takes back all records from `mark` on.
    pub fn retract(&mut self, mark: Mark) {
        self.position = mark.position;
        self.footer.retract(mark.footer);
        // A walk might find the records taken back; only a stable trailer prevents that.
        self.vital = true;
    }

    /// The end of all appended records.
    pub fn place(&self) -> Place {
        Place { number: self.number, segment_id: self.key.segment_id, end: self.position }
    }
}

fn mismatch() -> io::Error {
    let message = "the length of the data does not match the entries of the batch";
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::log::format::{Entry, EntryKind};
    use crate::units::{SectorRange, Seq};

    #[test]
    fn reserved_room_is_never_less_than_a_record_of_its_own_takes() {
        for (entries, frames) in [(1, 1), (1, 32), (16, 0), (1, 0)] {
            let mut footer = FooterBuilder::default();
            let empty = footer.encoded_len_with(1, 0, 0);
            let room = Room::of(entries, frames);
            let records = 50;
            for _ in 0..records {
                let entry = Entry {
                    export: ExportId(1),
                    seq: Seq(1),
                    range: SectorRange::new(0, 1).unwrap(),
                    kind: EntryKind::Zero,
                };
                footer.add_record(1, &[Entry { kind: EntryKind::Announced, ..entry }], &[]);
                footer.add_record(2, &vec![entry; entries as usize], &vec![0; frames as usize]);
            }
            assert!(footer.encoded_len() <= empty + records * room.footer_bytes as usize);
            assert_eq!(room.frames, frames + 2);
        }
    }
}
