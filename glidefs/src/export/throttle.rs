//! The count of an export's requests against the limits of the export.
//!
//! Owns one bucket a limit. Does not own the requests which wait (`worker/waits/limits.rs`). A bucket is one number: the moment
//! at which the bucket is full again if nobody takes from the bucket. Taking moves the moment away from the present by the
//! time which the limit has for the taken part, and the taker may go on when the moment is no further away than the burst.
//! Whoever takes first goes on first, so small requests do not keep a large one waiting for ever.
//!
//! Invariant: in any span of time no more goes on than the limit allows for the span, the burst (or the largest request, if
//! larger), and a request for each worker whose allotment was made early. All queues of an export share the buckets,
//! whichever worker serves a queue; there is no lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use super::Operation;
use crate::properties::limits::{Limit, Limits};
use crate::units::nanos;

/// Longest wait of a request, however small the limit.
const WAIT_MAX: Duration = Duration::from_hours(1);

/// The buckets of one export.
#[derive(Debug)]
pub struct Throttle {
    /// The buckets count nanoseconds from here.
    base: Instant,
    /// Grows with every change of the limits.
    version: AtomicU64,
    burst_nanos: AtomicU64,
    /// In the order of [`Limit::ALL`].
    buckets: [Bucket; 4],
}

#[derive(Debug, Default)]
struct Bucket {
    /// Operations or bytes a second; 0 without a limit.
    rate: AtomicU64,
    /// When the bucket is full again, nanoseconds.
    full_at: AtomicU64,
    throttled: AtomicU64,
    waited_nanos: AtomicU64,
}

/// The place of one request in the buckets.
#[derive(Clone, Copy, Debug)]
pub struct Allotment {
    /// When the request may go on.
    pub due: Instant,
    /// The limit which lets the request wait longest.
    pub limit: Limit,
    version: u64,
}

/// The figures of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// The limit of these figures.
    pub limit: Limit,
    /// The value of the limit; `None` without this limit.
    pub rate: Option<u64>,
    /// Requests which waited because of the limit.
    pub throttled: u64,
    /// How long these requests waited, nanoseconds.
    pub waited_nanos: u64,
}

impl Throttle {
    /// Buckets which limit nothing yet.
    pub(super) fn new() -> Self {
        Self {
            base: Instant::now(),
            version: AtomicU64::new(0),
            burst_nanos: AtomicU64::new(0),
            buckets: Default::default(),
        }
    }

    /// Changes the limits: all buckets are full then, and allotments made before do not hold any more. Equal limits change
    /// nothing. Call from one thread at a time.
    pub(super) fn set(&self, limits: &Limits) {
        let burst_nanos = nanos(limits.burst);
        let rates = Limit::ALL.map(|limit| limits.rate(limit).unwrap_or(0));
        let same_rates =
            self.buckets.iter().zip(rates).all(|(bucket, rate)| bucket.rate.load(Relaxed) == rate);
        if same_rates && self.burst_nanos.load(Relaxed) == burst_nanos {
            return;
        }
        self.burst_nanos.store(burst_nanos, Release);
        for (bucket, rate) in self.buckets.iter().zip(rates) {
            bucket.rate.store(rate, Release);
            bucket.full_at.store(0, Release);
        }
        self.version.fetch_add(1, AcqRel);
    }

    /// Takes the part of one request out of the buckets. The request may go on when due. FLUSH is free: do not ask for a FLUSH.
    pub fn allot(&self, operation: Operation, bytes: usize, now: Instant) -> Allotment {
        let version = self.version.load(Acquire);
        let burst_nanos = self.burst_nanos.load(Acquire);
        let now_nanos = nanos(now.saturating_duration_since(self.base));
        let (operations, data) = match operation {
            Operation::Read => (Limit::ReadIops, Limit::ReadBytes),
            Operation::Write | Operation::Discard | Operation::WriteZeroes | Operation::Flush => {
                (Limit::WriteIops, Limit::WriteBytes)
            }
        };
        let first = self.bucket(operations).take(1, now_nanos, burst_nanos);
        let second = self.bucket(data).take(bytes as u64, now_nanos, burst_nanos);
        let (wait_nanos, limit) = if second > first { (second, data) } else { (first, operations) };
        // Settings that passed their check never let a request wait so long.
        let wait = Duration::from_nanos(wait_nanos).min(WAIT_MAX);
        let due = now.checked_add(wait).unwrap_or(now);
        Allotment { due, limit, version }
    }

    /// Whether the limits are still those of the allotment.
    pub fn holds(&self, allotment: &Allotment) -> bool {
        self.version.load(Acquire) == allotment.version
    }

    /// Counts a request which waited for so long.
    pub fn waited(&self, limit: Limit, waited: Duration) {
        let bucket = self.bucket(limit);
        bucket.throttled.fetch_add(1, Relaxed);
        bucket.waited_nanos.fetch_add(nanos(waited), Relaxed);
    }

    /// The figures of every limit which is set, or was set since the daemon started and let a request wait.
    pub fn figures(&self) -> impl Iterator<Item = LimitUse> {
        let figures = Limit::ALL.into_iter().zip(&self.buckets).map(|(limit, bucket)| LimitUse {
            limit,
            rate: Some(bucket.rate.load(Relaxed)).filter(|rate| *rate > 0),
            throttled: bucket.throttled.load(Relaxed),
            waited_nanos: bucket.waited_nanos.load(Relaxed),
        });
        figures.filter(|figures| figures.rate.is_some() || figures.throttled > 0)
    }

    const fn bucket(&self, limit: Limit) -> &Bucket {
        &self.buckets[limit as usize]
    }
}

impl Bucket {
    /// Takes `units`, and returns how long the taker waits, nanoseconds.
    fn take(&self, units: u64, now: u64, burst: u64) -> u64 {
        loop {
            let rate = self.rate.load(Acquire);
            if rate == 0 || units == 0 {
                return 0;
            }
            let cost = cost_nanos(units, rate);
            let taken = |full_at: u64| full_at.max(now).saturating_add(cost);
            // Never refused: the closure always has a value.
            let before = self.full_at.fetch_update(AcqRel, Acquire, |full_at| Some(taken(full_at)));
            if self.rate.load(Acquire) == rate {
                let full_at = before.map_or(now, taken);
                return full_at.saturating_sub(burst.max(cost)).saturating_sub(now);
            }
            // The limit was changed meanwhile. A cost by the old limit could keep the new one waiting.
            let _ = self.full_at.fetch_update(AcqRel, Acquire, |full_at| Some(full_at.saturating_sub(cost)));
        }
    }
}

/// The time which a limit of `rate` a second has for `units`: rounded up, so that no limit is exceeded by rounding.
fn cost_nanos(units: u64, rate: u64) -> u64 {
    let nanos = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn throttle(set: &[(Limit, u64)], burst_millis: u64) -> Throttle {
        let throttle = Throttle::new();
        throttle.set(&limits(set, burst_millis));
        throttle
    }

    fn limits(set: &[(Limit, u64)], burst_millis: u64) -> Limits {
        let mut limits = Limits::unlimited(Duration::from_millis(burst_millis));
        for (limit, rate) in set {
            limits.set_rate(*limit, Some(*rate));
        }
        limits
    }

    fn wait(throttle: &Throttle, operation: Operation, bytes: usize, now: Instant) -> Duration {
        throttle.allot(operation, bytes, now).due - now
    }

    #[test]
    fn after_a_burst_each_request_waits_for_its_share_of_the_limit() {
        let throttle = throttle(&[(Limit::WriteIops, 100)], 50);
        let now = throttle.base;
        for burst in 0..5 {
            assert_eq!(wait(&throttle, Operation::Write, 4096, now), Duration::ZERO, "{burst}");
        }
        for later in 1..5 {
            let operation =
                [Operation::Write, Operation::Discard, Operation::WriteZeroes][later as usize % 3];
            assert_eq!(wait(&throttle, operation, 0, now), Duration::from_millis(10 * later));
        }
        assert_eq!(wait(&throttle, Operation::Read, 4096, now), Duration::ZERO, "reads have no limit");
    }

    #[test]
    fn a_request_larger_than_the_burst_waits_for_a_full_bucket_and_no_longer() {
        let throttle = throttle(&[(Limit::ReadBytes, 1 << 20)], 10);
        let now = throttle.base;
        assert_eq!(wait(&throttle, Operation::Read, 128 << 10, now), Duration::ZERO);
        assert_eq!(wait(&throttle, Operation::Read, 128 << 10, now), Duration::from_millis(125));
    }

    #[test]
    fn a_change_fills_the_buckets_and_ends_allotments_but_equal_limits_change_nothing() {
        let throttle = throttle(&[(Limit::ReadIops, 1)], 10);
        let now = throttle.base;
        let early = throttle.allot(Operation::Read, 0, now);
        assert_eq!(wait(&throttle, Operation::Read, 0, now), Duration::from_secs(1));
        throttle.set(&limits(&[(Limit::ReadIops, 1)], 10));
        assert!(throttle.holds(&early));
        assert_eq!(wait(&throttle, Operation::Read, 0, now), Duration::from_secs(2));
        throttle.set(&limits(&[(Limit::ReadIops, 2)], 10));
        assert!(!throttle.holds(&early));
        assert_eq!(wait(&throttle, Operation::Read, 0, now), Duration::ZERO);
        assert_eq!(wait(&throttle, Operation::Read, 0, now), Duration::from_millis(500));
    }

    #[test]
    fn figures_are_those_of_limits_which_are_set_or_let_a_request_wait() {
        let throttle = throttle(&[(Limit::WriteBytes, 1 << 20)], 10);
        let shown = |throttle: &Throttle| {
            throttle.figures().map(|one| (one.limit, one.rate, one.throttled)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&throttle), [(Limit::WriteBytes, Some(1 << 20), 0)]);
        throttle.waited(Limit::WriteBytes, Duration::from_secs(1));
        throttle.set(&Limits::default());
        assert_eq!(shown(&throttle), [(Limit::WriteBytes, None, 1)], "a counter does not vanish");
    }

    proptest! {
        #[test]
        fn any_limit_and_any_moment_is_counted_without_overflow(
            rate in 1_u64.., burst_millis in 0_u64..10_000_000, bytes in any::<usize>(), later in any::<u64>(),
        ) {
            let throttle = throttle(&[(Limit::WriteBytes, rate), (Limit::WriteIops, rate)], burst_millis);
            let now = throttle.base.checked_add(Duration::from_nanos(later)).unwrap_or(throttle.base);
            for _ in 0..3 {
                let allotment = throttle.allot(Operation::Write, bytes, now);
                prop_assert!(allotment.due >= now);
            }
        }
    }
}
