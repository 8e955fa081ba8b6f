//! How much may be lost with the host, and how writes are slowed before more could be lost.
//!
//! Owns the decision only, a function of the data at risk and of the bound; and [`Pace`], the answer of the budgets and of crowding as
//! well. Invariant: a write let through never takes the bytes at risk above the bound, and no write is let through while the oldest data
//! at risk is older than the bound.

use std::time::Duration;

use crate::properties::Bound;

/// Longest pause of a write before the bound is reached.
pub(in crate::cache) const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Writes are slowed from this share of the bound on, in per cent.
const SLOW_FROM_PERCENT: u32 = 50;
/// A cut is due at this share of the bound: the rest is time to carry the cut to the store.
const CUT_AT_SHARE: u32 = 4;

/// When a write may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Go,
    /// After this pause; then the write need not pause again.
    Pause(Duration),
    /// When less is at risk, packs were merged, the index is smaller, or the export has less in the log. Ask again.
    Wait,
    /// Not before the client makes room.
    Full,
}

/// Thresholds: the first one reached makes a cut due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// Bytes of data not in the store.
    pub size_bytes: u64,
    /// Time since the oldest of the data was written.
    pub age: Duration,
    /// Time without a write.
    pub quiet: Duration,
}

impl Bound {
    /// When a write may go on which takes the bytes at risk to `bytes`, while the oldest of the bytes have been at risk for
    /// `age`.
    pub(in crate::cache) fn pace(&self, bytes: u64, age: Duration) -> Pace {
        if bytes > self.max_bytes || age >= self.max_age {
            return Pace::Wait;
        }
        let percent = percent(u128::from(bytes), u128::from(self.max_bytes))
            .max(percent(age.as_nanos(), self.max_age.as_nanos()));
        match percent.checked_sub(SLOW_FROM_PERCENT) {
            None | Some(0) => Pace::Go,
            Some(over) => Pace::Pause(PAUSE_MAX * over / (100 - SLOW_FROM_PERCENT)),
        }
    }

    /// `triggers`, lowered where the bound asks for earlier cuts.
    pub(in crate::cache) fn sooner(&self, triggers: &Triggers) -> Triggers {
        Triggers {
            size_bytes: triggers.size_bytes.min(self.max_bytes / u64::from(CUT_AT_SHARE)),
            age: triggers.age.min(self.max_age / CUT_AT_SHARE),
            quiet: triggers.quiet.min(self.max_age / CUT_AT_SHARE),
        }
    }
}

/// How many hundredths of `of` are `part`, at most 100.
fn percent(part: u128, of: u128) -> u32 {
    let percent = part.saturating_mul(100).checked_div(of).unwrap_or(100);
    u32::try_from(percent.min(100)).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUND: Bound = Bound { max_bytes: 1000, max_age: Duration::from_secs(10) };

    #[test]
    fn writes_are_slowed_from_half_of_the_bound_on_and_stopped_at_it() {
        assert_eq!(BOUND.pace(500, Duration::from_secs(5)), Pace::Go);
        assert_eq!(BOUND.pace(750, Duration::ZERO), Pace::Pause(PAUSE_MAX / 2));
        assert_eq!(BOUND.pace(1, Duration::from_millis(7500)), Pace::Pause(PAUSE_MAX / 2));
        assert_eq!(BOUND.pace(1000, Duration::ZERO), Pace::Pause(PAUSE_MAX));
        assert_eq!(BOUND.pace(1001, Duration::ZERO), Pace::Wait);
        assert_eq!(BOUND.pace(1, Duration::from_secs(10)), Pace::Wait);
    }

    #[test]
    fn a_bound_makes_cuts_come_sooner_and_never_later() {
        let triggers =
            Triggers { size_bytes: 100, age: Duration::from_mins(1), quiet: Duration::from_secs(1) };
        let sooner = BOUND.sooner(&triggers);
        assert_eq!((sooner.size_bytes, sooner.age), (100, Duration::from_millis(2500)));
        assert_eq!(sooner.quiet, Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn more_at_risk_never_means_less_of_a_pause(
            bytes in 0..2000_u64, more in 0..2000_u64, millis in 0..20_000_u64, later in 0..20_000_u64,
        ) {
            let rank = |bytes, millis| match BOUND.pace(bytes, Duration::from_millis(millis)) {
                Pace::Go => Duration::ZERO,
                Pace::Pause(pause) => pause,
                Pace::Wait | Pace::Full => Duration::MAX,
            };
            prop_assert!(rank(bytes, millis) <= rank(bytes + more, millis + later));
        }
    }
}
