//! The writeback queue: the volumes with data to write back, or with packs to merge.
//!
//! Owns the lists of volumes. Does not own the writeback (`writeback/engine`). Invariant: a volume with data to write back is on
//! a list, or the engine watches the volume.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::cache::log::disk::Clock;
use crate::locks::MutexExt;
use crate::units::{ExportId, Seq};

/// A cut behind another cut of the volume has at least so much data, bytes, and at least such a share of the cache.
const CUT_BYTES_MIN: u64 = 1 << 30;
const CUTS_OF_CACHE: u64 = 32;
/// A volume makes a cut behind others only while at most such a share of the cache is data of the volume not in the store.
const BACKLOGS_OF_CACHE: u64 = 2;

/// The state shared by all volumes linked to one store.
pub struct WritebackQueue {
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) clock: Arc<dyn Clock>,
    /// So much data makes another cut of a volume with a cut on its way.
    cut_bytes_max: AtomicU64,
    /// A volume with more data not in the store makes no further cut.
    pub(super) backlog_bytes_max: u64,
    list: Mutex<List>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct List {
    /// Volumes with data to write back.
    announced: HashSet<ExportId>,
    /// Volumes somebody waits for, each with the number up to which the store should have the writes.
    asked: HashMap<ExportId, Seq>,
    /// Volumes whose writes are slowed until packs are merged.
    crowded: HashSet<ExportId>,
}

crate::units::debug_by_name!(WritebackQueue);

impl WritebackQueue {
    /// The queue of a cache of `size_bytes`.
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

    /// So much data makes another cut of a volume while one is on its way.
    pub(super) fn cut_bytes_max(&self) -> u64 {
        self.cut_bytes_max.load(Ordering::Relaxed)
    }

    /// Notes that a volume has data to write back.
    pub(super) fn announce(&self, id: ExportId) {
        self.list().announced.insert(id);
        self.changed.notify_one();
    }

    /// Has a volume written back up to `seq` as soon as possible, and a new size as well.
    pub(super) fn ask(&self, id: ExportId, seq: Seq) {
        let mut list = self.list();
        let asked = list.asked.entry(id).or_default();
        *asked = seq.max(*asked);
        drop(list);
        self.changed.notify_one();
    }

    /// Has packs of a crowded volume merged.
    pub(super) fn merge(&self, id: ExportId) {
        self.list().crowded.insert(id);
        self.changed.notify_one();
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // A set is whole between the set's own calls.
        self.list.lock_whole()
    }

    /// The volumes announced and asked for since the last call, with a number for the volumes somebody waits for.
    pub(in crate::cache) fn take(&self) -> HashMap<ExportId, Option<Seq>> {
        let mut list = self.list();
        let (announced, asked) = (std::mem::take(&mut list.announced), std::mem::take(&mut list.asked));
        drop(list);
        let mut taken: HashMap<_, _> = announced.into_iter().map(|id| (id, None)).collect();
        taken.extend(asked.into_iter().map(|(id, seq)| (id, Some(seq))));
        taken
    }

    /// The volumes crowded from the beginning, of those linked since the last call.
    pub(in crate::cache) fn take_crowded(&self) -> HashSet<ExportId> {
        std::mem::take(&mut self.list().crowded)
    }

    /// Returns when something was put on the list since the last return.
    pub(in crate::cache) async fn changed(&self) {
        self.changed.notified().await;
    }
}
