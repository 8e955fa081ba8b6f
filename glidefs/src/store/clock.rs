//! What time it is, for volumes.
//!
//! Owns the trait and the machine's clocks. Does not own what is done with them; pauses and time limits of requests run on
//! the runtime's clock. Invariant: no decision about data rests on the time of day, which people and networks change.

use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// The clocks a volume needs, so that a simulation can turn them.
pub trait StoreClock: Debug + Send + Sync {
    /// The time of day, milliseconds since 1970-01-01 UTC. Written into objects for people to read.
    fn unix_millis(&self) -> u64;

    /// Time since some moment in the past. Never goes back, and goes on while the machine sleeps.
    fn since_boot(&self) -> Duration;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl StoreClock for SystemClock {
    fn unix_millis(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn since_boot(&self) -> Duration {
        // Every Linux has this clock, and the address is a valid one.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_was_started_some_time_ago_and_time_goes_on() {
        let first = SystemClock.since_boot();
        assert!(first > Duration::ZERO);
        assert!(SystemClock.since_boot() >= first);
        assert!(SystemClock.unix_millis() > 1_700_000_000_000);
    }
}
