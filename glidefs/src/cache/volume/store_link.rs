//! What ties a volume to its counterpart in the store.
//!
//! Owns the wish list of what to flush, and what is known of the counterpart. Does not own the flushing (`engine`) nor the
//! fetching (`fetch`). Invariant: a volume that has something to flush is on the list, or the engine watches it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::crowding::Crowding;
use super::fetch::{End, Fetch, Fill, OnUnreachable, why_lost};
use crate::cache::volume::durability::{Bound, Durability};
use crate::cache::volume::error::IoError;
use crate::cache::volume::queue::WritebackQueue;
use crate::observe::repeat::Repeat;
use crate::store;
use crate::store::volume::Upload;
use crate::units::{ExportId, SectorRange};

/// A volume's side of the link.
pub(in crate::cache) struct StoreLink {
    pub(in crate::cache) remote: store::volume::VolumeWriter,
    queue: Arc<WritebackQueue>,
    /// Size of the export, and the size that the store knows, sectors.
    size_sectors: AtomicU64,
    stored_sectors: AtomicU64,
    /// Told whenever a cut has reached the store or the volume was lost to another writer.
    progress: Notify,
    /// What a FLUSH survives; said once, before the first request.
    durability: OnceLock<Durability>,
    /// What a READ does that needs a store that is away; said once, before the first request.
    on_unreachable: OnceLock<OnUnreachable>,
    /// Ends fetches.
    end: End,
    /// What lets one of many log lines about fetches that fail pass.
    bad_fetches: Arc<Repeat>,
    /// How far the cut is that is on its way, over all tries.
    upload: Upload,
    /// The volume is not this writer's any more.
    fenced: Arc<AtomicBool>,
    /// The last cut could not be read, and how many could not.
    unreadable: AtomicBool,
    unreadable_cuts: AtomicU64,
    unreadable_in_a_row: AtomicU64,
    /// Cuts that reached the store without some of their content, which was lost.
    lossy_cuts: AtomicU64,
    /// Those of them that a FLUSH was told of.
    told_losses: AtomicU64,
    /// Why the last cut did not get to the store, if so.
    trouble: Mutex<Option<String>>,
    crowding: Crowding,
}

impl fmt::Debug for StoreLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLink").finish_non_exhaustive()
    }
}

impl StoreLink {
    /// Ties an export of `size_sectors`, of which the store knows `stored_sectors`.
    pub fn new(
        remote: store::volume::VolumeWriter,
        queue: Arc<WritebackQueue>,
        size_sectors: u64,
        stored_sectors: u64,
    ) -> Self {
        let crowding = Crowding::default();
        crowding.set(remote.crowd().unwrap_or_default());
        Self {
            remote,
            queue,
            crowding,
            size_sectors: AtomicU64::new(size_sectors),
            stored_sectors: AtomicU64::new(stored_sectors),
            progress: Notify::new(),
            durability: OnceLock::new(),
            on_unreachable: OnceLock::new(),
            end: End::default(),
            bad_fetches: Arc::default(),
            upload: Upload::default(),
            fenced: Arc::default(),
            unreadable: AtomicBool::new(false),
            unreadable_cuts: AtomicU64::new(0),
            unreadable_in_a_row: AtomicU64::new(0),
            lossy_cuts: AtomicU64::new(0),
            told_losses: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    pub fn remote(&self) -> &store::volume::VolumeWriter {
        &self.remote
    }

    /// Puts the volume on the list of those that have something to flush.
    pub fn announce(&self, id: ExportId) {
        self.queue.announce(id);
    }

    /// How crowded the volume is.
    pub fn crowding(&self) -> &Crowding {
        &self.crowding
    }

    /// Has packs of a volume merged that begins crowded: its writes, and so its flushes, may have to wait for that.
    pub fn merge_if_crowded(&self, id: ExportId) {
        if self.crowding.is_slow() {
            self.queue.merge(id);
        }
    }

    /// Has the volume stored as soon as possible.
    pub fn ask(&self, id: ExportId) {
        self.queue.ask(id);
    }

    /// Size of the export, sectors.
    pub fn size_sectors(&self) -> u64 {
        self.size_sectors.load(Ordering::Acquire)
    }

    /// Notes the export's new size, sectors.
    pub fn set_size(&self, size_sectors: u64) {
        self.size_sectors.store(size_sectors, Ordering::Release);
    }

    /// Notes that the store knows this size, sectors.
    pub fn stored_size(&self, size_sectors: u64) {
        self.stored_sectors.store(size_sectors, Ordering::Release);
    }

    /// Whether the store knows another size.
    pub fn has_new_size(&self) -> bool {
        self.size_sectors() != self.stored_sectors.load(Ordering::Acquire)
    }

    /// Says what a FLUSH survives, and how much may be lost.
    pub fn set_durability(&self, durability: Durability) {
        let said = *self.durability.get_or_init(|| durability);
        debug_assert_eq!(said, durability, "said twice");
    }

    /// Whether FLUSH waits for the store.
    pub fn waits(&self) -> bool {
        self.durability.get() == Some(&Durability::Store)
    }

    /// How much data makes another cut while one is on its way.
    pub fn cut_bytes_max(&self) -> u64 {
        self.queue.cut_bytes_max()
    }

    /// How much may be on this host alone while further cuts are made.
    pub fn backlog_bytes_max(&self) -> u64 {
        self.queue.backlog_bytes_max()
    }

    /// How much may be at risk, where that is bounded.
    pub fn bound(&self) -> Option<Bound> {
        match self.durability.get() {
            Some(Durability::Bounded(bound)) => Some(*bound),
            _ => None,
        }
    }

    /// The time, by the clock that risk is measured with.
    pub fn now(&self) -> Duration {
        self.queue.now()
    }

    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Why nothing of the volume may be served any more, if so.
    pub fn lost(&self) -> Option<IoError> {
        self.is_fenced().then(|| why_lost(&self.remote))
    }

    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.end.set(why_lost(&self.remote));
        self.progress.notify_waiters();
    }

    /// Notes whether the last cut could be read.
    pub(in crate::cache) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::Release);
        self.unreadable_cuts.fetch_add(u64::from(unreadable), Ordering::AcqRel);
        // One task at a time carries cuts of a volume.
        let before = self.unreadable_in_a_row.load(Ordering::Acquire);
        let in_a_row = if unreadable { before.saturating_add(1) } else { 0 };
        self.unreadable_in_a_row.store(in_a_row, Ordering::Release);
    }

    /// Notes that the disk answered for all of the last cut: what it does not read later has its time to come back.
    pub(in crate::cache) fn was_read(&self) {
        self.unreadable_in_a_row.store(0, Ordering::Release);
    }

    /// How many of the last cuts could not be read, one after the other.
    pub(in crate::cache) fn unreadable_in_a_row(&self) -> u64 {
        self.unreadable_in_a_row.load(Ordering::Acquire)
    }

    /// Notes that the store has a cut without some of its content. Called before the cut counts as stored.
    pub(in crate::cache) fn lose_content(&self) {
        self.lossy_cuts.fetch_add(1, Ordering::AcqRel);
    }

    /// How many cuts could not be read, or went to the store without some of their content and a FLUSH was told so.
    pub fn failed_cuts(&self) -> u64 {
        self.unreadable_cuts().saturating_add(self.told_losses.load(Ordering::Acquire))
    }

    /// Whether a FLUSH that began at `failed` such cuts is to be told that content was lost.
    pub fn reports_loss(&self, failed: u64) -> bool {
        let lossy = self.lossy_cuts.load(Ordering::Acquire);
        let untold = lossy > self.told_losses.swap(lossy, Ordering::AcqRel);
        untold || (lossy > 0 && self.failed_cuts() > failed)
    }

    /// How many cuts could not be read: who waits gives up when it grows.
    pub fn unreadable_cuts(&self) -> u64 {
        self.unreadable_cuts.load(Ordering::Acquire)
    }

    pub fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Acquire)
    }

    /// Notes why a cut did not get to the store, or that it did.
    pub(in crate::cache) fn set_trouble(&self, trouble: Option<String>) {
        // A value is whole between its own assignments.
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Why what is here is not in the store yet, as far as that is known: of the last cut, or of the store.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trouble.or_else(|| self.remote.store_trouble())
    }

    pub fn advanced(&self) {
        self.progress.notify_waiters();
    }

    pub fn progress(&self) -> &Notify {
        &self.progress
    }

    /// Whether the store may have anything of `range`: where it has not, there are zeroes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.remote.covers(range)
    }

    /// How far the cut is that is on its way.
    pub fn upload(&self) -> &Upload {
        &self.upload
    }

    /// Says what a READ does that needs a store that is away.
    pub fn set_on_unreachable(&self, on_unreachable: OnUnreachable) {
        let said = *self.on_unreachable.get_or_init(|| on_unreachable);
        debug_assert_eq!(said, on_unreachable, "said twice");
    }

    /// Ends all fetches, those to come as well: the data was forgotten.
    pub fn remove(&self, export: ExportId) {
        self.end.set(IoError::Removed(export));
        self.progress.notify_waiters();
    }

    /// Fetches `range`, which begins and ends with something of `missing`, on the control threads. The answer may be awaited
    /// anywhere, and given up; there is none when the daemon stops.
    pub fn fetch(
        &self,
        range: SectorRange,
        missing: Vec<SectorRange>,
        export: ExportId,
    ) -> oneshot::Receiver<Result<Fill, IoError>> {
        let (sender, receiver) = oneshot::channel();
        let on_unreachable = self.on_unreachable.get().copied().unwrap_or_default();
        let (remote, fenced, end) = (self.remote.clone(), Arc::clone(&self.fenced), self.end.clone());
        let repeat = Arc::clone(&self.bad_fetches);
        let fetch = Fetch { remote, export, range, missing, on_unreachable, fenced, end, repeat };
        self.queue.runtime().spawn(fetch.run(sender));
        receiver
    }
}
