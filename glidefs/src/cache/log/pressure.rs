//! How full is too full: when cleaning starts, when writes are slowed, and by how much.
//!
//! Does not own the pauses themselves (the worker) or the cleaning (the keeper). Invariant: the last [`RESERVE`] free
//! segments are for cleaning only, so that there is always room to make room.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Free segments that only cleaning may take: the one it fills, and the next, which it may need before the segment
/// that it empties is free.
pub(in crate::cache) const RESERVE: u32 = 2;

/// Longest pause a frame, when the last free segment is about to be taken.
const PAUSE_PER_FRAME_MAX: Duration = Duration::from_micros(200);

/// Numbers of free segments at which something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Watermarks {
    /// Cleaning starts below.
    pub clean_below: u32,
    /// When fewer are free or hold only what the store has, everything is stored.
    pub writeback_below: u32,
    /// Writes are slowed below: cleaning does not keep up.
    pub delay_below: u32,
}

impl Watermarks {
    /// For a cache of `segments` segments and `shards` shards.
    pub fn new(segments: u32, shards: u32) -> Self {
        // A tenth of a small cache is less than what its shards take at once.
        let clean_below = (segments / 10).clamp(RESERVE + 1, RESERVE + shards.max(1) + segments / 20);
        Self {
            clean_below,
            writeback_below: clean_below.saturating_add(segments / 5),
            delay_below: RESERVE + segments / 20,
        }
    }

    /// Pause a frame of data, while `free` segments are free.
    pub fn pause_per_frame(self, free: u32) -> Duration {
        let missing = self.delay_below.saturating_sub(free.max(RESERVE));
        let range = self.delay_below.saturating_sub(RESERVE).max(1);
        PAUSE_PER_FRAME_MAX * missing / range
    }
}

/// What the keeper last found, for the shards to act on.
#[derive(Debug, Default)]
pub(in crate::cache) struct Pressure {
    pause_nanos_per_frame: AtomicU32,
    stuck: AtomicBool,
    writeback: AtomicBool,
}

impl Pressure {
    /// Sets the pause a frame, whether the cache is full of data that cannot be moved out, and whether all that can be
    /// stored should be.
    pub fn set(&self, pause_per_frame: Duration, stuck: bool, writeback: bool) {
        let nanos = u32::try_from(pause_per_frame.as_nanos()).unwrap_or(u32::MAX);
        self.pause_nanos_per_frame.store(nanos, Ordering::Relaxed);
        self.stuck.store(stuck, Ordering::Relaxed);
        self.writeback.store(writeback, Ordering::Relaxed);
    }

    /// Time that an append of `frames` frames should take at least.
    pub fn pause(&self, frames: u32) -> Duration {
        let nanos = self.pause_nanos_per_frame.load(Ordering::Relaxed);
        Duration::from_nanos(u64::from(nanos) * u64::from(frames))
    }

    /// Whether the cache fills up, so that all that can be stored to the store should be.
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
    fn cleaning_starts_before_writes_are_slowed() {
        for segments in 3..2000 {
            for shards in 1..20 {
                let watermarks = Watermarks::new(segments, shards);
                assert!(watermarks.clean_below > RESERVE, "{segments} segments, {shards} shards");
                assert!(
                    watermarks.clean_below >= watermarks.delay_below.min(segments / 10),
                    "{segments} segments, {shards} shards"
                );
            }
        }
    }
}
