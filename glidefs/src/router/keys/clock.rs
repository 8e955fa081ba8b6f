//! The clocks that tell how old a key is.
//!
//! Owns the reading of the clocks. Does not own ages. Invariant: the time since the boot never goes back within a boot.

use std::fmt::Debug;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::router::catalog::request_record::Moment;

/// The clocks, so that tests can turn them.
pub(in crate::router) trait Clock: Debug + Send + Sync {
    /// The time by both clocks.
    fn now(&self) -> Moment;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub(in crate::router) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        // Every Linux has these clocks, and the addresses are valid ones.
        let [boot_millis, unix_millis] = [ClockId::CLOCK_BOOTTIME, ClockId::CLOCK_REALTIME].map(|clock| {
            let time = clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
        });
        Moment { unix_millis, boot_millis }
    }
}
