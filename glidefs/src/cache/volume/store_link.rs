//! The link between a volume and the volume's counterpart in the store.
//!
//! Owns the settings and the known state of the counterpart. Does not own the list of volumes to write back (`queue`), the
//! writeback (`writeback/engine`), nor the fetching (`fetch`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, oneshot};

use super::crowding::Crowding;
use super::fetch::{Fetch, Fill, why_lost};
use super::gate::Gate;
use crate::cache::volume::error::IoError;
use crate::cache::volume::queue::WritebackQueue;
use crate::locks::MutexExt;
use crate::observe::repeat::Repeat;
use crate::properties::{Bound, Durability, OnUnreachable, Properties};
use crate::store;
use crate::store::volume::Upload;
use crate::tasks;
use crate::units::{ExportId, SectorRange, Seq};

/// [`StoreLink::unnoted`] before the answer: a sequence number that no write gets.
const NOT_ASKED: u64 = u64::MAX;

/// A volume's side of the link.
pub(in crate::cache) struct StoreLink {
    pub(in crate::cache) remote: store::volume::VolumeWriter,
    pub(in crate::cache) queue: Arc<WritebackQueue>,
    /// Size of the export, sectors.
    size_sectors: AtomicU64,
    stored_sectors: AtomicU64,
    /// How often a manifest was due for properties, and how many of these settings the store knows.
    properties: AtomicU64,
    stored_properties: AtomicU64,
    /// Notified whenever a cut has reached the store or the volume was lost to another writer.
    pub(in crate::cache) progress: Notify,
    /// The store has all writes up to this number, though the catalog may not say so yet.
    committed: AtomicU64,
    /// Last sequence number given out before the link, where the store may have a manifest above the catalog's.
    found: Option<Seq>,
    /// See [`Self::unnoted`]; [`NOT_ASKED`] before the answer.
    unnoted: AtomicU64,
    pub(in crate::cache) landing: Notify,
    /// The properties that requests are served by; `None` while they are the usual ones.
    served_by: ArcSwapOption<Properties>,
    /// The gate of the volume.
    gate: Arc<Gate>,
    /// Holds back log lines about failing fetches.
    bad_fetches: Arc<Repeat>,
    /// Progress of the cut on its way, over all tries.
    pub(in crate::cache) upload: Upload,
    /// The last cut could not be read.
    unreadable: AtomicBool,
    /// Cuts which could not be read so far: all of them, and in a row up to the last one.
    unreadable_cuts: AtomicU64,
    unreadable_in_a_row: AtomicU64,
    /// Cuts in the store without some of the cut's content, which was lost.
    lossy_cuts: AtomicU64,
    /// The lossy cuts a FLUSH was told of.
    told_losses: AtomicU64,
    /// Why the last cut did not get to the store, if so.
    trouble: Mutex<Option<String>>,
    pub(in crate::cache) crowding: Crowding,
    /// Nothing is written back or merged unless somebody asks: work for the export has ended the daemon.
    pub(in crate::cache) is_held_back: AtomicBool,
}

crate::units::debug_by_name!(StoreLink);

impl StoreLink {
    /// Links an export of `size_sectors`, of which the store knows `stored_sectors`. If the store may have a manifest above
    /// the catalog's, sequence numbers up to `found` were given out.
    pub fn new(
        remote: store::volume::VolumeWriter,
        queue: Arc<WritebackQueue>,
        gate: Arc<Gate>,
        (size_sectors, stored_sectors): (u64, u64),
        found: Option<Seq>,
    ) -> Self {
        let committed = AtomicU64::new(remote.cut().0);
        let crowding = Crowding::default();
        crowding.set(remote.crowd().unwrap_or_default());
        Self {
            remote,
            queue,
            crowding,
            size_sectors: AtomicU64::new(size_sectors),
            stored_sectors: AtomicU64::new(stored_sectors),
            properties: AtomicU64::new(0),
            stored_properties: AtomicU64::new(0),
            progress: Notify::new(),
            committed,
            found,
            unnoted: AtomicU64::new(NOT_ASKED),
            landing: Notify::new(),
            served_by: ArcSwapOption::empty(),
            gate,
            bad_fetches: Arc::default(),
            upload: Upload::default(),
            unreadable: AtomicBool::new(false),
            unreadable_cuts: AtomicU64::new(0),
            unreadable_in_a_row: AtomicU64::new(0),
            lossy_cuts: AtomicU64::new(0),
            told_losses: AtomicU64::new(0),
            trouble: Mutex::default(),
            is_held_back: AtomicBool::new(false),
        }
    }

    /// Has packs merged of a volume crowded from the beginning: the volume's writes may have to wait for merging, and then there
    /// is no writeback to begin a merge.
    pub fn merge_if_crowded(&self, id: ExportId) {
        if self.crowding.is_slow() {
            self.queue.merge(id);
        }
    }

    /// Notes that the store has all writes up to `seq`, and tells the FLUSHes which wait for the cut. The catalog is told later.
    pub(in crate::cache) fn set_committed(&self, seq: Seq) {
        self.committed.fetch_max(seq.0, Ordering::AcqRel);
        self.gate.waiters.tell();
    }

    /// The store has all writes up to here, as far as known to FLUSHes.
    pub fn committed(&self) -> Seq {
        Seq(self.committed.load(Ordering::Acquire))
    }

    /// The last cut in the store that an earlier life of the daemon made, while the catalog has no note of the cut; `Seq(0)` without
    /// such a cut, and `None` before the store was asked.
    pub(in crate::cache) fn unnoted(&self) -> Option<Seq> {
        let unnoted = self.unnoted.load(Ordering::Acquire);
        (unnoted != NOT_ASKED).then_some(Seq(unnoted))
    }

    pub(in crate::cache) fn set_unnoted(&self, unnoted: Seq) {
        self.unnoted.store(unnoted.0, Ordering::Release);
    }

    /// The cut of the newest manifest known, if [`Self::unnoted`] may be that cut, in a volume stored up to `stored`. Meaningful only
    /// before the first commit of this life: no later one is of an earlier life.
    ///
    /// Numbers up to the cut may not have been given out in this life, so the log must have had all of these numbers.
    pub(in crate::cache) fn cut_before(&self, stored: Seq) -> Option<Seq> {
        Some(self.remote.cut()).filter(|cut| *cut > stored && Some(*cut) <= self.found)
    }

    /// Whether the store turned out to have no cut with a number that the log does not have. Meaningful only before the first
    /// commit of this life.
    pub(in crate::cache) fn has_all_numbers(&self) -> bool {
        !self.remote.may_be_behind() && Some(self.remote.cut()) <= self.found
    }

    /// Size of the export, sectors.
    pub fn size_sectors(&self) -> u64 {
        self.size_sectors.load(Ordering::Acquire)
    }

    /// Notes the export's new size, sectors.
    pub fn set_size(&self, size_sectors: u64) {
        self.size_sectors.store(size_sectors, Ordering::Release);
    }

    /// Notes the size known to the store, sectors.
    pub fn stored_size(&self, size_sectors: u64) {
        self.stored_sectors.store(size_sectors, Ordering::Release);
    }

    /// Serves requests by `properties`, and writes them into the next manifest. True if a manifest is due: the properties replace
    /// others, or the store is to name them `anew`.
    pub fn set_properties(&self, properties: &Properties, anew: bool) -> bool {
        let unusual = (*properties != Properties::default()).then(|| Arc::new(*properties));
        self.served_by.store(unusual);
        // A FLUSH that waits for the store may not have to any more.
        self.gate.waiters.tell();
        let is_due = self.remote.set_properties(*properties) || anew;
        self.properties.fetch_add(u64::from(is_due), Ordering::AcqRel);
        is_due
    }

    /// How often a manifest was due for properties.
    pub fn properties_set(&self) -> u64 {
        self.properties.load(Ordering::Acquire)
    }

    /// Notes that the store knows the properties as of [`Self::properties_set`].
    pub fn stored_properties(&self, properties_set: u64) {
        self.stored_properties.store(properties_set, Ordering::Release);
    }

    /// Whether the store knows another size, or other properties.
    pub fn has_news(&self) -> bool {
        self.size_sectors() != self.stored_sectors.load(Ordering::Acquire)
            || self.properties_set() != self.stored_properties.load(Ordering::Acquire)
    }

    /// Whether FLUSH waits for the store.
    pub fn waits(&self) -> bool {
        self.served_by.load().as_ref().is_some_and(|served| served.durability == Durability::Store)
    }

    /// The bound on data at risk, if any.
    pub fn bound(&self) -> Option<Bound> {
        match self.served_by.load().as_ref()?.durability {
            Durability::Bounded(bound) => Some(bound),
            Durability::Local | Durability::Store => None,
        }
    }

    /// Whether another writer, or another history, has the volume.
    pub fn is_lost(&self) -> bool {
        self.gate.lost().is_some()
    }

    /// Loses the volume: the store's counterpart belongs to another writer, or has another history.
    pub fn fence(&self) {
        self.gate.lose(why_lost(&self.remote));
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

    /// Notes that the disk answered for all of the last cut. If later reads fail, the disk has the whole patience again to come
    /// back.
    pub(in crate::cache) fn was_read(&self) {
        self.unreadable_in_a_row.store(0, Ordering::Release);
    }

    /// How many cuts in a row, up to the last one, could not be read.
    pub(in crate::cache) fn unreadable_in_a_row(&self) -> u64 {
        self.unreadable_in_a_row.load(Ordering::Acquire)
    }

    /// Notes that the store has a cut without some of the cut's content. Called before the cut counts as written back.
    pub(in crate::cache) fn lose_content(&self) {
        self.lossy_cuts.fetch_add(1, Ordering::AcqRel);
    }

    /// How many cuts could not be read, or went to the store without some of their content and a FLUSH was told so.
    pub fn failed_cuts(&self) -> u64 {
        self.unreadable_cuts().saturating_add(self.told_losses.load(Ordering::Acquire))
    }

    /// Whether a FLUSH is to be told of lost content. `failed` is [`Self::failed_cuts`] at the beginning of the FLUSH.
    pub fn reports_loss(&self, failed: u64) -> bool {
        let lossy = self.lossy_cuts.load(Ordering::Acquire);
        let untold = lossy > self.told_losses.swap(lossy, Ordering::AcqRel);
        untold || (lossy > 0 && self.failed_cuts() > failed)
    }

    /// How many cuts could not be read. A wait for writeback gives up when the number grows.
    pub fn unreadable_cuts(&self) -> u64 {
        self.unreadable_cuts.load(Ordering::Acquire)
    }

    pub fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Acquire)
    }

    /// Notes why a cut did not get to the store; `None` for a cut in the store.
    pub(in crate::cache) fn set_trouble(&self, trouble: Option<String>) {
        // A value is whole between assignments.
        *self.trouble.lock_whole() = trouble;
    }

    /// Why data here is not in the store yet, as far as known: the trouble of the last cut, or of the store.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock_whole().clone();
        trouble.or_else(|| self.remote.store_trouble())
    }

    /// Tells everybody who waits for writeback that a cut has ended.
    pub fn advanced(&self) {
        self.progress.notify_waiters();
        self.gate.waiters.tell();
    }

    /// Ends all fetches, later ones as well: the data was forgotten.
    pub fn remove(&self, export: ExportId) {
        self.gate.close(IoError::Removed(export));
        self.progress.notify_waiters();
        self.landing.notify_waiters();
    }

    /// Fetches `range`, which begins and ends with sectors of `missing`, on the control threads. The answer may be awaited
    /// anywhere, or dropped; there is none when the daemon stops.
    pub fn fetch(
        &self,
        range: SectorRange,
        missing: Vec<SectorRange>,
        export: ExportId,
    ) -> oneshot::Receiver<Result<Fill, IoError>> {
        debug_assert!(
            missing.first().is_some_and(|first| first.start() == range.start())
                && missing.last().is_some_and(|last| last.end() == range.end()),
            "a fetch begins and ends with missing sectors"
        );
        let (sender, receiver) = oneshot::channel();
        let served_by = self.served_by.load();
        let on_unreachable = served_by.as_ref().map_or(OnUnreachable::Wait, |served| served.on_unreachable);
        let (remote, gate) = (self.remote.clone(), Arc::clone(&self.gate));
        let repeat = Arc::clone(&self.bad_fetches);
        let fetch = Fetch { remote, export, range, missing, on_unreachable, gate, repeat };
        self.queue.runtime.spawn(tasks::for_export(export, fetch.run(sender)));
        receiver
    }
}
