//! The time on the wall of a moment of the monotonic clock.
//!
//! Owns the reading of the two clocks. Does not own when they are read: the traces of one reading keep their distances, and a step of the
//! wall clock moves those of later readings only.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Readings of both clocks that are further apart are tried again: the thread was interrupted in between.
const APART_MAX: Duration = Duration::from_micros(20);
/// Most readings, of which the one with the clocks closest together counts.
const READINGS_MAX: usize = 4;

/// One moment by both clocks of the host.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    at: Instant,
    unix: Duration,
}

impl Clock {
    /// Reads both clocks of the host.
    pub fn now() -> Self {
        Self::read(Instant::now, SystemTime::now)
    }

    /// Reads the two clocks, `monotonic` on both sides of `wall`.
    pub fn read(monotonic: impl Fn() -> Instant, wall: impl Fn() -> SystemTime) -> Self {
        let mut best: Option<(Duration, Self)> = None;
        for _ in 0..READINGS_MAX {
            let before = monotonic();
            let unix = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
            let apart = monotonic().saturating_duration_since(before);
            let at = before.checked_add(apart / 2).unwrap_or(before);
            if best.as_ref().is_none_or(|(least, _)| apart < *least) {
                best = Some((apart, Self { at, unix }));
            }
            if apart <= APART_MAX {
                break;
            }
        }
        // There is at least one reading.
        best.map_or(Self { at: Instant::now(), unix: Duration::ZERO }, |(_, clock)| clock)
    }

    /// `moment` by the clock on the wall, in nanoseconds since 1970.
    pub fn unix_nanos(&self, moment: Instant) -> u64 {
        let after = moment.checked_duration_since(self.at).map(|after| self.unix.saturating_add(after));
        let unix =
            after.unwrap_or_else(|| self.unix.saturating_sub(self.at.saturating_duration_since(moment)));
        u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_or_after_the_reading_of_the_clock_is_that_far_from_it() {
        let clock = Clock::now();
        let second = Duration::from_secs(1);
        let base = clock.unix_nanos(clock.at);
        assert_eq!(clock.unix_nanos(clock.at + second) - base, 1_000_000_000);
        assert_eq!(base - clock.unix_nanos(clock.at.checked_sub(second).unwrap()), 1_000_000_000);
    }
}
