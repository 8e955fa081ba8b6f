//! Cleaning: forgetting what the store has of a segment and moving what it has not, so that the segment can be freed.
//!
//! Also empties segments whose disk failed to make them stable. Invariants: what moves keeps its sequence number, so it
//! never hides anything newer; frames move only when their checksum is right, and unchanged; in the place of a frame that the
//! disk does not give back an entry moves that says so, so that nothing older takes the place of that frame's sectors; a move
//! never needs more frames than it frees; before anything is forgotten it is written down that nothing as old may be taken from the log
//! any more, because older copies of the same sectors may still be in other segments.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::prepare::Preparer;
use super::runs::{Run, live_runs, part_of, records};
use super::syncing::{heal, report};
use crate::cache::log::batch::{Batch, HEADERS_MAX};
use crate::cache::log::format::CLEANER;
use crate::cache::log::format::{Entry, EntryKind, FooterBuilder, FooterRecord, frame_crc};
use crate::cache::log::life::State;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::scan::{offset, read_again};
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::table::SegmentInfo;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::extent;
use crate::units::{ExportId, FRAME_BYTES, FRAME_SECTORS, REQUEST_BYTES_MAX, SECTOR_BYTES};

/// Data moved with one append, bytes; in small segments an eighth of one, or the longest entry.
const MOVE_BYTES: usize = 1 << 20;
/// Frames of a record's header and of its part of a footer, at most.
const MOVE_OVERHEAD_FRAMES: u32 = 8;
/// Segments looked at closely in one step.
const CANDIDATES: usize = 8;
/// Part of a segment that cleaning it must free, as a divisor: when there is time, and when there is not.
const GAIN_DIVISOR: u32 = 8;
const GAIN_DIVISOR_URGENT: u32 = 64;
/// The same where there is a store, and time: a flush frees more than moving does, but not what can never be stored.
const GAIN_DIVISOR_STORE: u32 = 2;

/// Failures of the disk in a row after which cleaning goes on in another segment.
const FAILURES_MAX: u32 = 8;

/// Looks at a frame that the disk does not read before the frame is given up, and the pause between two of them: a disk may
/// come back, as one behind a network does.
const LOOKS_MAX: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Segment id, extents, those of them that are not in the store, and sectors of a segment.
type Counts = (u64, u32, u32, u64);

/// What cleaning keeps from one step to the next.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// Where data moves to.
    segment: Option<SegmentWriter>,
    /// Times in a row that the disk failed there.
    failures: u32,
    /// Segments that were not worth it, with the counts they had then.
    passed: HashMap<u32, Counts>,
    /// Segments with frames that the disk does not read.
    unread: HashMap<u32, Unread>,
    /// Cuts that had reached the store then. While one is taken note of, what it holds counts as clean and is not yet.
    writebacks_ended: u64,
    batch: Batch,
    /// Data of `batch`, and the volumes of its entries.
    data: Vec<u8>,
    volumes: Vec<Arc<Volume>>,
    /// What to do with a frame that the disk does not read, and how many there were, in the segment that is being cleaned.
    gives_up: bool,
    unread_frames: u32,
}

/// A segment with frames that the disk did not read.
#[derive(Clone, Copy, Debug)]
struct Unread {
    segment_id: u64,
    looks: u32,
    /// When to look again.
    again: Duration,
}

/// Why a segment was left half-way.
#[derive(Debug)]
enum Halt {
    /// There is no segment to move to, or its disk does not take data now.
    NoRoom,
    /// What must outlive the cache could not be written down.
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
        let poisoned = |segment: &&SegmentWriter| shared.table.get(segment.number).is_poisoned();
        if let Some(segment) = self.segment.as_ref().filter(poisoned)
            && !heal(shared, shared.table.get(segment.number), segment)
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
        if self.segment.as_ref().is_some_and(|segment| shared.table.get(segment.number).is_poisoned()) {
            return false;
        }
        let bad = shared.table.iter().find(|(number, info)| {
            (info.is_poisoned() || info.is_retired())
                && info.extents() > 0
                && !self.was_passed(shared, *number, info)
        });
        if let Some((number, info)) = bad {
            return self.clean(shared, preparer, number, info, None);
        }
        if free >= shared.watermarks.clean_below {
            return false;
        }
        let ended = shared.writebacks_ended.load(Ordering::Acquire);
        if ended != std::mem::replace(&mut self.writebacks_ended, ended) {
            self.passed.clear();
        }
        let divisor = match (shared.has_store(), free <= RESERVE) {
            (true, false) => GAIN_DIVISOR_STORE,
            (true, true) | (false, false) => GAIN_DIVISOR,
            (false, true) => GAIN_DIVISOR_URGENT,
        };
        let gain_min = (shared.table.segment_frames() / divisor).max(2);
        for number in self.candidates(shared, gain_min) {
            if self.clean(shared, preparer, number, shared.table.get(number), Some(gain_min)) {
                return true;
            }
        }
        false
    }

    /// Sealed segments with little to move in them, those with least first, and of those the oldest.
    fn candidates(&self, shared: &Shared, gain_min: u32) -> Vec<u32> {
        let frames = u64::from(shared.table.segment_frames());
        let mut found: Vec<(u64, u64, u32)> = shared
            .table
            .iter()
            .filter(|(number, info)| {
                info.state() == State::Sealed
                    && !info.is_poisoned()
                    && info.extents() > 0
                    && info.dirty_sectors() / FRAME_SECTORS + u64::from(gain_min) <= frames
                    && !self.was_passed(shared, *number, info)
            })
            // An extent takes a frame at least, unless it shares one.
            .map(|(number, info)| {
                let moving = (info.dirty_sectors() / FRAME_SECTORS).max(u64::from(info.dirty_extents()));
                (moving, info.segment_id(), number)
            })
            .collect();
        found.sort_unstable();
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, _, number)| number).collect()
    }

    fn was_passed(&self, shared: &Shared, number: u32, info: &SegmentInfo) -> bool {
        if let Some(unread) = self.unread.get(&number).filter(|unread| unread.segment_id == info.segment_id())
        {
            return shared.clock.now() < unread.again;
        }
        self.passed.get(&number) == Some(&counts(info))
    }

    /// Moves everything needed out of segment `number`, if that frees `gain_min` frames.
    fn clean(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        info: &SegmentInfo,
        gain_min: Option<u32>,
    ) -> bool {
        let segment_id = info.segment_id();
        let looks = self.unread.get(&number).filter(|unread| unread.segment_id == segment_id);
        let looks = looks.map_or(0, |unread| unread.looks) + 1;
        (self.gives_up, self.unread_frames) = (looks >= LOOKS_MAX, 0);
        let moved = self.try_clean(shared, preparer, number, info, gain_min);
        self.unread.remove(&number);
        if self.unread_frames > 0 && !self.gives_up {
            let again = shared.clock.now().saturating_add(LOOK_PAUSE);
            self.unread.insert(number, Unread { segment_id, looks, again });
        }
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        let cleaned = match moved {
            Ok(cleaned) => cleaned,
            Err(Halt::NoRoom) => return false,
            Err(Halt::Disk(error)) => {
                report(shared, number, &error, "noting what leaves the cache failed");
                false
            }
        };
        if info.extents() == 0 {
            self.passed.remove(&number);
            shared.figures.segments_cleaned.fetch_add(1, Ordering::Relaxed);
        } else {
            self.passed.insert(number, counts(info));
        }
        cleaned
    }

    fn try_clean(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        info: &SegmentInfo,
        gain_min: Option<u32>,
    ) -> Result<bool, Halt> {
        let records = records(shared, number, info);
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
            frames_for(shared, &runs).saturating_add(gain_min) > freed_frames(shared, info, &records)
        }) {
            return Ok(false);
        }
        for run in &runs {
            if let Some(Some(volume)) = volumes.get(&run.entry.export) {
                self.add(shared, preparer, info, number, run, volume)?;
            }
        }
        self.append(shared, preparer, number)?;
        let forgotten = forget(shared, number, info, &records, &volumes)?;
        Ok(forgotten || !runs.is_empty())
    }

    /// Puts `run` into the batch, and an entry in the place of each frame that is lost.
    fn add(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        info: &SegmentInfo,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
    ) -> Result<(), Halt> {
        if run.frames == 0 {
            return self.add_without_data(shared, preparer, number, run, run.entry.kind, volume);
        }
        let Some(file) = info.file() else { return Ok(()) };
        let bytes = run.frames as usize * FRAME_BYTES;
        if !self.batch.fits(1, run.frames as usize) || self.data.len() + bytes > move_bytes(shared) {
            self.append(shared, preparer, number)?;
        }
        let at = self.data.len();
        self.data.resize(at + bytes, 0);
        if let Err(error) = read_again(&**file, &mut self.data[at..], offset(run.first)) {
            self.data.truncate(at);
            if run.frames == 1 {
                return self.unread(shared, preparer, info, number, run, volume, &error);
            }
            // One frame that the disk does not read must not take those beside it.
            for frame in (0..run.frames).filter_map(|frame| part_of(run, frame, frame + 1)) {
                self.add(shared, preparer, info, number, &frame, volume)?;
            }
            return Ok(());
        }
        let crcs_of = |data: &[u8]| data.chunks_exact(FRAME_BYTES).map(frame_crc).collect::<Vec<u32>>();
        let are_intact =
            |crcs: &[u32]| (run.first..).zip(crcs).all(|(frame, crc)| info.crc(frame) == Some(*crc));
        let mut crcs = crcs_of(&self.data[at..]);
        // The copy in the page cache may be what went wrong.
        if run.frames == 1 && !are_intact(&crcs) {
            if let Err(error) = file.read_from_disk(&mut self.data[at..], offset(run.first)) {
                self.data.truncate(at);
                return self.unread(shared, preparer, info, number, run, volume, &error);
            }
            crcs = crcs_of(&self.data[at..]);
        }
        if !are_intact(&crcs) {
            self.data.truncate(at);
            if run.frames == 1 {
                shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                let reason = "the data does not match its checksum";
                return self.lose(shared, preparer, number, run, volume, reason);
            }
            // A long read may have gone past the page cache, which alone has a frame that a failed sync did not write.
            for frame in (0..run.frames).filter_map(|frame| part_of(run, frame, frame + 1)) {
                self.add(shared, preparer, info, number, &frame, volume)?;
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

    /// Puts what is known of the sectors of `run` into the batch, which has no data.
    fn add_without_data(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        run: &Run,
        kind: EntryKind,
        volume: &Arc<Volume>,
    ) -> Result<(), Halt> {
        if !self.batch.fits(1, 0) {
            self.append(shared, preparer, number)?;
        }
        if self.batch.push_entry(Entry { range: run.range, kind, ..run.entry }).is_ok() {
            self.volumes.push(Arc::clone(volume));
        }
        Ok(())
    }

    /// Takes note that the disk did not read the frame of `run`, and gives the frame up when that has happened often enough.
    #[expect(clippy::too_many_arguments, reason = "a frame, and where it goes")]
    fn unread(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        info: &SegmentInfo,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
        error: &io::Error,
    ) -> Result<(), Halt> {
        self.unread_frames += 1;
        if self.gives_up {
            info.retire();
            return self.lose(shared, preparer, number, run, volume, "the disk does not read it");
        }
        if self.unread_frames == 1 {
            report(shared, number, error, "reading data that must move failed; it is read again in a second");
        }
        Ok(())
    }

    /// Puts into the batch that the frame of `run` is lost.
    fn lose(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
        reason: &'static str,
    ) -> Result<(), Halt> {
        if let Err(error) = shared.expect_damage() {
            report(shared, number, &error, "writing cache.meta failed; damaged data stays where it is");
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
        self.add_without_data(shared, preparer, number, run, EntryKind::Damaged, volume)
    }

    /// Appends the batch, which comes from segment `from`, and makes the copies the ones to read.
    fn append(&mut self, shared: &Shared, preparer: &mut Preparer, from: u32) -> Result<(), Halt> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let table = &shared.table;
        let fits = self.segment.as_ref().is_some_and(|segment| {
            segment.has_room_for(table, &self.batch, 0, 0)
                && (self.failures < FAILURES_MAX)
                && !table.get(segment.number).is_poisoned()
        });
        if !fits {
            if let Some(full) = self.segment.take() {
                shared.close(full);
            }
            self.failures = 0;
            self.segment = preparer.prepare(shared, CLEANER, 0);
        }
        let Some(mut segment) = self.segment.take() else { return Err(Halt::NoRoom) };
        let position = match segment.append(table, &mut self.batch, std::iter::once(&self.data[..])) {
            Ok(position) => position,
            Err(error) => {
                // Tried again in the same place: to leave it would take one more of the few free segments.
                if self.failures == 0 {
                    report(
                        shared,
                        segment.number,
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
            if let Some(copy) = extent(entry, segment.number, position) {
                volume.relocated(table, copy, from);
            }
        }
        shared.figures.cleaned_bytes.fetch_add(self.data.len() as u64, Ordering::Relaxed);
        self.segment = Some(segment);
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        Ok(())
    }
}

/// Tells whether anything changed in a segment since it was passed over.
fn counts(info: &SegmentInfo) -> Counts {
    (info.segment_id(), info.extents(), info.dirty_extents(), info.live_sectors())
}

/// Most data that is moved with one append, bytes.
fn move_bytes(shared: &Shared) -> usize {
    let eighth = shared.table.segment_frames() as usize * FRAME_BYTES / 8;
    MOVE_BYTES.min(eighth).max(REQUEST_BYTES_MAX)
}

/// What freeing a segment with `records` frees, frames. An end that was left unused counts as far as it is longer than moving
/// leaves one: a segment whose daemon was killed has next to nothing in it.
fn freed_frames(shared: &Shared, info: &SegmentInfo, records: &[FooterRecord]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut footer = FooterBuilder::new();
    for record in records {
        footer.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    let used = frames(records.iter().map(|record| 1 + record.crcs.len()).sum());
    // Behind it comes the trailer.
    let end = info.appended().saturating_add(frames(footer.encoded_len() / FRAME_BYTES)).saturating_add(1);
    let unused = shared.table.segment_frames().saturating_sub(end);
    used.saturating_add(
        unused.saturating_sub(frames(move_bytes(shared) / FRAME_BYTES) + MOVE_OVERHEAD_FRAMES),
    )
}

/// Forgets what of `records`, all of segment `number`, is in the store, and returns whether there was anything.
fn forget(
    shared: &Shared,
    number: u32,
    info: &SegmentInfo,
    records: &[FooterRecord],
    volumes: &HashMap<ExportId, Option<Arc<Volume>>>,
) -> io::Result<bool> {
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
        // What has been stored since is not written down.
        if marks.get(&entry.export).is_some_and(|mark| entry.seq <= *mark) {
            volume.evict(&shared.table, entry.range, entry.seq, number);
        }
    }
    let gone = before.saturating_sub(info.live_sectors());
    shared.figures.evicted_bytes.fetch_add(gone.saturating_mul(SECTOR_BYTES), Ordering::Relaxed);
    Ok(gone > 0)
}

/// Frames that `runs` take in another segment, at most. What is estimated too low here is moved for ever.
fn frames_for(shared: &Shared, runs: &[Run]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let data: u32 = runs.iter().map(|run| run.frames).sum();
    // A run is no longer than a move, so two moves in a row are longer than one. A record header holds the entries and CRCs of
    // at least a hundred entries of one frame each.
    let moves = data.saturating_mul(2) / frames(move_bytes(shared) / FRAME_BYTES).max(1);
    let records = moves.saturating_add(frames(runs.len() / 100)).saturating_add(1);
    data.saturating_add(records.saturating_mul(frames(HEADERS_MAX)))
}
