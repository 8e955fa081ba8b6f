//! Cleaning: forgetting what the store has of a segment and moving what it has not, so that the segment can be freed.
//!
//! Also empties segments whose disk failed to make them stable. Invariants: what moves keeps its sequence number, so it
//! never hides anything newer; frames move only when their checksum is right, and unchanged; a move never needs more
//! frames than it frees; before anything is forgotten it is written down that nothing as old may be taken from the log
//! any more, because older copies of the same sectors may still be in other segments.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{CLEANER, Preparer, report};
use crate::cache::format::{Entry, EntryKind, FooterBuilder, FooterRecord, frame_crc};
use crate::cache::handle::Shared;
use crate::cache::pressure::RESERVE;
use crate::cache::scan::{self, Identity, offset};
use crate::cache::segment::{Batch, Segment, extent};
use crate::cache::slots::{Slot, State};
use crate::cache::volume::Volume;
use crate::units::{ExportId, FRAME_BYTES, FRAME_SECTORS, REQUEST_BYTES_MAX, SECTOR_BYTES, SectorRange};

/// Data moved with one append, bytes; in small segments an eighth of one, or the longest entry.
const MOVE_BYTES: usize = 1 << 20;
/// Frames of a record's header and of its part of a footer, at most.
const MOVE_OVERHEAD_FRAMES: u32 = 8;
/// Segments looked at closely in one step.
const CANDIDATES: usize = 8;
/// Part of a segment that cleaning it must free, as a divisor: when there is time, and when there is not.
const GAIN_DIVISOR: u32 = 8;
const GAIN_DIVISOR_URGENT: u32 = 64;
/// The same where there is a store, and time: a flush frees more than moving does, but not what can never be flushed.
const GAIN_DIVISOR_STORE: u32 = 2;

/// Failures of the disk in a row after which cleaning goes on in another segment.
const FAILURES_MAX: u32 = 8;

/// Part of an entry that is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    entry: Entry,
    /// Frame of the segment with its first byte; no meaning for zeroes.
    first: u32,
    /// 0 for zeroes.
    frames: u32,
    range: SectorRange,
}

/// Segment id, extents, those of them that are not in the store, and sectors of a slot.
type Counts = (u64, u32, u32, u64);

/// What cleaning keeps from one step to the next.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// Where data moves to.
    segment: Option<Segment>,
    /// Times in a row that the disk failed there.
    failures: u32,
    /// Segments that were not worth it, with the counts they had then.
    passed: HashMap<u32, Counts>,
    /// Cuts that had reached the store then. While one is taken note of, what it holds counts as clean and is not yet.
    flushes: u64,
    batch: Batch,
    /// Data of `batch`, and the volumes of its entries.
    data: Vec<u8>,
    volumes: Vec<Arc<Volume>>,
}

/// Why a segment was left half-way.
#[derive(Debug)]
enum Halt {
    /// There is no segment to move to, or its disk does not take data now.
    NoRoom,
    /// Reading failed.
    Disk(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl Cleaner {
    /// Makes the segment data moves to stable again if a sync of it failed.
    pub fn heal(&mut self, shared: &Shared) {
        let poisoned = |segment: &&Segment| shared.slots.get(segment.slot).is_poisoned();
        if let Some(segment) = self.segment.as_ref().filter(poisoned)
            && !super::heal(shared, shared.slots.get(segment.slot), segment)
        {
            self.failures += 1;
            if self.failures >= FAILURES_MAX
                && let Some(segment) = self.segment.take()
            {
                self.failures = 0;
                shared.close(segment);
            }
        }
    }

    /// Cleans one segment if that is due, and returns whether it did.
    pub fn step(&mut self, shared: &Shared, preparer: &mut Preparer, free: u32) -> bool {
        if self.segment.as_ref().is_some_and(|segment| shared.slots.get(segment.slot).is_poisoned()) {
            return false;
        }
        let poisoned = shared.slots.iter().find(|(number, slot)| {
            slot.is_poisoned() && slot.extents() > 0 && !self.was_passed(*number, slot)
        });
        if let Some((number, slot)) = poisoned {
            return self.clean(shared, preparer, number, slot, None);
        }
        if free >= shared.marks.clean_below {
            return false;
        }
        let flushes = shared.flushes.load(Ordering::Acquire);
        if flushes != std::mem::replace(&mut self.flushes, flushes) {
            self.passed.clear();
        }
        let divisor = match (shared.has_store(), free <= RESERVE) {
            (true, false) => GAIN_DIVISOR_STORE,
            (true, true) | (false, false) => GAIN_DIVISOR,
            (false, true) => GAIN_DIVISOR_URGENT,
        };
        let gain_min = (shared.slots.segment_frames() / divisor).max(2);
        for number in self.candidates(shared, gain_min) {
            if self.clean(shared, preparer, number, shared.slots.get(number), Some(gain_min)) {
                return true;
            }
        }
        false
    }

    /// Sealed segments with little to move in them, those with least first, and of those the oldest.
    fn candidates(&self, shared: &Shared, gain_min: u32) -> Vec<u32> {
        let frames = u64::from(shared.slots.segment_frames());
        let mut found: Vec<(u64, u64, u32)> = shared
            .slots
            .iter()
            .filter(|(number, slot)| {
                slot.state() == State::Sealed
                    && !slot.is_poisoned()
                    && slot.extents() > 0
                    && slot.dirty_sectors() / FRAME_SECTORS + u64::from(gain_min) <= frames
                    && !self.was_passed(*number, slot)
            })
            // An extent takes a frame at least, unless it shares one.
            .map(|(number, slot)| {
                let moving = (slot.dirty_sectors() / FRAME_SECTORS).max(u64::from(slot.dirty_extents()));
                (moving, slot.segment_id(), number)
            })
            .collect();
        found.sort_unstable();
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, _, number)| number).collect()
    }

    fn was_passed(&self, number: u32, slot: &Slot) -> bool {
        self.passed.get(&number) == Some(&counts(slot))
    }

    /// Moves everything needed out of slot `number`, if that frees `gain_min` frames.
    fn clean(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        slot: &Slot,
        gain_min: Option<u32>,
    ) -> bool {
        let moved = self.try_clean(shared, preparer, number, slot, gain_min);
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        let cleaned = match moved {
            Ok(cleaned) => cleaned,
            Err(Halt::NoRoom) => return false,
            Err(Halt::Disk(error)) => {
                report(shared, number, &error, "reading a segment to clean it failed");
                false
            }
        };
        if slot.extents() == 0 {
            self.passed.remove(&number);
            shared.figures.segments_cleaned.fetch_add(1, Ordering::Relaxed);
        } else {
            self.passed.insert(number, counts(slot));
        }
        cleaned
    }

    fn try_clean(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        slot: &Slot,
        gain_min: Option<u32>,
    ) -> Result<bool, Halt> {
        let records = read_records(shared, number, slot)?;
        let mut volumes = HashMap::new();
        let mut runs = Vec::new();
        for record in &records {
            for entry in &record.entries {
                let volume = volumes.entry(entry.export).or_insert_with(|| shared.find_volume(entry.export));
                if let Some(volume) = volume {
                    live_runs(volume, entry, number, record.position_frames, &mut runs);
                }
            }
        }
        if gain_min.is_some_and(|gain_min| {
            frames_for(shared, &runs).saturating_add(gain_min) > freed_frames(shared, slot, &records)
        }) {
            return Ok(false);
        }
        for run in &runs {
            if let Some(Some(volume)) = volumes.get(&run.entry.export) {
                self.add(shared, preparer, slot, number, run, volume)?;
            }
        }
        self.append(shared, preparer, number)?;
        let forgotten = forget(shared, number, slot, &records, &volumes)?;
        Ok(forgotten || !runs.is_empty())
    }

    /// Puts `run` into the batch, without the frames that are damaged.
    fn add(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        slot: &Slot,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
    ) -> Result<(), Halt> {
        if run.frames == 0 {
            if !self.batch.fits(1, 0) {
                self.append(shared, preparer, number)?;
            }
            if self.batch.push_zero(run.entry.export, run.entry.seq, run.range).is_ok() {
                self.volumes.push(Arc::clone(volume));
            }
            return Ok(());
        }
        let Some(file) = slot.file() else { return Ok(()) };
        let bytes = run.frames as usize * FRAME_BYTES;
        if !self.batch.fits(1, run.frames as usize) || self.data.len() + bytes > move_bytes(shared) {
            self.append(shared, preparer, number)?;
        }
        let at = self.data.len();
        self.data.resize(at + bytes, 0);
        file.read_at(&mut self.data[at..], offset(run.first))?;
        let crcs: Vec<u32> = self.data[at..].chunks_exact(FRAME_BYTES).map(frame_crc).collect();
        let intact = |frame: &u32| slot.crc(run.first + frame) == crcs.get(*frame as usize).copied();
        if let Some(bad) = (0..run.frames).find(|frame| !intact(frame)) {
            self.data.truncate(at);
            shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                export = run.entry.export.0,
                file = shared.disk.segment_name(number),
                offset_bytes = offset(run.first + bad),
                "cached data does not match its checksum; it stays where it is until it is written again"
            );
            for part in [part_of(run, 0, bad), part_of(run, bad + 1, run.frames)].into_iter().flatten() {
                self.add(shared, preparer, slot, number, &part, volume)?;
            }
            return Ok(());
        }
        if self.batch.push_data(run.entry.export, run.entry.seq, run.range, &crcs).is_ok() {
            self.volumes.push(Arc::clone(volume));
        } else {
            self.data.truncate(at);
        }
        Ok(())
    }

    /// Appends the batch, which comes from slot `from`, and makes the copies the ones to read.
    fn append(&mut self, shared: &Shared, preparer: &mut Preparer, from: u32) -> Result<(), Halt> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let slots = &shared.slots;
        let fits = self.segment.as_ref().is_some_and(|segment| {
            segment.has_room_for(slots, &self.batch, 0, 0)
                && (self.failures < FAILURES_MAX)
                && !slots.get(segment.slot).is_poisoned()
        });
        if !fits {
            if let Some(full) = self.segment.take() {
                shared.close(full);
            }
            self.failures = 0;
            self.segment = preparer.prepare(shared, CLEANER, 0);
        }
        let Some(mut segment) = self.segment.take() else { return Err(Halt::NoRoom) };
        let position = match segment.append(slots, &mut self.batch, std::iter::once(&self.data[..])) {
            Ok(position) => position,
            Err(error) => {
                // Tried again in the same place: to leave it would take one more of the few free slots.
                if self.failures == 0 {
                    report(
                        shared,
                        segment.slot,
                        &error,
                        "moving data to another segment failed; trying again",
                    );
                }
                self.failures += 1;
                self.segment = Some(segment);
                return Err(Halt::NoRoom);
            }
        };
        self.failures = 0;
        for (entry, volume) in self.batch.entries().iter().zip(&self.volumes) {
            volume.relocated(slots, extent(entry, segment.slot, position), from);
        }
        shared.figures.cleaned_bytes.fetch_add(self.data.len() as u64, Ordering::Relaxed);
        self.segment = Some(segment);
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        Ok(())
    }
}

/// Tells whether anything changed in a slot since it was passed over.
fn counts(slot: &Slot) -> Counts {
    (slot.segment_id(), slot.extents(), slot.dirty_extents(), slot.live_sectors())
}

/// All records of a segment that is not appended to any more, or was not while this looked.
fn read_records(shared: &Shared, number: u32, slot: &Slot) -> io::Result<Vec<FooterRecord>> {
    let Some(file) = slot.file() else { return Ok(Vec::new()) };
    let slots = &shared.slots;
    if slot.state() == State::Sealed
        && let Identity::Sealed { trailer, .. } =
            scan::identify(&**file, slots.cache_id(), slots.segment_frames())?
        && trailer.key == slots.key(slot.segment_id())
    {
        match scan::read_footer(&**file, &trailer)? {
            Ok(records) => return Ok(records),
            Err(error) => {
                let file = shared.disk.segment_name(number);
                tracing::error!(
                    file,
                    error = &error as &dyn std::error::Error,
                    "a footer is damaged; scanning the segment"
                );
                shared.figures.bad_footers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(scan::walk(&**file, &slots.key(slot.segment_id()), slot.appended())?.records)
}

/// Most data that is moved with one append, bytes.
fn move_bytes(shared: &Shared) -> usize {
    let eighth = shared.slots.segment_frames() as usize * FRAME_BYTES / 8;
    MOVE_BYTES.min(eighth).max(REQUEST_BYTES_MAX)
}

/// What freeing a slot with `records` frees, frames. An end that was left unused counts as far as it is longer than moving
/// leaves one: a segment whose daemon was killed has next to nothing in it.
fn freed_frames(shared: &Shared, slot: &Slot, records: &[FooterRecord]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut footer = FooterBuilder::new();
    for record in records {
        footer.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    let used = frames(records.iter().map(|record| 1 + record.crcs.len()).sum());
    // Behind it comes the trailer.
    let end = slot.appended().saturating_add(frames(footer.encoded_len() / FRAME_BYTES)).saturating_add(1);
    let unused = shared.slots.segment_frames().saturating_sub(end);
    used.saturating_add(
        unused.saturating_sub(frames(move_bytes(shared) / FRAME_BYTES) + MOVE_OVERHEAD_FRAMES),
    )
}

/// Forgets what of `records`, all of slot `number`, is in the store, and returns whether there was anything.
fn forget(
    shared: &Shared,
    number: u32,
    slot: &Slot,
    records: &[FooterRecord],
    volumes: &HashMap<ExportId, Option<Arc<Volume>>>,
) -> io::Result<bool> {
    let clean_extents = slot.extents().saturating_sub(slot.dirty_extents());
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
    shared.book.evicted(&marks.iter().map(|(export, mark)| (*export, *mark)).collect::<Vec<_>>())?;
    let before = slot.live_sectors();
    for (entry, volume) in entries() {
        // What has been flushed since is not written down.
        if marks.get(&entry.export).is_some_and(|mark| entry.seq <= *mark) {
            volume.evict(&shared.slots, entry.range, entry.seq, number);
        }
    }
    let gone = before.saturating_sub(slot.live_sectors());
    shared.figures.evicted_bytes.fetch_add(gone.saturating_mul(SECTOR_BYTES), Ordering::Relaxed);
    Ok(gone > 0)
}

/// Adds what is still needed of `entry`, of a record at frame `position` in `slot`, to `runs`.
fn live_runs(volume: &Volume, entry: &Entry, slot: u32, position: u32, runs: &mut Vec<Run>) {
    let begin = runs.len();
    let first_frame = match entry.kind {
        EntryKind::Data { first_frame } => Some(first_frame),
        EntryKind::Zero => None,
    };
    volume.dirty_parts(entry.range, entry.seq, slot, |part| {
        let (from, to) = (part.start() - entry.range.start(), part.end() - entry.range.start());
        let run = match first_frame {
            None => Some(Run { entry: *entry, first: 0, frames: 0, range: part }),
            Some(first_frame) => {
                let whole = Run {
                    entry: *entry,
                    first: position + 1 + first_frame,
                    frames: u32::try_from(entry.data_frames()).unwrap_or(0),
                    range: entry.range,
                };
                let frame = |sectors: u64| u32::try_from(sectors).unwrap_or(u32::MAX);
                part_of(&whole, frame(from / FRAME_SECTORS), frame(to.div_ceil(FRAME_SECTORS)))
            }
        };
        let Some(run) = run else { return };
        match runs[begin..].last_mut() {
            Some(last) => match merge(last, &run) {
                Some(merged) => *last = merged,
                None => runs.push(run),
            },
            None => runs.push(run),
        }
    });
}

/// Frames `from..to` of `run`; `None` when that is nothing.
fn part_of(run: &Run, from: u32, to: u32) -> Option<Run> {
    if from >= to || to > run.frames {
        return None;
    }
    let start = run.range.start() + u64::from(from) * FRAME_SECTORS;
    let end = (run.range.start() + u64::from(to) * FRAME_SECTORS).min(run.range.end());
    let range = SectorRange::new(start, end.checked_sub(start)?)?;
    Some(Run { entry: run.entry, first: run.first + from, frames: to - from, range })
}

/// One run for both, if they touch or overlap; for zeroes always, because what is between them is newer.
fn merge(last: &Run, next: &Run) -> Option<Run> {
    let touches = last.frames == 0 || next.first <= last.first + last.frames;
    let frames = if last.frames == 0 { 0 } else { next.first + next.frames - last.first };
    let range = SectorRange::new(last.range.start(), next.range.end().checked_sub(last.range.start())?)?;
    touches.then_some(Run { frames, range, ..*last })
}

/// Frames that `runs` take in another segment, at most. What is estimated too low here is moved for ever.
fn frames_for(shared: &Shared, runs: &[Run]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let data: u32 = runs.iter().map(|run| run.frames).sum();
    // A run is no longer than a move, so two moves in a row are longer than one. A record header holds the entries and CRCs of
    // at least a hundred entries of one frame each.
    let moves = data.saturating_mul(2) / frames(move_bytes(shared) / FRAME_BYTES).max(1);
    data.saturating_add(moves).saturating_add(frames(runs.len() / 100)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::{Backing, Extent};
    use crate::cache::slots::Slots;
    use crate::cache::volume::Place;
    use crate::units::{ExportId, Seq};

    #[test]
    fn what_was_overwritten_in_part_moves_in_whole_frames_and_no_frame_twice() {
        let slots = Slots::new(2, 2, [0; 16], 64);
        slots.get(0).begin_use(1, 1);
        slots.get(1).begin_use(2, 1);
        let volume = Volume::new(ExportId(1));
        let range = |start, count| SectorRange::new(start, count).unwrap();
        let entry = Entry {
            export: ExportId(1),
            seq: Seq(1),
            range: range(100, 30),
            kind: EntryKind::Data { first_frame: 2 },
        };
        let place = Place { slot: 0, segment_id: 1, end: 9 };
        let newer = |start, count| Extent {
            range: range(start, count),
            seq: Seq(2),
            backing: Backing::Zero { slot: 1 },
        };
        volume
            .appended(
                &slots,
                Seq(1),
                [extent(&entry, 0, 10), newer(103, 2), newer(108, 14)].into_iter(),
                place,
            )
            .unwrap();
        let mut runs = Vec::new();
        live_runs(&volume, &entry, 0, 10, &mut runs);
        let run = |first, frames, range| Run { entry, first, frames, range };
        assert_eq!(runs, [run(13, 1, range(100, 8)), run(15, 2, range(116, 14))]);
    }
}
