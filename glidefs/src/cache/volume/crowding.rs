//! How writes of a volume are slowed while the merging of packs does not keep up.
//!
//! Owns the rate of one volume's writes. Does not own how crowded a volume may be (`store::volume`), nor merging
//! (`writeback/merging`). Invariant: a volume at the limit of crowding takes no write until some of the volume's packs were
//! merged, unless merging fails.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::cache::volume::durability::Pace;
use crate::store::volume::Crowd;

/// Rate of a volume at the beginning of crowding, bytes a second.
const RATE_MAX: u64 = 256 << 20;
/// Least cost of a write, bytes: a write of zeroes takes room in packs as well.
const WRITE_BYTES_MIN: u64 = 4096;
/// A write may go on by so much before the write's time. A held write asks again only after a while, so writes go on in groups.
const AHEAD: Duration = Duration::from_millis(10);
/// Most slowing of a volume whose packs cannot be merged, per cent. Such a volume is not stopped.
const FAILED_PERCENT_MAX: u32 = 95;

/// How crowded one volume is, and when the volume's next write may go on.
#[derive(Debug, Default)]
pub(in crate::cache) struct Crowding {
    fan_out: AtomicU64,
    packs: AtomicU64,
    percent: AtomicU32,
    /// The last try to merge packs failed.
    failed: AtomicBool,
    /// When the next write may go on, nanoseconds by the clock of the writeback queue.
    next_nanos: AtomicU64,
}

impl Crowding {
    /// Notes how crowded the volume is.
    pub fn set(&self, crowd: Crowd) {
        debug_assert!(crowd.percent() <= 100, "100 percent stops writes");
        self.fan_out.store(crowd.fan_out as u64, Ordering::Relaxed);
        self.packs.store(crowd.packs as u64, Ordering::Relaxed);
        self.percent.store(crowd.percent(), Ordering::Relaxed);
    }

    /// Notes whether the last try to merge packs failed.
    pub fn set_failed(&self, failed: bool) {
        self.failed.store(failed, Ordering::Relaxed);
    }

    /// Whether writes are slowed.
    pub fn is_slow(&self) -> bool {
        self.percent.load(Ordering::Relaxed) > 0
    }

    /// Packs that a READ of one sector may have to ask, and packs in all.
    pub fn figures(&self) -> (u64, u64) {
        (self.fan_out.load(Ordering::Relaxed), self.packs.load(Ordering::Relaxed))
    }

    /// Whether a write of `bytes` may go on at `now`: at once, or ask again.
    pub fn pace(&self, bytes: u64, now: impl FnOnce() -> Duration) -> Pace {
        let percent = match self.percent.load(Ordering::Relaxed) {
            0 => return Pace::Go,
            percent if self.failed.load(Ordering::Relaxed) => percent.min(FAILED_PERCENT_MAX),
            percent => percent,
        };
        let Some(cost) = nanos(bytes, percent) else { return Pace::Wait };
        let now = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        let ahead = u64::try_from(AHEAD.as_nanos()).unwrap_or(u64::MAX);
        let taken = self.next_nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next <= now.saturating_add(ahead)).then(|| next.max(now).saturating_add(cost))
        });
        if taken.is_ok() { Pace::Go } else { Pace::Wait }
    }
}

/// Time that a write of `bytes` takes up in a volume which is `percent` crowded, nanoseconds. `None`: for ever.
fn nanos(bytes: u64, percent: u32) -> Option<u64> {
    let left = u64::from(100_u32.checked_sub(percent)?);
    // The rate falls with the square of the rest up to 100 percent.
    let rate = RATE_MAX.saturating_mul(left).saturating_mul(left) / 10_000;
    bytes.max(WRITE_BYTES_MIN).saturating_mul(1_000_000_000).checked_div(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::volume::FAN_OUT_MAX;

    fn rate(crowding: &Crowding) -> u64 {
        let (mut now, mut writes) = (Duration::from_secs(1), 0);
        while now < Duration::from_secs(3) {
            match crowding.pace(4096, || now) {
                Pace::Go => writes += 1,
                _ => now += Duration::from_millis(10),
            }
            assert!(writes < 1_000_000, "it is not slowed");
        }
        writes * 4096 / 2
    }

    #[test]
    fn a_crowded_volume_is_slowed_more_and_more_and_stopped_before_the_bound() {
        let crowding = Crowding::default();
        assert_eq!(crowding.pace(1 << 20, || Duration::ZERO), Pace::Go);
        let mut last = RATE_MAX * 2;
        for fan_out in (70..FAN_OUT_MAX).step_by(10) {
            let crowding = Crowding::default();
            crowding.set(Crowd { fan_out, packs: fan_out });
            let rate = rate(&crowding);
            assert!(rate < last, "{fan_out}: {rate} bytes a second after {last}");
            last = rate;
        }
        assert_eq!(last, 0);
        crowding.set(Crowd { fan_out: FAN_OUT_MAX, packs: FAN_OUT_MAX });
        assert_eq!(crowding.pace(0, || Duration::from_hours(1)), Pace::Wait);
        crowding.set_failed(true);
        assert!(rate(&crowding) > 0, "nothing would ever go on");
    }
}
