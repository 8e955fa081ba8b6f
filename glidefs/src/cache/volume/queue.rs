//! The writeback queue: which volumes have something to write back, or packs to merge.
//!
//! Owns the wish list. Does not own the writeback (`engine`). Invariant: a volume that has something to write back is on the list, or
//! the engine watches it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cache::log::disk::Clock;
use crate::units::ExportId;

/// A cut that waits for another one to reach the store has at least so much data, bytes, and at least such a part of the cache.
const CUT_BYTES_MIN: u64 = 1 << 30;
const CUTS_OF_CACHE: u64 = 32;
/// Cuts of one volume wait behind others only while the volume has at most such a part of the cache that is not in the store.
const BACKLOGS_OF_CACHE: u64 = 2;

/// What all volumes that are tied to one store share.
pub struct WritebackQueue {
    runtime: tokio::runtime::Handle,
    clock: Arc<dyn Clock>,
    /// As much data makes another cut of a volume of which one is on its way.
    cut_bytes_max: AtomicU64,
    /// With more than that not in the store a volume makes no further cut.
    backlog_bytes_max: u64,
    list: Mutex<List>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct List {
    announced: HashSet<ExportId>,
    /// Somebody waits for these.
    asked: HashSet<ExportId>,
    /// Their writes are slowed until packs are merged.
    crowded: HashSet<ExportId>,
}

impl fmt::Debug for WritebackQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritebackQueue").finish_non_exhaustive()
    }
}

impl WritebackQueue {
    /// What ties volumes of a cache of `size_bytes`.
    pub(in crate::cache) fn new(
        runtime: tokio::runtime::Handle,
        clock: Arc<dyn Clock>,
        size_bytes: u64,
    ) -> Arc<Self> {
        let cut_bytes_max = AtomicU64::new(CUT_BYTES_MIN.max(size_bytes / CUTS_OF_CACHE));
        let backlog_bytes_max = size_bytes / BACKLOGS_OF_CACHE;
        let (list, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { runtime, clock, cut_bytes_max, backlog_bytes_max, list, changed })
    }

    /// Makes cuts smaller than usual, or larger.
    #[cfg(test)]
    pub fn set_cut_bytes_max(&self, bytes: u64) {
        self.cut_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// The control threads.
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// The time, by the clock that risk is measured with.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// How much data makes another cut of a volume while one is on its way.
    pub(super) fn cut_bytes_max(&self) -> u64 {
        self.cut_bytes_max.load(Ordering::Relaxed)
    }

    /// How much of one volume may be on this host alone while further cuts are made.
    pub(super) fn backlog_bytes_max(&self) -> u64 {
        self.backlog_bytes_max
    }

    /// Puts a volume on the list of those that have something to flush.
    pub(super) fn announce(&self, id: ExportId) {
        self.list().announced.insert(id);
        self.changed.notify_one();
    }

    /// Has a volume stored as soon as possible.
    pub(super) fn ask(&self, id: ExportId) {
        self.list().asked.insert(id);
        self.changed.notify_one();
    }

    /// Has packs of a crowded volume merged.
    pub(super) fn merge(&self, id: ExportId) {
        self.list().crowded.insert(id);
        self.changed.notify_one();
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // A set is whole between its own calls.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was announced and asked for since the last call: `true` with those that somebody waits for.
    pub(in crate::cache) fn take(&self) -> HashMap<ExportId, bool> {
        let mut list = self.list();
        let (announced, asked) = (std::mem::take(&mut list.announced), std::mem::take(&mut list.asked));
        drop(list);
        let mut taken: HashMap<_, _> = announced.into_iter().map(|id| (id, false)).collect();
        taken.extend(asked.into_iter().map(|id| (id, true)));
        taken
    }

    /// Which volumes began crowded since the last call.
    pub(in crate::cache) fn take_crowded(&self) -> HashSet<ExportId> {
        std::mem::take(&mut self.list().crowded)
    }

    /// Returns when something was put on the list since the last return.
    pub(in crate::cache) async fn changed(&self) {
        self.changed.notified().await;
    }
}
