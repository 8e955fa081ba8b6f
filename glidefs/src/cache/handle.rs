//! The cache as a whole: its options, its volumes, its shards, and what they share.
//!
//! Does not own how it is opened (`recovery`) or kept in order (`keeper`). Invariant: a volume is handed out as long as
//! its export was not removed, always the same one.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Clock, Disk, Lock};
use super::error::CacheError;
use super::flush::{Book, Cut, Flusher, Link, NoBook, Triggers};
use super::format::frame_crc;
use super::handoff::{Hook, OWNED_MAX, Port, Signal};
use super::keeper::Keeper;
use super::pressure::{Marks, Pressure};
use super::recovery;
use super::segment::Segment;
use super::shard::{Shard, Token};
use super::slots::{Event, Slot, Slots, State};
use super::stats::{CacheStats, ShardStats};
use super::superblock::{Superblock, VERSION_DAMAGED};
use super::volume::Volume;
use crate::store::WriterId;
use crate::store::volume::CutSource;
use crate::units::{ExportId, Seq};

/// What happens to writes when the cache is full and nothing can be moved out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// They wait.
    #[default]
    Wait,
    /// They fail with ENOSPC.
    Enospc,
}

/// How the cache is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Room for all segments together, bytes. At least `2 × shards + 3` segments.
    pub size_bytes: u64,
    /// Size of one segment file, bytes: a multiple of 4096, at least 256 KiB and below 2 TiB. Fixed when the cache is
    /// made; an existing cache keeps its own.
    pub segment_bytes: u64,
    /// Shards, one a worker. May change from one run to the next.
    pub shards: usize,
    /// What to do when the cache is full.
    pub on_full: OnFull,
}

/// The exports whose data the cache keeps.
#[derive(Debug)]
pub struct Known {
    /// Each with how far its history had come.
    pub exports: Vec<(ExportId, crate::cache::Marks)>,
    /// Where the marks are kept.
    pub book: Arc<dyn Book>,
}

impl Known {
    /// Exports that no store has anything of.
    pub fn local(ids: &[ExportId]) -> Self {
        let exports = ids.iter().map(|id| (*id, crate::cache::Marks::default())).collect();
        Self { exports, book: Arc::new(NoBook) }
    }
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Segments that held records.
    pub segments: u64,
    /// Of those, read through their footers.
    pub footers: u64,
    /// Of those, scanned record by record.
    pub scans: u64,
    /// Records found.
    pub records: u64,
    /// Entries of known exports put into an index.
    pub entries: u64,
    /// Entries that were left out because newer data of the same sectors may have left the log for the store.
    pub evicted_entries: u64,
    /// Entries of exports that are no longer known.
    pub ignored_entries: u64,
    /// Segments that ended in a record that was not whole.
    pub torn_tails: u64,
    /// Headers and footers that were damaged and made up for.
    pub bad_footers: u64,
    /// Frames and files that the disk did not read.
    pub unreadable: u64,
    /// Places in segments where records may be lost.
    pub holes: u64,
    /// Exports that may have lost a record: what of them is older than it fails.
    pub doubted: u64,
    /// How long it took, seconds.
    pub seconds: f64,
}

/// The cache. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) shared: Arc<Shared>,
}

/// What shards, the keeper and readers of figures share.
#[derive(Debug)]
pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub slots: Slots,
    pub ports: Box<[Port]>,
    pub on_full: OnFull,
    pub marks: Marks,
    pub pressure: Pressure,
    /// Wakes the keeper.
    pub signal: Signal,
    pub figures: Figures,
    /// What must outlive the cache.
    pub book: Arc<dyn Book>,
    next_segment_id: AtomicU64,
    superblock: Mutex<Superblock>,
    keeper_blocked: AtomicBool,
    /// Cuts that have reached the store.
    pub flushes: AtomicU64,
    /// Data is flushed to a store.
    store: AtomicBool,
    /// Segments whose appender let go of them.
    closed: Mutex<Vec<Segment>>,
    volumes: Mutex<HashMap<ExportId, Arc<Volume>>>,
    /// Keeps other daemons out.
    lock: LockGuard,
}

/// What [`Disk::lock`] gave.
pub(super) struct LockGuard(pub Box<dyn Lock>);

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockGuard")
    }
}

/// Counters of things that are rare.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub corrupt_frames: AtomicU64,
    pub lost_frames: AtomicU64,
    pub bad_footers: AtomicU64,
    pub segments_cleaned: AtomicU64,
    pub cleaned_bytes: AtomicU64,
    pub evicted_bytes: AtomicU64,
}

impl Cache {
    /// Opens the cache on `disk`, making it when there is none. Data of `exports` is brought back, as far as their marks
    /// allow; data of any other export is forgotten. Takes writes once the [`Keeper`] runs.
    ///
    /// # Errors
    /// See [`CacheError`]; nothing that was stable is changed when this fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: Options,
        exports: Known,
    ) -> Result<(Self, Recovered), CacheError> {
        let (shared, recovered) = recovery::open(disk, clock, &options, exports)?;
        Ok((Self { shared: Arc::new(shared) }, recovered))
    }

    /// What ties volumes of this cache to a store, whose work is done on `runtime`.
    pub fn link(&self, runtime: tokio::runtime::Handle) -> Arc<Link> {
        let slots = &self.shared.slots;
        let size_bytes = u64::from(slots.limit()).saturating_mul(slots.segment_bytes());
        Link::new(runtime, Arc::clone(&self.shared.clock), size_bytes)
    }

    /// What carries data to the store, for the volumes that are tied to it. Run it on the control threads. Call once.
    pub fn flusher(&self, link: Arc<Link>, triggers: Triggers) -> Flusher {
        self.shared.store.store(true, Ordering::Relaxed);
        Flusher::new(Arc::clone(&self.shared), link, triggers)
    }

    /// The data of export `id`: what was recovered, or an empty volume.
    pub fn volume(&self, id: ExportId) -> Arc<Volume> {
        Arc::clone(self.shared.volumes().entry(id).or_insert_with(|| Arc::new(Volume::new(id))))
    }

    /// What of `volume`, which was lost to another writer, is not in the store, as a cut for another volume of the store. What
    /// cannot be read of it, or relied on, is damaged there.
    pub fn kept(&self, volume: &Arc<Volume>) -> Arc<dyn CutSource> {
        Arc::new(Cut::all(Arc::clone(&self.shared), Arc::clone(volume)))
    }

    /// The data of a new export `id`, whose history in the store goes up to `flushed`: nothing of it is here, and its sequence
    /// numbers go on from there, so that none is given out twice.
    pub fn begin(&self, id: ExportId, flushed: Seq) -> Arc<Volume> {
        let begin = || Arc::new(Volume::at(id, crate::cache::Marks { flushed, evicted: Seq(0) }));
        Arc::clone(self.shared.volumes().entry(id).or_insert_with(begin))
    }

    /// Forgets all data of export `id`, for ever: the id must not be used again, not even after a restart.
    pub fn remove(&self, id: ExportId) {
        let removed = self.shared.volumes().remove(&id);
        if let Some(volume) = removed {
            volume.remove(&self.shared.slots);
            self.shared.signal.raise();
        }
    }

    /// A number that tells this cache directory from others, for marks that others may see. The cache's id must not be shown
    /// to them; this does not give it away.
    pub fn tag(&self) -> u32 {
        let mut marked = [0; 24];
        marked[..8].copy_from_slice(b"tag\0\0\0\0\0");
        marked[8..].copy_from_slice(&self.shared.slots.cache_id());
        frame_crc(&marked)
    }

    #[cfg(test)]
    pub(super) fn sharers(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// Which writer of volumes in the store this cache directory is.
    pub fn writer(&self) -> WriterId {
        WriterId::of(&self.shared.slots.cache_id())
    }

    /// The part of the log that worker `index` (below [`Options::shards`]) appends to. Call once for each index.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn shard<T: Token>(&self, index: usize, stats: Arc<ShardStats>) -> Shard<T> {
        assert!(index < self.shared.ports.len(), "shard {index} of {}", self.shared.ports.len());
        Shard::new(Arc::clone(&self.shared), index, stats)
    }

    /// What keeps other processes out. Register it with every ring that carries out [`Want::Append`](super::Want::Append), so
    /// that no other process opens the cache while such a write is under way.
    pub fn lock_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.lock.0.fd()
    }

    /// The background work; run it on a thread of its own. Call once.
    pub fn keeper(&self) -> Keeper {
        Keeper::new(Arc::clone(&self.shared))
    }

    /// `hook` is called, from any thread, when shard `shard` should take a turn and ask again for what had to wait.
    /// It must not block or call the cache; waking the worker is all it should do.
    pub fn on_progress(&self, shard: usize, hook: Hook) {
        if let Some(port) = self.shared.ports.get(shard) {
            port.set_hook(hook);
        }
    }

    /// Figures at this moment. Takes time in proportion to the number of exports and segments.
    pub fn stats(&self) -> CacheStats {
        let Shared { slots, figures, .. } = &*self.shared;
        let mut stats = CacheStats {
            segments: u64::from(slots.limit()),
            corrupt_frames: figures.corrupt_frames.load(Ordering::Relaxed),
            lost_frames: figures.lost_frames.load(Ordering::Relaxed),
            bad_footers: figures.bad_footers.load(Ordering::Relaxed),
            segments_cleaned: figures.segments_cleaned.load(Ordering::Relaxed),
            cleaned_bytes: figures.cleaned_bytes.load(Ordering::Relaxed),
            evicted_bytes: figures.evicted_bytes.load(Ordering::Relaxed),
            ..CacheStats::default()
        };
        for (_, slot) in slots.iter() {
            match slot.state() {
                State::Quarantined => stats.segments_quarantined += 1,
                _ if slot.is_poisoned() => stats.segments_poisoned += 1,
                State::Free => stats.segments_free += 1,
                State::Open => stats.segments_open += 1,
                State::Closed | State::Sealed => stats.segments_sealed += 1,
            }
        }
        for volume in self.shared.all_volumes() {
            let figures = volume.figures();
            stats.extents += figures.extents;
            stats.dirty_bytes += figures.dirty_bytes;
            stats.clean_bytes += figures.clean_bytes;
            stats.doubted_exports += u64::from(volume.is_doubted());
        }
        stats.limit_bytes = stats.segments * slots.segment_bytes();
        stats.used_bytes = (stats.segments - stats.segments_free) * slots.segment_bytes();
        stats
    }
}

/// What recovery hands to [`Shared::new`].
pub(super) struct Parts {
    pub disk: Arc<dyn Disk>,
    pub superblock: Superblock,
    pub clock: Arc<dyn Clock>,
    pub slots: Slots,
    pub volumes: HashMap<ExportId, Arc<Volume>>,
    pub next_segment_id: u64,
    pub lock: LockGuard,
    pub book: Arc<dyn Book>,
    pub bad_footers: u64,
    /// Segments to seal that recovery could not.
    pub given_up: Vec<Segment>,
}

impl Shared {
    pub fn new(parts: Parts, options: &Options) -> Self {
        let Parts { disk, superblock, clock, slots, volumes, next_segment_id, lock, book, .. } = parts;
        // Room for all that shards may have, so that letting go of one allocates nothing.
        let mut closed = parts.given_up;
        closed.reserve(options.shards.saturating_mul(OWNED_MAX as usize));
        // Checked when opening: there are far more slots than shards.
        let shards = u32::try_from(options.shards).unwrap_or(u32::MAX);
        Self {
            disk,
            clock,
            marks: Marks::new(slots.limit(), shards),
            slots,
            ports: (0..options.shards).map(|_| Port::default()).collect(),
            on_full: options.on_full,
            pressure: Pressure::default(),
            signal: Signal::default(),
            figures: Figures { bad_footers: AtomicU64::new(parts.bad_footers), ..Figures::default() },
            book,
            next_segment_id: AtomicU64::new(next_segment_id),
            superblock: Mutex::new(superblock),
            flushes: AtomicU64::new(0),
            keeper_blocked: AtomicBool::new(false),
            store: AtomicBool::new(false),
            closed: Mutex::new(closed),
            volumes: Mutex::new(volumes),
            lock,
        }
    }

    fn volumes(&self) -> MutexGuard<'_, HashMap<ExportId, Arc<Volume>>> {
        // A map is whole between its own calls.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume of `id`, unless it was removed.
    pub fn find_volume(&self, id: ExportId) -> Option<Arc<Volume>> {
        self.volumes().get(&id).cloned()
    }

    /// An id no segment ever had.
    pub fn new_segment_id(&self) -> u64 {
        self.next_segment_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes sure that no glidefs that knows no [`EntryKind::Damaged`](super::format::EntryKind::Damaged) opens the cache. Blocks
    /// on the disk, the first time.
    pub fn expect_damage(&self) -> io::Result<()> {
        let mut superblock = self.superblock.lock().unwrap_or_else(PoisonError::into_inner);
        if superblock.version < VERSION_DAMAGED {
            let raised = Superblock { version: VERSION_DAMAGED, ..*superblock };
            self.disk.replace_superblock(&raised.encode())?;
            *superblock = raised;
        }
        Ok(())
    }

    /// All volumes.
    pub fn all_volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes().values().cloned().collect()
    }

    /// Takes a segment that will not be appended to any more, to be sealed off the workers.
    pub fn close(&self, segment: Segment) {
        self.slots.get(segment.slot).on(Event::Close);
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(segment);
        self.signal.raise();
    }

    /// Whether a shard waits for a segment, or left one to be sealed.
    pub fn is_keeper_needed(&self) -> bool {
        self.ports.iter().any(Port::is_waiting)
            || !self.closed.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Moves the segments closed since the last call to `segments`.
    pub fn take_closed(&self, segments: &mut Vec<Segment>) {
        segments.append(&mut self.closed.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The keeper found a file it wants to sync being synced.
    pub fn block_keeper_on_sync(&self) {
        self.keeper_blocked.store(true, Ordering::SeqCst);
    }

    /// Whether data is flushed to a store.
    pub fn has_store(&self) -> bool {
        self.store.load(Ordering::Relaxed)
    }

    /// A cut has reached the store: there may be something to forget, and FLUSHes that waited for it may end.
    pub fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Release);
        self.signal.raise();
        for port in &self.ports {
            port.wake();
        }
    }

    /// Gives the file of `slot`, held by [`Slot::begin_sync`], back without having synced it. Who wanted to sync the file
    /// meanwhile is told, as after a sync.
    pub fn cancel_sync(&self, slot: &Slot) {
        slot.cancel_sync();
        self.sync_ended();
    }

    /// Tells everybody who waits for somebody's sync that one has ended.
    pub fn sync_ended(&self) {
        if self.keeper_blocked.swap(false, Ordering::SeqCst) {
            self.signal.raise();
        }
        for port in &self.ports {
            port.sync_ended();
        }
    }
}
