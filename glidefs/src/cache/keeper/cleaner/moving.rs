//! Moving live data to another segment, and giving up the frames that cannot move; and what there is to gain: the frames freed with
//! the segment, less the frames taken by the live data elsewhere.
//!
//! Does not own which segment is cleaned. Invariants: a frame moves only when the frame's checksum is right, and moves unchanged;
//! in the place of a frame lost by the disk moves an entry that says so, so nothing older takes the place of the frame's sectors.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Cleaner, Emptying, FAILURES_MAX, Halt};
use crate::cache::handoff::Way;
use crate::cache::keeper::runs::{Run, live_runs, part_of, records};
use crate::cache::log::batch::HEADERS_MAX;
use crate::cache::log::format::{
    CLEANER, Entry, EntryKind, FooterBuilder, FooterRecord, frame_crc, sums_pages,
};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::scan::{offset, read_again};
use crate::cache::log::sums::Verdict;
use crate::cache::shared::Shared;
use crate::cache::verify::compare;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::extent;
use crate::units::{ExportId, FRAME_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES};

/// Most bytes moved with one append in large segments.
const MOVE_BYTES: usize = 1 << 20;
/// Most frames taken by the header of a moved record and the record's part of a footer.
const MOVE_OVERHEAD_FRAMES: u32 = 8;

impl Emptying<'_> {
    /// Moves everything needed, and forgets what is in the store, if moving frees `gain_min` frames; with 0 in any case. Returns
    /// whether there was anything.
    pub(super) fn run(&mut self, gain_min: u32) -> Result<bool, Halt> {
        let (shared, info) = (self.shared, self.info);
        let records = records(shared, self.number, info);
        let mut volumes = HashMap::new();
        let mut runs = Vec::new();
        for record in &records {
            for entry in &record.entries {
                let volume = volumes.entry(entry.export).or_insert_with(|| shared.find_volume(entry.export));
                if let Some(volume) = volume {
                    live_runs(volume, entry, self.number, record.position_frames, &mut runs);
                }
            }
        }
        let needs = frames_for(shared, &runs).saturating_add(gain_min);
        if gain_min > 0 && needs > freed_frames(shared, info, &records) {
            return Ok(false);
        }
        for run in &runs {
            if let Some(Some(volume)) = volumes.get(&run.entry.export) {
                self.add(run, volume)?;
            }
        }
        self.append()?;
        let forgotten = self.forget(&records, &volumes)?;
        Ok(forgotten || !runs.is_empty())
    }

    /// Puts `run` into the batch, and an entry of damage in the place of each lost frame.
    fn add(&mut self, run: &Run, volume: &Arc<Volume>) -> Result<(), Halt> {
        let (shared, info) = (self.shared, self.info);
        if run.frames == 0 {
            return self.add_without_data(run, run.entry.kind, volume);
        }
        let Some(file) = info.file() else { return Ok(()) };
        let bytes = run.frames as usize * FRAME_BYTES;
        if !self.batch.fits(1, run.frames as usize) || self.data.len() + bytes > move_bytes(shared) {
            self.append()?;
        }
        let at = self.data.len();
        self.data.resize(at + bytes, 0);
        if let Err(error) = read_again(&**file, &mut self.data[at..], offset(run.first)) {
            self.data.truncate(at);
            if run.frames == 1 {
                return self.unread(run, volume, &error);
            }
            // A frame the disk does not read must not cost the frames beside.
            return self.add_frames(run, volume);
        }
        let crcs_of = |data: &[u8]| data.chunks_exact(FRAME_BYTES).map(frame_crc).collect::<Vec<u32>>();
        let mut crcs = crcs_of(&self.data[at..]);
        let mut verdict = compare(shared, self.number, run.first, &crcs);
        // The copy in the page cache may be wrong, and the disk right. A mapped page would stay.
        if run.frames == 1 && matches!(verdict, Verdict::Wrong(_)) {
            drop(info.set_mapping(None));
            if let Err(error) = file.read_from_disk(&mut self.data[at..], offset(run.first)) {
                self.data.truncate(at);
                return self.unread(run, volume, &error);
            }
            crcs = crcs_of(&self.data[at..]);
            verdict = compare(shared, self.number, run.first, &crcs);
        }
        if verdict != Verdict::Right {
            self.data.truncate(at);
            if run.frames == 1 && matches!(verdict, Verdict::Missing(_)) {
                // Perhaps the disk reads the checksum later.
                let error = io::Error::other("the checksum of the data cannot be read");
                return self.unread(run, volume, &error);
            }
            if run.frames == 1 {
                shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                return self.lose(run, volume, "the data does not match its checksum");
            }
            // A long read may have gone past the page cache, and a frame not written by a failed sync is in the page cache alone.
            return self.add_frames(run, volume);
        }
        if self.batch.push_data(run.entry.export, run.entry.seq, run.range, &crcs) {
            self.volumes.push(Arc::clone(volume));
        } else {
            self.data.truncate(at);
        }
        Ok(())
    }

    /// As [`Self::add`], each frame of `run` alone.
    fn add_frames(&mut self, run: &Run, volume: &Arc<Volume>) -> Result<(), Halt> {
        (0..run.frames)
            .filter_map(|frame| part_of(run, frame, frame + 1))
            .try_for_each(|frame| self.add(&frame, volume))
    }

    /// Puts an entry of `kind`, without data, for the sectors of `run` into the batch.
    fn add_without_data(&mut self, run: &Run, kind: EntryKind, volume: &Arc<Volume>) -> Result<(), Halt> {
        if !self.batch.fits(1, 0) {
            self.append()?;
        }
        if self.batch.push(Entry { range: run.range, kind, ..run.entry }, &[]) {
            self.volumes.push(Arc::clone(volume));
        }
        Ok(())
    }

    /// Counts the frame of `run`, which the disk did not read, and gives the frame up after enough tries.
    fn unread(&mut self, run: &Run, volume: &Arc<Volume>, error: &io::Error) -> Result<(), Halt> {
        self.unread_frames += 1;
        if self.gives_up {
            self.info.retire();
            return self.lose(run, volume, "the disk does not read the data");
        }
        if self.unread_frames == 1 {
            let what = "reading data that must move failed; the data is read again in a second";
            self.shared.report(self.number, error, what);
        }
        Ok(())
    }

    /// Puts an entry into the batch that says that the frame of `run` is lost.
    fn lose(&mut self, run: &Run, volume: &Arc<Volume>, reason: &'static str) -> Result<(), Halt> {
        let (shared, number) = (self.shared, self.number);
        if let Err(error) = shared.expect_damage() {
            shared.report(number, &error, "writing cache.meta failed; damaged data stays where it is");
            return Err(Halt::NoRoom);
        }
        shared.figures.lost_frames.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            export = run.entry.export.0,
            first_sector = run.range.start(),
            sectors = run.range.count(),
            file = shared.disk.segment_name(number),
            offset_bytes = offset(run.first),
            reason,
            "data in the cache is lost: these sectors fail until they are written again or discarded"
        );
        self.add_without_data(run, EntryKind::Damaged, volume)
    }

    /// Appends the batch, and makes the indexes refer to the copies.
    fn append(&mut self) -> Result<(), Halt> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let (shared, table) = (self.shared, &self.shared.table);
        let Cleaner { segment: target, failures, .. } = &mut *self.cleaner;
        let fits = target.as_ref().is_some_and(|segment| {
            segment.has_room_for(table, &self.batch, 0, 0)
                && (*failures < FAILURES_MAX)
                && !table.get(segment.number).is_poisoned()
        });
        if !fits {
            if let Some(full) = target.take() {
                shared.close(full);
            }
            *failures = 0;
            *target = self.preparer.prepare(shared, CLEANER, 0, Way::Common);
        }
        let Some(segment) = target else { return Err(Halt::NoRoom) };
        debug_assert_ne!(segment.number, self.number, "a segment is not emptied into itself");
        let position = match segment.append(table, &mut self.batch, std::iter::once(&self.data[..])) {
            Ok(position) => position,
            Err(error) => {
                // The next try is in the same place: another segment would be one more of the few free ones.
                if *failures == 0 {
                    let what = "moving data to another segment failed; trying again";
                    shared.report(segment.number, &error, what);
                }
                *failures += 1;
                return Err(Halt::NoRoom);
            }
        };
        *failures = 0;
        for (entry, volume) in self.batch.entries().iter().zip(&self.volumes) {
            if let Some(copy) = extent(entry, segment.number, position) {
                volume.relocated(table, copy, self.number);
            }
        }
        shared.figures.cleaned_bytes.fetch_add(self.data.len() as u64, Ordering::Relaxed);
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        Ok(())
    }

    /// Forgets the data of `records`, all of the segment, that is in the store, and returns whether there was any.
    fn forget(
        &self,
        records: &[FooterRecord],
        volumes: &HashMap<ExportId, Option<Arc<Volume>>>,
    ) -> io::Result<bool> {
        let (shared, info) = (self.shared, self.info);
        let clean_extents = info.extents().saturating_sub(info.dirty_extents());
        if clean_extents == 0 {
            return Ok(false);
        }
        let entries = || {
            records.iter().flat_map(|record| &record.entries).filter_map(|entry| {
                let volume = volumes.get(&entry.export)?.as_ref()?;
                Some((entry, volume))
            })
        };
        let mut marks = HashMap::new();
        for (entry, _) in entries().filter(|(entry, volume)| volume.is_clean(entry.seq)) {
            let mark = marks.entry(entry.export).or_insert(entry.seq);
            *mark = entry.seq.max(*mark);
        }
        if marks.is_empty() {
            return Ok(false);
        }
        shared.catalog.evicted(&marks.iter().map(|(export, mark)| (*export, *mark)).collect::<Vec<_>>())?;
        let before = info.live_sectors();
        for (entry, volume) in entries() {
            // Data written back since the marks were made is not covered by the catalog's note, and stays.
            if marks.get(&entry.export).is_some_and(|mark| entry.seq <= *mark) {
                volume.evict(&shared.table, entry.range, entry.seq, self.number);
            }
        }
        let gone = before.saturating_sub(info.live_sectors());
        shared.figures.evicted_bytes.fetch_add(gone.saturating_mul(SECTOR_BYTES), Ordering::Relaxed);
        Ok(gone > 0)
    }
}

/// Most bytes moved with one append: an eighth of a segment, up to [`MOVE_BYTES`], but never less than the longest entry.
fn move_bytes(shared: &Shared) -> usize {
    let eighth = shared.table.segment_frames() as usize * FRAME_BYTES / 8;
    MOVE_BYTES.min(eighth).max(REQUEST_BYTES_MAX)
}

/// Frames gained by freeing a segment with `records`. The segment's unused end counts as far as that end is longer than the end
/// left unused by moving: the segment of a killed daemon is almost all unused.
fn freed_frames(shared: &Shared, info: &SegmentInfo, records: &[FooterRecord]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut footer = FooterBuilder::default();
    for record in records {
        footer.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    let used = frames(records.iter().map(|record| 1 + record.crcs.len()).sum());
    // The sums and the trailer follow the footer.
    let behind = frames(footer.encoded_len() / FRAME_BYTES).saturating_add(sums_pages(info.appended()));
    let end = info.appended().saturating_add(behind).saturating_add(1);
    let unused = shared.table.segment_frames().saturating_sub(end);
    used.saturating_add(
        unused.saturating_sub(frames(move_bytes(shared) / FRAME_BYTES) + MOVE_OVERHEAD_FRAMES),
    )
}

/// Most frames taken by `runs` in another segment. With too low an estimate the same data would be moved for ever.
fn frames_for(shared: &Shared, runs: &[Run]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let data: u32 = runs.iter().map(|run| run.frames).sum();
    // A run is no longer than a move, so two moves in a row have more data than one full move. A record header holds the entries
    // and CRCs of at least a hundred entries of one frame each.
    let moves = data.saturating_mul(2) / frames(move_bytes(shared) / FRAME_BYTES).max(1);
    let records = moves.saturating_add(frames(runs.len() / 100)).saturating_add(1);
    data.saturating_add(records.saturating_mul(frames(HEADERS_MAX)))
}
