//! The segments in memory for READs: which segments, and how far.
//!
//! Does not own the mappings (`log/mapping`). Invariants: no more frames are locked than the options allow, but for those that a READ
//! still looks at; only appended frames are locked.
//!
//! To map and lock a frame costs about as much as a READ of the frame from the page cache costs more than one from a mapping. So a
//! segment is mapped, as far as it is appended, when as many of its frames were read from the page cache as it has: whatever comes then,
//! no more than twice the least possible cost was paid. Data that is written and not read costs nothing. Where another segment has to
//! make room, four times as many reads are asked for: otherwise reads all over a large cache would map one segment after the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::log::info::SegmentInfo;
use crate::cache::log::mapping::Mapping;
use crate::cache::shared::Shared;
use crate::observe::repeat::Repeat;

/// Time from one look at the segments to the next.
const PAUSE: Duration = Duration::from_millis(100);
/// After so long a read counts half.
const HALVING: Duration = Duration::from_secs(10);
/// How many reads of a frame are worth another frame's place.
const READS_FOR_A_PLACE: u64 = 4;
/// Frames that are locked in one step, unless a single segment has more: 64 MiB.
const FRAMES_AT_ONCE: u64 = 1 << 14;

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
}

/// The segments that are mapped.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// In the order of mapping.
    mapped: Vec<Use>,
    /// No longer found by READs; READs that found one before may still look at it.
    leaving: Vec<Arc<Mapping>>,
    look_at: Duration,
    halve_at: Duration,
    failures: Repeat,
}

impl Mapped {
    /// Maps and locks the segments that were read often. Waits for the disk only for pages that the kernel has dropped since.
    pub fn step(&mut self, shared: &Shared) {
        self.leaving.retain(|mapping| Arc::strong_count(mapping) > 1);
        self.forget(shared);
        let now = shared.clock.now();
        if shared.mapped_frames_max == 0 || now < self.look_at {
            return;
        }
        self.look_at = now.saturating_add(PAUSE);
        let halves = now >= self.halve_at;
        if halves {
            self.halve_at = now.saturating_add(HALVING);
        }
        let mut left = FRAMES_AT_ONCE;
        for (number, info) in shared.table.iter().filter(|(_, info)| info.missed_frames() > 0) {
            let one = Use { number, segment_id: info.segment_id() };
            let locked = one.mapping(shared).map_or(0, |mapping| mapping.locked());
            let more = u64::from(info.appended().saturating_sub(locked));
            if left > 0 && self.is_worth(shared, one, info, more) {
                self.lock(shared, one);
                info.set_missed_frames(0);
                left = left.saturating_sub(more);
            } else if halves {
                info.set_missed_frames(info.missed_frames() / 2);
            }
        }
    }

    /// Whether `more` frames of segment `one` were read so often that they should be locked; makes room for them.
    fn is_worth(&mut self, shared: &Shared, one: Use, info: &SegmentInfo, more: u64) -> bool {
        let missed = u64::from(info.missed_frames());
        let is_known = one.segment_id != 0 && info.segment_id() == one.segment_id;
        is_known && more > 0 && missed >= more && self.make_room(shared, one, more, missed)
    }

    /// Forgets segments that were freed, or whose mapping was given up.
    fn forget(&mut self, shared: &Shared) {
        let Self { mapped, leaving, .. } = self;
        mapped.retain(|one| match one.mapping(shared) {
            Some(mapping) if mapping.is_given_up() => {
                leaving.extend(one.info(shared).and_then(|info| info.set_mapping(None)));
                false
            }
            found => found.is_some(),
        });
    }

    /// Locks all frames appended to segment `one`, and maps the segment before if it is not.
    fn lock(&mut self, shared: &Shared, one: Use) {
        let Some(info) = one.info(shared) else { return };
        let (end, mapping) = (info.appended(), one.mapping(shared));
        let mapping = match mapping {
            Some(mapping) => Ok(Some(mapping)),
            None => {
                info.file().map_or(Ok(None), |file| file.map(shared.table.segment_bytes())).map(|mapping| {
                    let mapping = Arc::new(mapping?);
                    info.set_mapping(Some(Arc::clone(&mapping)));
                    self.mapped.push(one);
                    Some(mapping)
                })
            }
        };
        if let Err(error) = mapping.and_then(|mapping| mapping.map_or(Ok(()), |mapping| mapping.lock(end))) {
            self.unmap(shared, one);
            self.report(shared, one.number, &error);
        }
    }

    /// Makes room for `frames` more frames of segment `of`, `missed` of which were read: unmaps the segments mapped first. `false` where
    /// that is not worth the reads, or is not enough.
    fn make_room(&mut self, shared: &Shared, of: Use, frames: u64, missed: u64) -> bool {
        let locked = |one: &Use| one.mapping(shared).map_or(0, |mapping| u64::from(mapping.locked()));
        while self.mapped.iter().map(locked).sum::<u64>().saturating_add(frames) > shared.mapped_frames_max {
            let oldest = self.mapped.iter().find(|one| **one != of).copied();
            match oldest {
                Some(oldest) if missed >= frames.saturating_mul(READS_FOR_A_PLACE) => {
                    self.unmap(shared, oldest);
                }
                _ => return false,
            }
        }
        true
    }

    fn unmap(&mut self, shared: &Shared, one: Use) {
        self.mapped.retain(|other| *other != one);
        self.leaving.extend(one.info(shared).and_then(|info| info.set_mapping(None)));
    }

    fn report(&self, shared: &Shared, number: u32, error: &io::Error) {
        if let Some(suppressed) = self.failures.pass() {
            tracing::warn!(
                file = shared.disk.segment_name(number),
                error = error as &dyn std::error::Error,
                suppressed,
                "a segment cannot be kept in memory, so READs of its data are slower: if memory that may be locked is short, raise its limit \
                 (ulimit -l, LimitMEMLOCK), or lower cache.mapped_max"
            );
        }
    }
}
