//! The clock that tells how old a key is.
//!
//! Owns the reading of the clock. Does not own ages. Invariant: the time never goes back within a boot; the time of day, which may be set,
//! is not asked.

use std::fmt::Debug;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock, so that tests can turn it.
pub(in crate::router) trait Clock: Debug + Send + Sync {
    /// Milliseconds since the boot of the kernel, also those asleep.
    fn boot_millis(&self) -> u64;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug)]
pub(in crate::router) struct SystemClock;

impl Clock for SystemClock {
    fn boot_millis(&self) -> u64 {
        // Every Linux has this clock, and the address is a valid one.
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }
}
