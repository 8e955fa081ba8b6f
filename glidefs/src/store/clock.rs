//! Clocks for volumes.
//!
//! Owns the trait and the machine's clocks. Does not own decisions by time; pauses and time limits of requests run on the
//! runtime's clock. Invariant: no decision about data rests on the time of day, which people and networks change, with one
//! exception: a jump forward ends time limits, since a machine that was suspended by its host has no other sign of the
//! suspension. The sign may come late, or never: so whether packs of old states are there is asked of the store, whatever the clock says.

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::locks::MutexExt;
use crate::units;

/// The clocks of volumes, so that a simulation can turn them.
pub trait StoreClock: Debug + Send + Sync {
    /// The time of day, milliseconds since 1970-01-01 UTC. Written into objects for people to read.
    fn unix_millis(&self) -> u64;

    /// Time since some moment in the past. Never goes back, and goes on while the machine sleeps. Time for which the host of a virtual
    /// machine has suspended the machine counts when the time of day jumps ahead, and not before.
    fn since_boot(&self) -> Duration;
}

/// By how much the time of day has to jump to count.
const JUMP_MIN: Duration = Duration::from_secs(1);

/// A clock that advances with the faster of two clocks.
#[derive(Clone, Copy, Debug)]
struct Faster {
    steady: Duration,
    day: Duration,
    /// By how much the time of day has jumped ahead in all.
    jumped: Duration,
}

impl Faster {
    /// The time, when the clocks show `steady` and `day`.
    fn at(&mut self, steady: Duration, day: Duration) -> Duration {
        let went_on = |now: Duration, before: Duration| now.saturating_sub(before);
        let jump = went_on(day, self.day).saturating_sub(went_on(steady, self.steady));
        if jump >= JUMP_MIN {
            self.jumped = self.jumped.saturating_add(jump);
        }
        (self.steady, self.day) = (self.steady.max(steady), day);
        self.steady.saturating_add(self.jumped)
    }
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl StoreClock for SystemClock {
    fn unix_millis(&self) -> u64 {
        units::unix_millis()
    }

    fn since_boot(&self) -> Duration {
        static LAST: Mutex<Option<Faster>> = Mutex::new(None);
        let mut last = LAST.lock_whole();
        // Every Linux has these clocks, and the addresses are valid ones.
        let [steady, day] = [ClockId::CLOCK_BOOTTIME, ClockId::CLOCK_REALTIME]
            .map(|clock| clock_gettime(clock).map_or(Duration::ZERO, Duration::from));
        last.get_or_insert(Faster { steady, day, jumped: Duration::ZERO }).at(steady, day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_a_suspended_machine_did_not_count_counts_and_a_clock_that_is_set_back_does_not() {
        let seconds = Duration::from_secs;
        let mut faster = Faster { steady: seconds(100), day: seconds(9000), jumped: Duration::ZERO };
        assert_eq!(faster.at(seconds(110), seconds(9010)), seconds(110));
        assert_eq!(
            faster.at(seconds(111), Duration::from_millis(9_011_030)),
            seconds(111),
            "it is set a little"
        );
        assert_eq!(faster.at(seconds(112), Duration::from_millis(100_012_030)), seconds(112 + 91_000));
        let after = faster.at(seconds(113), seconds(50));
        assert_eq!(faster.at(seconds(120), seconds(57)), after + seconds(7));
    }

    #[test]
    fn the_machine_was_started_some_time_ago_and_time_goes_on() {
        let first = SystemClock.since_boot();
        assert!(first > Duration::ZERO);
        assert!(SystemClock.since_boot() >= first);
        assert!(SystemClock.unix_millis() > 1_700_000_000_000);
    }
}
