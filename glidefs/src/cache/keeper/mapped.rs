//! The segments in memory for READs: which segments, and how far.
//!
//! Does not own the mappings (`log/mapping`). Invariants: no more frames are locked than the options allow; only appended frames are
//! locked; a segment of which a frame could not be locked is not locked any further, so a bad sector is met once.
//!
//! Locking a frame that is in memory costs about what a READ of the frame gains. So a segment is mapped, as far as it is appended, when
//! within seconds as many frames of the segment were read the other way as are to be locked: data that is written and not read costs
//! nothing. Where other segments have to make room, the oldest first, four times as many READs are asked for, of what comes and of what
//! goes: otherwise READs all over a large cache would map one segment after the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::log::info::SegmentInfo;
use crate::cache::log::mapping::Mapping;
use crate::cache::shared::Shared;
use crate::observe::repeat::Repeat;

/// Time from the end of one look at the segments to the next look.
const PAUSE: Duration = Duration::from_millis(100);
/// After so long a frame read counts half.
const HALVING: Duration = Duration::from_secs(10);
/// How many READs of a frame are worth another frame's place.
const READS_FOR_A_PLACE: u64 = 4;
/// Most frames locked in one look: 64 MiB.
const FRAMES_A_LOOK: u32 = 1 << 14;
/// Frames locked at once: 1 MiB. Between two such pieces the keeper notices who waits.
const FRAMES_AT_ONCE: u32 = 256;

/// A segment in one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    number: u32,
    segment_id: u64,
}

impl Use {
    /// The segment, while it is in this use.
    fn info(self, shared: &Shared) -> Option<&SegmentInfo> {
        Some(shared.table.get(self.number)).filter(|info| info.segment_id() == self.segment_id)
    }

    /// The mapping that READs find, while the segment is in this use.
    fn mapping(self, shared: &Shared) -> Option<Arc<Mapping>> {
        Option::clone(&self.info(shared)?.mapping())
    }

    fn locked(self, shared: &Shared) -> u32 {
        self.mapping(shared).map_or(0, |mapping| mapping.locked())
    }
}

/// The segments that are mapped.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// In the order of mapping.
    mapped: Vec<Use>,
    /// No longer found by READs, and still in the hands of one: a READ holds a mapping while it copies.
    leaving: Vec<Arc<Mapping>>,
    /// Segments of which a frame could not be locked, or had other bytes than were acknowledged.
    failed: Vec<Use>,
    look_at: Duration,
    halve_at: Duration,
    failures: Repeat,
}

impl Mapped {
    /// Looks at the segments at times, and locks what was read often. Reads the disk for frames that are not in memory.
    pub fn step(&mut self, shared: &Shared) {
        let now = shared.clock.now();
        if shared.mapped_frames_max == 0 || now < self.look_at {
            return;
        }
        let halves = now >= self.halve_at;
        if halves {
            self.halve_at = now.saturating_add(HALVING);
        }
        self.forget(shared);
        let mut left = FRAMES_A_LOOK;
        for (number, info) in shared.table.iter().filter(|(_, info)| info.missed_frames() > 0) {
            let one = Use { number, segment_id: info.segment_id() };
            left = left.saturating_sub(self.lock_if_worth(shared, one, left));
            if halves {
                info.set_missed_frames(info.missed_frames() / 2);
            }
        }
        shared.set_mapped(!self.mapped.is_empty());
        // Locking may have waited for the disk.
        self.look_at = shared.clock.now().saturating_add(PAUSE);
    }

    /// Forgets segments that were freed, or that READs gave up, and mappings that no READ holds any more.
    fn forget(&mut self, shared: &Shared) {
        self.failed.retain(|one| one.info(shared).is_some());
        for one in self.mapped.clone() {
            match one.mapping(shared) {
                Some(mapping) if mapping.is_given_up() => {
                    // The page may stay wrong in memory, and would be met again.
                    self.failed.push(one);
                }
                Some(_) => continue,
                None => {}
            }
            self.unmap(shared, one);
        }
        self.leaving.retain(|mapping| Arc::strong_count(mapping) > 1);
    }

    /// Locks the frames appended to segment `one`, at most `most`, if they were read often enough. Returns how many frames were locked.
    fn lock_if_worth(&mut self, shared: &Shared, one: Use, most: u32) -> u32 {
        let Some(info) = one.info(shared).filter(|info| one.segment_id != 0 && !info.loses_pages()) else {
            return 0;
        };
        let (end, before) = (info.appended(), one.locked(shared));
        let more = end.saturating_sub(before);
        let is_worth = more > 0 && more <= most && info.missed_frames() >= more;
        if !is_worth || self.failed.contains(&one) || !self.make_room(shared, one, more) {
            return 0;
        }
        if let Err(error) = self.lock(shared, one, info, end) {
            self.failed.push(one);
            self.report(shared, one.number, &error);
        }
        let locked = one.locked(shared);
        if locked == end {
            info.set_missed_frames(0);
        }
        locked.saturating_sub(before)
    }

    /// Locks the frames of segment `one` before `end`, and maps the segment before if it is not. Ends early when somebody waits for the
    /// keeper; the next look goes on.
    fn lock(&mut self, shared: &Shared, one: Use, info: &SegmentInfo, end: u32) -> io::Result<()> {
        let mapping = match one.mapping(shared) {
            Some(mapping) => mapping,
            None => {
                let file = info.file().map(|file| file.map(shared.table.segment_bytes()));
                let Some(mapping) = file.transpose()?.flatten().map(Arc::new) else { return Ok(()) };
                info.set_mapping(Some(Arc::clone(&mapping)));
                self.mapped.retain(|other| *other != one);
                self.mapped.push(one);
                mapping
            }
        };
        while mapping.locked() < end && !shared.is_keeper_needed() {
            mapping.lock(mapping.locked().saturating_add(FRAMES_AT_ONCE).min(end))?;
        }
        Ok(())
    }

    /// Makes room for `more` frames of segment `of`: unmaps the segments mapped first. `false` where that is not worth the READs, or not
    /// enough.
    fn make_room(&mut self, shared: &Shared, of: Use, more: u32) -> bool {
        let missed = of.info(shared).map_or(0, |info| u64::from(info.missed_frames()));
        let of_mapped = self.mapped.iter().map(|one| u64::from(one.locked(shared)));
        let of_leaving = self.leaving.iter().map(|mapping| u64::from(mapping.locked()));
        let mut locked = of_mapped.chain(of_leaving).sum::<u64>().saturating_add(u64::from(more));
        while locked > shared.mapped_frames_max {
            let Some(oldest) = self.mapped.iter().find(|one| **one != of).copied() else { return false };
            let frames = oldest.locked(shared);
            if missed < u64::from(frames.max(more)).saturating_mul(READS_FOR_A_PLACE) {
                return false;
            }
            if !self.unmap(shared, oldest) {
                // The room comes when the READ has ended.
                return false;
            }
            locked = locked.saturating_sub(u64::from(frames));
        }
        true
    }

    /// Unmaps a segment; `false` if a READ still holds the mapping.
    fn unmap(&mut self, shared: &Shared, one: Use) -> bool {
        self.mapped.retain(|other| *other != one);
        let found = one.info(shared).and_then(|info| info.set_mapping(None));
        // Whoever holds the mapping is counted since the mapping cannot be found any more.
        let held = found.filter(|mapping| Arc::strong_count(mapping) > 1);
        let is_gone = held.is_none();
        self.leaving.extend(held);
        is_gone
    }

    fn report(&self, shared: &Shared, number: u32, error: &io::Error) {
        if let Some(suppressed) = self.failures.pass() {
            tracing::warn!(
                file = shared.disk.segment_name(number),
                error = error as &dyn std::error::Error,
                suppressed,
                "a segment cannot be locked in memory, so READs of its data are slower: either the disk did not read the data, or memory \
                 that may be locked is short; then raise its limit (ulimit -l, LimitMEMLOCK), or lower cache.mapped_max"
            );
        }
    }
}
