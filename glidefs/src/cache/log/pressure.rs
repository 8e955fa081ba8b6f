//! How full is too full: when cleaning starts, when writes are slowed, and by how much.
//!
//! Does not own the pauses (the worker) or the cleaning (the keeper). Invariant: the last [`RESERVE`] free segments are for
//! cleaning only, so that there is always room to make room.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Free segments that only cleaning may take: the segment that the cleaner fills, and the next one, which the cleaner may need
/// before the segment being emptied is free.
pub(in crate::cache) const RESERVE: u32 = 2;

/// Longest pause for each frame: the pause when only the reserve is free.
const PAUSE_PER_FRAME_MAX: Duration = Duration::from_micros(200);

/// Numbers of free segments at which something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Watermarks {
    /// Cleaning starts when fewer segments are free.
    pub clean_below: u32,
    /// All data at risk is written back when fewer segments are free or hold only data that is also in the store.
    pub writeback_below: u32,
    /// Writes are slowed when fewer segments are free: cleaning does not keep up.
    pub delay_below: u32,
}

impl Watermarks {
    /// The watermarks of a cache of `segments` segments and `shards` shards.
    pub fn new(segments: u32, shards: u32) -> Self {
        // A tenth of the segments; more than the reserve in a small cache; and no more than the reserve, a segment for each shard
        // and a twentieth of the segments.
        let clean_below = (segments / 10).clamp(RESERVE + 1, RESERVE + shards.max(1) + segments / 20);
        Self {
            clean_below,
            writeback_below: clean_below.saturating_add(segments / 5),
            delay_below: RESERVE + segments / 20,
        }
    }

    /// Fewer free segments than these are scarce: shards do without segments that they can do without. A full cache of 50 segments and more
    /// has more, because cleaning starts before; a smaller one has not.
    pub fn scarce_below(self) -> u32 {
        self.delay_below.max(RESERVE + 1)
    }

    /// So many free segments stay when a shard is given one that it can do without: so many that none are scarce when all `shards` have
    /// one, but not more than cleaning keeps free in a full cache of 50 segments and more.
    pub fn kept_from_through(self, shards: u32) -> u32 {
        let for_all = self.scarce_below().saturating_add(shards);
        for_all.min(self.clean_below.saturating_sub(1)).max(self.scarce_below())
    }

    /// Bytes of data that a log of `segments` segments has room for, whatever the order of the writes: without the segments which
    /// must be free for cleaning, without `owned` segments of shards, and without an eighth of each other segment, for which no
    /// segment is cleaned (`keeper/cleaner`). At least a quarter of all.
    pub fn room_bytes(self, segments: u32, owned: u32, segment_bytes: u64) -> u64 {
        let others = segments.saturating_sub(self.clean_below.saturating_add(owned));
        let usable = others.max(segments / 4).max(1);
        (segment_bytes - segment_bytes / 8).saturating_mul(usable.into())
    }

    /// Pause for each frame of data, while `free` segments are free.
    pub fn pause_per_frame(self, free: u32) -> Duration {
        let missing = self.delay_below.saturating_sub(free.max(RESERVE));
        let range = self.delay_below.saturating_sub(RESERVE).max(1);
        PAUSE_PER_FRAME_MAX * missing / range
    }
}

/// The keeper's latest findings, for the shards and for writeback to act on.
#[derive(Debug, Default)]
pub(in crate::cache) struct Pressure {
    pause_nanos_per_frame: AtomicU32,
    stuck: AtomicBool,
    writeback: AtomicBool,
    scarce: AtomicBool,
}

impl Pressure {
    /// Sets the pause for each frame, whether the cache is full of data that cannot be moved out, and whether all data at risk
    /// should be written back.
    pub fn set(&self, pause_per_frame: Duration, stuck: bool, writeback: bool) {
        let nanos = u32::try_from(pause_per_frame.as_nanos()).unwrap_or(u32::MAX);
        self.pause_nanos_per_frame.store(nanos, Ordering::Relaxed);
        self.stuck.store(stuck, Ordering::Relaxed);
        self.writeback.store(writeback, Ordering::Relaxed);
    }

    /// Sets whether so few segments are free that no shard has one more than it must. Returns what was set before.
    pub fn set_scarce(&self, scarce: bool) -> bool {
        self.scarce.swap(scarce, Ordering::Relaxed)
    }

    /// Whether shards should do without segments that they can do without.
    pub fn is_scarce(&self) -> bool {
        self.scarce.load(Ordering::Relaxed)
    }

    /// Least time that an append of `frames` frames should take.
    pub fn pause(&self, frames: u32) -> Duration {
        let nanos = self.pause_nanos_per_frame.load(Ordering::Relaxed);
        Duration::from_nanos(u64::from(nanos) * u64::from(frames))
    }

    /// Whether the cache fills up, so that all data at risk should be written back to the store.
    pub fn wants_writeback(&self) -> bool {
        self.writeback.load(Ordering::Relaxed)
    }

    /// Whether waiting for room is in vain as long as nobody removes data.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_slow_down_gradually_as_free_segments_run_out() {
        let watermarks = Watermarks::new(1600, 4);
        assert_eq!(watermarks.pause_per_frame(watermarks.delay_below), Duration::ZERO);
        let mut last = Duration::ZERO;
        for free in (0..watermarks.delay_below).rev() {
            let pause = watermarks.pause_per_frame(free);
            assert!(pause >= last && pause <= PAUSE_PER_FRAME_MAX);
            last = pause;
        }
        assert_eq!(last, PAUSE_PER_FRAME_MAX);
    }

    #[test]
    fn the_room_for_data_leaves_the_segments_for_cleaning_and_for_shards_free_and_is_never_nothing() {
        for segments in 5..2000_u32 {
            for shards in (1..20).take_while(|shards| 2 * shards + 3 <= segments) {
                let watermarks = Watermarks::new(segments, shards);
                let room = watermarks.room_bytes(segments, 2 * shards, 8000);
                let kept = watermarks.clean_below + 2 * shards;
                let most = segments.saturating_sub(kept).max(segments / 4);
                assert_eq!(room, u64::from(most) * 7000, "{segments} segments, {shards} shards");
                assert!(room >= 7000);
            }
        }
    }

    #[test]
    fn cleaning_starts_before_writes_are_slowed() {
        for segments in 3..2000 {
            for shards in 1..20 {
                let watermarks = Watermarks::new(segments, shards);
                assert!(watermarks.clean_below > RESERVE, "{segments} segments, {shards} shards");
                assert!(
                    segments < 50 || watermarks.scarce_below() < watermarks.clean_below,
                    "{segments}, {shards}"
                );
                let kept = watermarks.kept_from_through(shards);
                assert!(
                    segments < 50 || kept < watermarks.clean_below,
                    "{segments} segments, {shards} shards: a full cache has no segment that shards can do without"
                );
                assert!(kept >= watermarks.scarce_below(), "{segments} segments, {shards} shards");
                assert!(
                    watermarks.clean_below >= watermarks.delay_below.min(segments / 10),
                    "{segments} segments, {shards} shards"
                );
            }
        }
    }
}
