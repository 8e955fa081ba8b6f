//! The budgets of the cache: of the memory for indexes, and of log space for data which the store does not have.
//!
//! Owns the sums of all volumes, and the use of each. Does not own the decision (`pool`), the indexes (`layers`), the waits
//! (`worker/waits/held`) or the making of room (`keeper/relief`).
//!
//! A volume's use of the log is the frames which only the writeback of the volume can make free: those with data in the layers
//! `active` and `frozen`, a frame once for each extent with data there. Replaced content is cleaned, and clean content is evicted,
//! whenever room is needed.

mod pool;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use self::pool::Bounds;
pub use self::pool::Coming;
pub(in crate::cache) use self::pool::{Claim, Pool};
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Most memory that one write takes: two extents, each the first in new room for eight.
const INDEX_GROWTH_BYTES: u64 = 1024;
/// Most log space that one write takes, without the header of the record.
const LOG_GROWTH_BYTES: u64 = REQUEST_BYTES_MAX as u64;
/// Log space that a volume may have however much others have: the sum over all volumes leaves some segments free (`log/pressure`).
/// Where none is free, the writes wait for log space like all others (`worker/waits/log_line`).
const LOG_KEPT_BYTES: u64 = 8 * LOG_GROWTH_BYTES;
/// The log has so many grains at most, and at least half as many, or grains of one frame: the uncounted rests of ten thousand exports
/// are 2 % of the log at most.
const LOG_GRAINS: u64 = 1 << 20;

/// The bounds on the parts of the cache that exports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Most memory for the indexes of all exports, bytes.
    pub index_bytes_max: u64,
    /// Most memory for the index of one export, bytes.
    pub index_bytes_max_per_export: u64,
    /// Most log space for data of one export which is not in the store, bytes. No effect without a store.
    pub log_bytes_max_per_export: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            index_bytes_max: u64::MAX,
            index_bytes_max_per_export: u64::MAX,
            log_bytes_max_per_export: u64::MAX,
        }
    }
}

/// A resource of the cache that exports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory for indexes.
    Index,
    /// Log space for data which is not in the store.
    Log,
}

impl Resource {
    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Log => "log",
        }
    }
}

/// The budgets of all volumes.
#[derive(Debug)]
pub(in crate::cache) struct Budget {
    pub index: Pool,
    pub log: Pool,
    /// Whether a write fails where only the client could end the wait.
    pub fails: bool,
    /// Some volume came near its share or bound since the last look of the keeper.
    asked: AtomicBool,
}

impl Budget {
    /// The budgets of a log with room for `log_bytes_max`.
    pub fn new(budgets: Budgets, log_bytes_max: u64, fails: bool) -> Self {
        let index = Pool::new(Bounds {
            bytes_max: budgets.index_bytes_max,
            bytes_max_per_export: budgets.index_bytes_max_per_export,
            growth_bytes: INDEX_GROWTH_BYTES,
            grain_bytes: 1,
            kept_bytes: 0,
            slow_from: 4,
        });
        // A burst is taken at full speed up to seven eighths of the share: the cache is there for bursts.
        let log = Pool::new(Bounds {
            bytes_max: log_bytes_max,
            bytes_max_per_export: budgets.log_bytes_max_per_export,
            growth_bytes: LOG_GROWTH_BYTES,
            kept_bytes: LOG_KEPT_BYTES,
            grain_bytes: (log_bytes_max / LOG_GRAINS).next_power_of_two().max(FRAME_BYTES as u64),
            slow_from: 7,
        });
        Self { index, log, fails, asked: AtomicBool::new(false) }
    }

    pub fn pool(&self, resource: Resource) -> &Pool {
        match resource {
            Resource::Index => &self.index,
            Resource::Log => &self.log,
        }
    }

    /// Has the keeper make room.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether some volume called [`Self::ask`] since the last call.
    pub fn take_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Relaxed)
    }
}

/// The use that one volume makes of one resource, and the writes held back by the budget.
#[derive(Debug, Default)]
pub(super) struct Use {
    bytes: AtomicU64,
    /// Writes held back by the budget, and the time in which writes were held back.
    pub held: AtomicU64,
    pub held_nanos: AtomicU64,
}

/// The use that one volume makes of the budgets.
#[derive(Debug, Default)]
pub(super) struct Usage {
    budget: OnceLock<Arc<Budget>>,
    index: Use,
    log: Use,
}

impl Usage {
    /// Counts the index of `index_bytes` and the data of `log_bytes` in `budget` from now on. To be called under the lock of the
    /// index.
    pub fn join(&self, budget: &Arc<Budget>, index_bytes: u64, log_bytes: u64) {
        if self.budget.set(Arc::clone(budget)).is_ok() {
            self.note(index_bytes, log_bytes);
        }
    }

    /// Notes the memory of the index, and the log space of the data not in the store. To be called under the lock of the index.
    #[inline]
    pub fn note(&self, index_bytes: u64, log_bytes: u64) {
        let Some(budget) = self.budget.get() else { return };
        for (used, pool, after) in
            [(&self.index, &budget.index, index_bytes), (&self.log, &budget.log, log_bytes)]
        {
            let before = used.bytes.load(Ordering::Relaxed);
            if after != before {
                used.bytes.store(after, Ordering::Relaxed);
                pool.changed(before, after);
            }
        }
    }

    /// Bytes of the resource, as noted last.
    #[inline]
    pub fn bytes(&self, resource: Resource) -> u64 {
        self.of(resource).bytes.load(Ordering::Relaxed)
    }

    /// The budget, if a volume of `weight` has to ask for more of `resource`.
    #[inline]
    pub fn to_ask(&self, resource: Resource, weight: u16) -> Option<&Budget> {
        let budget = self.budget.get()?;
        let claim = Claim { bytes: self.bytes(resource), weight };
        budget.pool(resource).is_near(claim).then_some(&**budget)
    }

    pub fn budget(&self) -> Option<&Budget> {
        self.budget.get().map(|budget| &**budget)
    }

    #[inline]
    pub fn of(&self, resource: Resource) -> &Use {
        match resource {
            Resource::Index => &self.index,
            Resource::Log => &self.log,
        }
    }
}

#[cfg(test)]
mod tests;
