//! Where shards and the keeper meet: ready segments one way, full ones the other, and the wake-ups.
//!
//! Does not own the preparing and sealing of a segment. Invariants: a shard which found no segment is woken after the next one was
//! offered to the shard; a shard is woken behind each message; no lock here is held across a call to a hook or to the disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::cache::log::segment::SegmentWriter;
use crate::locks::MutexExt;
use crate::units::ExportId;

/// Called, from any thread, to make a worker take a turn.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// The way of a shard's records to the disk: each way has a lane with segments of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the engine says: mostly through the page cache. Any write may go this way.
    Common,
    /// Past the page cache, and stable when written.
    Through,
}

/// One shard's port to the keeper.
#[derive(Default)]
pub(super) struct Port {
    /// The segments of each lane, by [`Way`].
    supplies: Mutex<[Supply; 2]>,
    /// The shard wants to sync a file which another holder is syncing.
    sync_blocked: AtomicBool,
    /// Exports with progress that requests of the shard wait for. The flag: whether there are any.
    told: Mutex<Vec<ExportId>>,
    is_told: AtomicBool,
    hook: Mutex<Option<Hook>>,
}

/// The segments of one lane.
#[derive(Default)]
struct Supply {
    ready: VecDeque<SegmentWriter>,
    /// Segments the shard has, the ready one included.
    owned: u32,
    waiting: bool,
}

/// Segments a shard has at most while free ones are few: the one it fills and the next.
pub(super) const OWNED_MIN: u32 = 2;
/// Segments a shard has at most: enough to take a burst of writes while the keeper waits for the disk.
pub(super) const OWNED_MAX: u32 = 4;
/// Segments of the lane for expected FLUSHes that a shard has at most, and only while free segments are not scarce: the segment being
/// filled, and one whose last records are being written.
pub(super) const OWNED_THROUGH: u32 = 2;

crate::units::debug_by_name!(Port);

impl Port {
    /// The shard takes the segment ready for the shard. Without one, the shard is woken for the next one. Tells `keeper` when there
    /// is one less, or that there is none: once, however often a shard asks that has nothing else to do.
    pub fn take(&self, way: Way, keeper: &Signal) -> Option<SegmentWriter> {
        let (ready, knows) = {
            let supply = &mut self.supplies.lock_whole()[way as usize];
            let ready = supply.ready.pop_front();
            let waiting = ready.is_none();
            (ready, std::mem::replace(&mut supply.waiting, waiting) && waiting)
        };
        if !knows {
            keeper.raise();
        }
        ready
    }

    /// The keeper takes a segment back which the shard has not taken: one for writes whose FLUSH is expected.
    pub fn take_back_through(&self) -> Option<SegmentWriter> {
        let Supply { ready, owned, .. } = &mut self.supplies.lock_whole()[Way::Through as usize];
        let segment = ready.pop_front()?;
        *owned = owned.saturating_sub(1);
        Some(segment)
    }

    /// Segments of the shard, ready ones included.
    pub fn owned(&self, way: Way) -> u32 {
        self.supplies.lock_whole()[way as usize].owned
    }

    /// Whether the shard asked for a segment and there was none.
    pub fn is_waiting(&self, way: Way) -> bool {
        self.supplies.lock_whole()[way as usize].waiting
    }

    /// The shard let go of a segment.
    pub fn gave_back(&self, way: Way) {
        let supply = &mut self.supplies.lock_whole()[way as usize];
        supply.owned = supply.owned.saturating_sub(1);
    }

    /// The keeper gives the shard a segment.
    pub fn offer(&self, way: Way, segment: SegmentWriter) {
        let waiting = {
            let supply = &mut self.supplies.lock_whole()[way as usize];
            supply.ready.push_back(segment);
            supply.owned += 1;
            std::mem::take(&mut supply.waiting)
        };
        if waiting {
            self.wake();
        }
    }

    pub fn set_hook(&self, hook: Hook) {
        *self.hook.lock_whole() = Some(hook);
    }

    /// Makes the shard's worker take a turn.
    pub fn wake(&self) {
        let hook = self.hook.lock_whole().clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    /// Has the shard look at the requests of `export` which wait for the store.
    pub fn tell(&self, export: ExportId) {
        self.told.lock_whole().push(export);
        self.is_told.store(true, Ordering::Release);
        self.wake();
    }

    /// Moves the exports of [`Self::tell`] since the last call to `told`, which is empty.
    pub fn take_told(&self, told: &mut Vec<ExportId>) {
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Acquire) {
            std::mem::swap(&mut *self.told.lock_whole(), told);
        }
    }

    /// The shard asks to be woken when a sync of anybody ends.
    pub fn block_on_sync(&self) {
        self.sync_blocked.store(true, Ordering::SeqCst);
    }

    /// A sync has ended.
    pub fn sync_ended(&self) {
        if self.sync_blocked.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

/// How the keeper is woken.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    condvar: Condvar,
}

impl Signal {
    /// Makes the keeper take a step soon.
    pub fn raise(&self) {
        *self.raised.lock_whole() = true;
        self.condvar.notify_one();
    }

    /// Waits until the signal is raised, at most `patience`, and lowers it.
    pub fn wait(&self, patience: Duration) {
        let raised = self.raised.lock_whole();
        let (mut raised, _) = self
            .condvar
            .wait_timeout_while(raised, patience, |raised| !*raised)
            .unwrap_or_else(PoisonError::into_inner);
        *raised = false;
    }
}
