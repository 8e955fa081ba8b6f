//! The budget of the cache's memory for indexes: of all volumes together, and of one volume.
//!
//! Owns the sum, the bounds and the decision. Does not own the indexes (`layers`), the waits (`worker/waits/held`) or the making of
//! room (`keeper/relief`).
//!
//! A volume may have the *share*: [`LENT`] times the memory which nobody uses, in proportion to the weight. So one busy volume alone
//! gets three quarters of the budget, and the share falls for all as others want memory: large volumes stop, and small ones go on,
//! with no list of volumes and no clock. Invariants: a volume above the share or above the own bound takes no write which can make
//! the index larger; a volume below half of both does not notice; the share is nothing when the budget is used up, so the
//! sum stays within the budget but for requests under way at the decision, and but for volumes that claim less than they have
//! (`budgeted`: with data unreadable here).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::durability::{PAUSE_MAX, Pace};
use crate::fair::WEIGHT_DEFAULT;

/// A volume of the default weight may have so many times the unused memory.
const LENT: u64 = 3;
/// Most memory that one write takes: two extents, each the first in new room for eight.
const GROWTH_BYTES: u64 = 1024;
/// Parts of the budget in which the share for a first look is counted.
const STEPS: u64 = 64;

/// The bounds on the parts of the cache that exports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Most memory for the indexes of all exports, bytes.
    pub index_bytes_max: u64,
    /// Most memory for the index of one export, bytes.
    pub index_bytes_max_per_export: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { index_bytes_max: u64::MAX, index_bytes_max_per_export: u64::MAX }
    }
}

impl Budgets {
    fn step(&self) -> u64 {
        (self.index_bytes_max / STEPS).max(1)
    }

    /// The share for the default weight at the end of the step in which `bytes` are used.
    fn share_from(&self, bytes: u64) -> u64 {
        let end = (bytes / self.step()).saturating_add(1).saturating_mul(self.step());
        self.index_bytes_max.saturating_sub(end).saturating_mul(LENT)
    }
}

/// The memory for the index of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Claim {
    pub bytes: u64,
    pub weight: u16,
}

/// Apart from the rest, which each write reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Sum(AtomicU64);

/// The budget of all volumes.
#[derive(Debug)]
pub(in crate::cache) struct Budget {
    budgets: Budgets,
    /// Whether a write fails where a wait would have no end but by the client.
    fails: bool,
    /// The share for the default weight at the end of the present step: for a first look.
    share: AtomicU64,
    /// Some volume asked for memory since the last look of the keeper.
    asked: AtomicBool,
    bytes: Sum,
}

impl Budget {
    pub fn new(budgets: Budgets, fails: bool) -> Self {
        let share = AtomicU64::new(budgets.share_from(0));
        Self { budgets, fails, share, asked: AtomicBool::new(false), bytes: Sum::default() }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.0.load(Ordering::Relaxed)
    }

    pub fn bounds(&self) -> Budgets {
        self.budgets
    }

    /// Whether a write without hope fails.
    pub fn fails(&self) -> bool {
        self.fails
    }

    /// Has the keeper make room.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether some volume asked for memory since the last call.
    pub fn take_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Relaxed)
    }

    /// Notes that one index has `after` bytes instead of `before`.
    fn changed(&self, before: u64, after: u64) {
        let change = after.wrapping_sub(before);
        let was = self.bytes.0.fetch_add(change, Ordering::Relaxed);
        let bytes = was.wrapping_add(change);
        let step = self.budgets.step();
        if was / step != bytes / step {
            self.share.store(self.budgets.share_from(bytes), Ordering::Relaxed);
        }
    }

    /// The most that a volume of `weight` may have at present.
    fn limit(&self, weight: u16) -> u64 {
        let unused = self.budgets.index_bytes_max.saturating_sub(self.bytes().saturating_add(GROWTH_BYTES));
        weighed(unused.saturating_mul(LENT), weight).min(self.budgets.index_bytes_max_per_export)
    }

    /// When a volume may make the index larger.
    pub fn pace(&self, own: Claim) -> Pace {
        slowed(own.bytes.saturating_add(GROWTH_BYTES), self.limit(own.weight))
    }

    /// The size to which an index should shrink; `None` where the index may stay.
    pub fn target(&self, own: Claim) -> Option<u64> {
        let target = self.limit(own.weight) / 2;
        (own.bytes > target).then_some(target)
    }

    /// Whether a volume is near the limit.
    #[inline]
    fn is_near(&self, own: Claim) -> bool {
        let share = weighed(self.share.load(Ordering::Relaxed), own.weight);
        own.bytes >= share.min(self.budgets.index_bytes_max_per_export) / 2
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

/// When a write may go on which takes the use to `used`: slower and slower above half of `limit`, and not above `limit`.
fn slowed(used: u64, limit: u64) -> Pace {
    if used > limit {
        return Pace::Wait;
    }
    let over = used.saturating_sub(limit / 2);
    let nanos = PAUSE_MAX.as_nanos() * u128::from(over) / u128::from((limit - limit / 2).max(1));
    match u64::try_from(nanos).unwrap_or(u64::MAX) {
        0 => Pace::Go,
        nanos => Pace::Pause(Duration::from_nanos(nanos)),
    }
}

/// The use that one volume makes of the budget.
#[derive(Debug, Default)]
pub(super) struct Usage {
    budget: OnceLock<Arc<Budget>>,
    index_bytes: AtomicU64,
    held: AtomicU64,
    held_nanos: AtomicU64,
}

impl Usage {
    /// Counts the index of `bytes` in `budget` from now on. To be called under the lock of the index.
    pub fn join(&self, budget: &Arc<Budget>, bytes: u64) {
        if self.budget.set(Arc::clone(budget)).is_ok() {
            self.index_bytes.store(bytes, Ordering::Relaxed);
            budget.changed(0, bytes);
        }
    }

    /// Notes the memory of the index. To be called under the lock of the index.
    #[inline]
    pub fn note(&self, bytes: u64) {
        let before = self.index_bytes.load(Ordering::Relaxed);
        if bytes != before
            && let Some(budget) = self.budget.get()
        {
            self.index_bytes.store(bytes, Ordering::Relaxed);
            budget.changed(before, bytes);
        }
    }

    /// Memory of the index, as noted last.
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes.load(Ordering::Relaxed)
    }

    /// The budget, if a volume of `weight` has to ask for memory.
    #[inline]
    pub fn to_ask(&self, weight: u16) -> Option<&Budget> {
        let budget = self.budget.get()?;
        budget.is_near(Claim { bytes: self.index_bytes(), weight }).then_some(&**budget)
    }

    pub fn budget(&self) -> Option<&Budget> {
        self.budget.get().map(|budget| &**budget)
    }

    /// Counts a write held back by the budget.
    pub fn count_held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts time in which writes were held back by the budget.
    pub fn count_time(&self, time: Duration) {
        self.held_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Writes held back, and the time in which writes were held back, nanoseconds.
    pub fn held(&self) -> (u64, u64) {
        (self.held.load(Ordering::Relaxed), self.held_nanos.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
