//! The time on the wall of a moment of the monotonic clock.
//!
//! Owns one look at both clocks. Does not own when the look is: the traces of one look keep their distances, and a step of the wall clock moves
//! those of later looks only.

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
        nanos(unix)
    }
}

/// `time` in nanoseconds, or the most that fits.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_moment_is_as_far_from_the_reading_on_the_wall_as_on_the_monotonic_clock() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let clock = Clock::read(|| at, || UNIX_EPOCH + Duration::from_secs(100));
        assert_eq!(clock.unix_nanos(at), 100_000_000_000);
        assert_eq!(clock.unix_nanos(at + second), 101_000_000_000);
        assert_eq!(clock.unix_nanos(at.checked_sub(second).unwrap()), 99_000_000_000);
        // A wall clock before 1970 is at its begin, and no time is below.
        let clock = Clock::read(|| at, || UNIX_EPOCH - second);
        assert_eq!(clock.unix_nanos(at.checked_sub(second).unwrap()), 0);
    }

    #[test]
    fn of_several_readings_the_one_with_the_clocks_closest_together_counts() {
        let (at, reading) = (Instant::now(), Cell::new(0_u64));
        // The thread is interrupted between the clocks: for 9 ms, 1 ms, 5 ms and 7 ms.
        let moments = [0, 9, 20, 21, 30, 35, 40, 47].map(Duration::from_millis);
        let monotonic = || {
            let number = reading.replace(reading.get() + 1);
            at + moments[usize::try_from(number).unwrap()]
        };
        let clock = Clock::read(monotonic, || UNIX_EPOCH + Duration::from_secs(reading.get()));
        // The second pair: the wall clock was read behind three readings of the other.
        assert_eq!(clock.unix_nanos(at + Duration::from_micros(20_500)), 3_000_000_000);
    }
}
