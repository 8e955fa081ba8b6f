//! One resource of the cache which volumes share: the sum, the bounds and the decision.
//!
//! Does not own what a volume uses (`budget`), the waits (`worker/waits/held`) or the making of room (`keeper/relief`).
//!
//! A volume may have the *share*: [`LENT`] times the part of the resource which nobody uses, in proportion to the weight. So one
//! busy volume of the default weight alone gets three quarters, and the share falls for all as others want some: large volumes stop,
//! and small ones go on, with no list of volumes and no clock. Invariants: a volume above the share or above the own bound takes no
//! write which can make the use larger; a volume with much less than both does not notice; the share is nothing when the resource is
//! used up, so the sum stays within the bound but for requests under way at the decision, but for less than a grain for each volume,
//! but for [`Bounds::kept_bytes`] of each volume, and but for volumes that claim less than they have (`budgeted`: with data unreadable
//! here).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::durability::{PAUSE_MAX, Pace};
use crate::fair::WEIGHT_DEFAULT;

/// A volume of the default weight may have so many times the unused part.
const LENT: u64 = 3;
/// While anything is unused a volume may have the bytes of so many writes, however small the weight is.
const WRITES_MIN: u64 = 8;
/// Steps in which the use of the resource is counted for the first look of a write ([`Pool::is_near`]).
const STEPS: u64 = 64;
/// The unit of [`Bounds::slow_from`].
const EIGHTHS: u64 = 8;

/// The bounds on one resource.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Bounds {
    /// Most bytes of all volumes.
    pub bytes_max: u64,
    /// Most bytes of one volume.
    pub bytes_max_per_export: u64,
    /// Most bytes that one write takes.
    pub growth_bytes: u64,
    /// The sum counts the bytes of each volume in whole grains, a power of two: most writes leave the sum alone.
    pub grain_bytes: u64,
    /// Bytes that a volume may have also when nothing is unused: for a resource which is not used up when the sum is at the bound.
    pub kept_bytes: u64,
    /// Writes are slowed from so many eighths of the allowed bytes on.
    pub slow_from: u64,
}

/// The use that one volume makes of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Claim {
    pub bytes: u64,
    pub weight: u16,
}

/// Bytes that are about to be used, and not counted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coming {
    /// Of the volume that asks.
    pub own: u64,
    /// Of all volumes together, this one included.
    pub all: u64,
}

/// In a cache line apart from the rest of the pool, which each write reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Sum(AtomicU64);

/// A resource of all volumes.
#[derive(Debug)]
pub(in crate::cache) struct Pool {
    bounds: Bounds,
    /// For a first look: the bytes at which slowing begins, by the bound of one volume, and by the share of the default weight at the
    /// end of the present step.
    near_bound: u64,
    near_share: AtomicU64,
    bytes: Sum,
}

impl Bounds {
    fn step(&self) -> u64 {
        (self.bytes_max / STEPS).max(1)
    }

    /// The part of `allowed` bytes from which on writes are slowed.
    fn slow_part(&self, allowed: u64) -> u64 {
        allowed / EIGHTHS * self.slow_from
    }

    /// Where slowing begins for the default weight at the end of the step in which `bytes` are used.
    fn near_share(&self, bytes: u64) -> u64 {
        let end = (bytes / self.step()).saturating_add(1).saturating_mul(self.step());
        self.slow_part(self.bytes_max.saturating_sub(end).saturating_mul(LENT))
    }
}

impl Pool {
    pub fn new(bounds: Bounds) -> Self {
        debug_assert!((1..EIGHTHS).contains(&bounds.slow_from) && bounds.grain_bytes.is_power_of_two());
        let near_share = AtomicU64::new(bounds.near_share(0));
        let most = bounds.bytes_max_per_export;
        let near_bound = bounds.slow_part(most).min(most.saturating_sub(bounds.growth_bytes));
        Self { bounds, near_bound, near_share, bytes: Sum::default() }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.0.load(Ordering::Relaxed)
    }

    pub fn bytes_max(&self) -> u64 {
        self.bounds.bytes_max
    }

    /// Notes that one volume has `after` bytes instead of `before`.
    pub(super) fn changed(&self, before: u64, after: u64) {
        let whole = |bytes: u64| bytes & !(self.bounds.grain_bytes - 1);
        let change = whole(after).wrapping_sub(whole(before));
        if change == 0 {
            return;
        }
        let was = self.bytes.0.fetch_add(change, Ordering::Relaxed);
        let bytes = was.wrapping_add(change);
        let step = self.bounds.step();
        if was / step != bytes / step {
            self.near_share.store(self.bounds.near_share(bytes), Ordering::Relaxed);
        }
    }

    /// Most bytes that a volume of `weight` may have at present: the share, or the own bound if lower.
    pub(super) fn allowed(&self, weight: u16) -> u64 {
        self.allowed_behind(weight, Coming::default())
    }

    fn allowed_behind(&self, weight: u16, coming: Coming) -> u64 {
        let used = self.bytes().saturating_add(coming.all).saturating_add(self.bounds.growth_bytes);
        let unused = self.bounds.bytes_max.saturating_sub(used);
        let least = if unused == 0 { 0 } else { WRITES_MIN * self.bounds.growth_bytes };
        let least = least.max(self.bounds.kept_bytes);
        weighed(unused.saturating_mul(LENT), weight).max(least).min(self.bounds.bytes_max_per_export)
    }

    /// When a volume may use more.
    pub fn pace(&self, own: Claim) -> Pace {
        self.pace_behind(own, Coming::default())
    }

    /// As [`Self::pace`], where `coming` is about to be used.
    pub fn pace_behind(&self, own: Claim, coming: Coming) -> Pace {
        let allowed = self.allowed_behind(own.weight, coming);
        let used = own.bytes.saturating_add(coming.own).saturating_add(self.bounds.growth_bytes);
        if used > allowed {
            return Pace::Wait;
        }
        let slow_from = self.bounds.slow_part(allowed);
        let over = used.saturating_sub(slow_from);
        let nanos = PAUSE_MAX.as_nanos() * u128::from(over) / u128::from((allowed - slow_from).max(1));
        match u64::try_from(nanos).unwrap_or(u64::MAX) {
            0 => Pace::Go,
            nanos => Pace::Pause(Duration::from_nanos(nanos)),
        }
    }

    /// The bytes to which a volume should come down, half of the allowed ones; `None` where the volume has no more.
    pub fn target(&self, own: Claim) -> Option<u64> {
        let target = self.allowed(own.weight) / 2;
        (own.bytes > target).then_some(target)
    }

    /// Whether a volume is so near the allowed bytes that a write has to ask [`Self::pace`].
    #[inline]
    pub fn is_near(&self, own: Claim) -> bool {
        let share = weighed(self.near_share.load(Ordering::Relaxed), own.weight);
        own.bytes >= share.min(self.near_bound)
    }
}

#[inline]
fn weighed(bytes: u64, weight: u16) -> u64 {
    if weight == WEIGHT_DEFAULT {
        return bytes;
    }
    let weighed = u128::from(bytes) * u128::from(weight) / u128::from(WEIGHT_DEFAULT);
    u64::try_from(weighed).unwrap_or(u64::MAX)
}
