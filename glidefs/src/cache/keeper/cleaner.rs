//! Cleaning: forgetting the data of a segment that is in the store and moving the data that is not, to free the segment.
//!
//! Also empties segments that did not become stable, and segments whose file is not to be used again. Invariants: moved data
//! keeps its sequence number, so a copy never hides newer data; a move never needs more frames than the move frees; before data
//! is forgotten, the catalog notes that nothing as old may be taken from the log any more, because older copies of the same
//! sectors may still be in other segments.

mod moving;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::prepare::Preparer;
use super::sealing::heal;
use crate::cache::log::batch::Batch;
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::units::FRAME_SECTORS;

/// Most segments whose records are read in one step.
const CANDIDATES: usize = 8;
/// Divisors of a segment: cleaning must free at least this part. The first holds without a store, and with a store once no more than the
/// reserve is free; the urgent one holds without a store once no more than the reserve is free.
const GAIN_DIVISOR: u32 = 8;
const GAIN_DIVISOR_URGENT: u32 = 64;
/// The divisor with a store while more is free: a writeback frees more than a move, but nothing of data that can never be written back.
const GAIN_DIVISOR_STORE: u32 = 2;

/// Failures of the disk in a row after which cleaning goes on in another segment.
const FAILURES_MAX: u32 = 8;

/// Tries to read a frame before the frame is given up, and the pause between two tries: a disk may come back, for example one
/// behind a network.
const LOOKS_MAX: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Segment id, extents, extents not in the store and live sectors of a segment.
type Counts = (u64, u32, u32, u64);

/// The state of cleaning between two steps.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// The segment data moves to.
    segment: Option<SegmentWriter>,
    /// How often in a row the disk did not take moved data.
    failures: u32,
    /// Segments not worth cleaning.
    passed: HashMap<u32, Passed>,
    /// Segments with frames the disk does not read.
    unread: HashMap<u32, Unread>,
    /// Writebacks ended at the last step. While a volume takes note of a cut in the store, content of the cut counts as clean and
    /// cannot be forgotten yet: after the writeback, segments passed over are judged anew.
    writebacks_ended: u64,
}

/// A segment while it is emptied.
struct Emptying<'a> {
    shared: &'a Shared,
    cleaner: &'a mut Cleaner,
    preparer: &'a mut Preparer,
    number: u32,
    info: &'a SegmentInfo,
    /// Frames that the disk does not read are given up.
    gives_up: bool,
    /// Number of frames that the disk did not read.
    unread_frames: u32,
    batch: Batch,
    /// The data of `batch`; `volumes` has the volume of each entry.
    data: Vec<u8>,
    volumes: Vec<Arc<Volume>>,
}

/// A segment passed over: cleaning would not have freed `gain_min` frames while the counts were these.
#[derive(Clone, Copy, Debug)]
struct Passed {
    counts: Counts,
    gain_min: u32,
}

/// A segment with frames the disk did not read.
#[derive(Clone, Copy, Debug)]
struct Unread {
    segment_id: u64,
    looks: u32,
    /// The segment is not cleaned again before this time.
    again: Duration,
}

/// Why the cleaning of a segment stopped half-way.
#[derive(Debug)]
enum Halt {
    /// There is no segment to move to, or the disk does not take data now.
    NoRoom,
    /// The catalog did not take a note that must be stable before data is forgotten.
    Disk(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl Cleaner {
    /// Makes the segment data moves to stable again after a failed sync.
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

    /// Cleans one segment if cleaning is due, and returns whether a segment was cleaned.
    pub fn step(&mut self, shared: &Shared, preparer: &mut Preparer, free: u32) -> bool {
        if self.segment.as_ref().is_some_and(|segment| shared.table.get(segment.number).is_poisoned()) {
            return false;
        }
        let bad = shared.table.iter().find(|(number, info)| {
            (info.is_poisoned() || info.is_retired())
                && info.extents() > 0
                && !self.was_passed(shared, *number, info, 0)
        });
        if let Some((number, _)) = bad {
            return self.clean(shared, preparer, number, 0);
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
            if self.clean(shared, preparer, number, gain_min) {
                return true;
            }
        }
        false
    }

    /// Sealed segments with little to move, the ones with the least first, and among equals the oldest.
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
                    && !self.was_passed(shared, *number, info, gain_min)
            })
            // An extent takes at least one frame, unless the extent shares the frame with another.
            .map(|(number, info)| {
                let moving = (info.dirty_sectors() / FRAME_SECTORS).max(u64::from(info.dirty_extents()));
                (moving, info.segment_id(), number)
            })
            .collect();
        found.sort_unstable();
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Whether a segment, unchanged since, was passed over when no more frames were asked for than `gain_min`: a gain too small at
    /// leisure may be enough when cleaning is urgent.
    fn was_passed(&self, shared: &Shared, number: u32, info: &SegmentInfo, gain_min: u32) -> bool {
        if let Some(unread) = self.unread.get(&number).filter(|unread| unread.segment_id == info.segment_id())
        {
            return shared.clock.now() < unread.again;
        }
        self.passed
            .get(&number)
            .is_some_and(|passed| passed.counts == counts(info) && passed.gain_min <= gain_min)
    }

    /// Moves everything needed out of segment number `number`, if moving frees `gain_min` frames; with 0 in any case.
    fn clean(&mut self, shared: &Shared, preparer: &mut Preparer, number: u32, gain_min: u32) -> bool {
        let info = shared.table.get(number);
        let segment_id = info.segment_id();
        let looks = self.unread.get(&number).filter(|unread| unread.segment_id == segment_id);
        let looks = looks.map_or(0, |unread| unread.looks) + 1;
        let gives_up = looks >= LOOKS_MAX;
        let mut emptying = Emptying {
            shared,
            cleaner: self,
            preparer,
            number,
            info,
            gives_up,
            unread_frames: 0,
            batch: Batch::default(),
            data: Vec::new(),
            volumes: Vec::new(),
        };
        let moved = emptying.run(gain_min);
        let unread_frames = emptying.unread_frames;
        self.unread.remove(&number);
        if unread_frames > 0 && !gives_up {
            let again = shared.clock.now().saturating_add(LOOK_PAUSE);
            self.unread.insert(number, Unread { segment_id, looks, again });
        }
        let cleaned = match moved {
            Ok(cleaned) => cleaned,
            Err(Halt::NoRoom) => return false,
            Err(Halt::Disk(error)) => {
                shared.report(number, &error, "noting in the catalog which data leaves the cache failed");
                false
            }
        };
        if info.extents() == 0 {
            self.passed.remove(&number);
            shared.figures.segments_cleaned.fetch_add(1, Ordering::Relaxed);
        } else {
            self.passed.insert(number, Passed { counts: counts(info), gain_min });
        }
        cleaned
    }
}

/// The counts of a segment: while they are the same, nothing in the segment has changed.
fn counts(info: &SegmentInfo) -> Counts {
    (info.segment_id(), info.extents(), info.dirty_extents(), info.live_sectors())
}
