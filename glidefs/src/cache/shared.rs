//! The state shared by shards, the keeper, writeback and recovery.
//!
//! Owns the segment table, the volumes, the ports between shards and keeper, and the counters of rare events. Does not own how
//! the cache is opened (`recovery`) or kept in order (`keeper`). Invariant: one volume an export, from the export's first use
//! until the export is removed.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::cache::catalog::CacheCatalog;
use crate::cache::handoff::{OWNED_MAX, OWNED_MIN, OWNED_THROUGH, Port, Signal, Way};
use crate::cache::log::disk::{Clock, Disk, Lock};
use crate::cache::log::heat::Heat;
use crate::cache::log::life::State;
use crate::cache::log::pressure::{Pressure, Watermarks};
use crate::cache::log::scan::Unusable;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::superblock::{Superblock, VERSION_DAMAGED};
use crate::cache::log::table::SegmentTable;
use crate::cache::options::{OnFull, Options, Recovered};
use crate::cache::sums::Sums;
use crate::cache::volume::Volume;
use crate::cache::volume::budget::Budget;
use crate::cache::volume::layer::Dead;
use crate::locks::MutexExt;
use crate::units::{ExportId, FRAME_BYTES};

/// The state shared by shards, the keeper and readers of figures.
#[derive(Debug)]
pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub table: SegmentTable,
    pub ports: Box<[Arc<Port>]>,
    pub on_full: OnFull,
    pub watermarks: Watermarks,
    pub pressure: Pressure,
    pub signal: Signal,
    pub figures: Figures,
    pub sums: Sums,
    /// Most frames in memory for READs.
    pub mapped_frames_max: u64,
    /// How often stretches of segments are READ from the page cache.
    pub heat: Heat,
    /// Whether READs have any mapped segment to look for.
    mapped: AtomicBool,
    /// The budgets of memory for indexes and of log space.
    pub budget: Arc<Budget>,
    /// The facts that must outlive the cache.
    pub catalog: Arc<dyn CacheCatalog>,
    next_segment_id: AtomicU64,
    superblock: Mutex<Superblock>,
    keeper_blocked: AtomicBool,
    /// The findings of the start.
    pub recovered: Recovered,
    /// Notified at the end of each hold on a segment file.
    syncs: Notify,
    /// Cuts carried to the store so far.
    pub writebacks_ended: AtomicU64,
    /// Data is written back to a store.
    store: AtomicBool,
    /// Segments to be sealed, which their shards have let go of.
    closed: Mutex<Vec<SegmentWriter>>,
    volumes: Mutex<HashMap<ExportId, Arc<Volume>>>,
    /// Extents out of use, which the keeper forgets a few at a time.
    dead: Mutex<Vec<Dead>>,
    /// Keeps other daemons out.
    pub lock: Box<dyn Lock>,
}

/// Counters of rare events.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub corrupt_frames: AtomicU64,
    pub lost_frames: AtomicU64,
    pub bad_footers: AtomicU64,
    pub checkpoints_written: AtomicU64,
    pub segments_cleaned: AtomicU64,
    pub cleaned_bytes: AtomicU64,
    pub evicted_bytes: AtomicU64,
}

/// The parts handed over by recovery to [`Shared::new`].
pub(super) struct Parts {
    pub disk: Arc<dyn Disk>,
    pub superblock: Superblock,
    pub clock: Arc<dyn Clock>,
    pub table: SegmentTable,
    pub volumes: HashMap<ExportId, Arc<Volume>>,
    pub next_segment_id: u64,
    pub lock: Box<dyn Lock>,
    pub catalog: Arc<dyn CacheCatalog>,
    /// Segments which recovery could not seal, to be sealed by the keeper.
    pub given_up: Vec<SegmentWriter>,
    pub recovered: Recovered,
}

impl Shared {
    pub fn new(parts: Parts, options: &Options) -> Self {
        let Parts { disk, superblock, clock, table, volumes, next_segment_id, lock, catalog, .. } = parts;
        let recovered = parts.recovered;
        // Room for all segments of all shards, so letting go of a segment allocates nothing.
        let mut closed = parts.given_up;
        closed.reserve(options.shards.saturating_mul((OWNED_MAX + OWNED_THROUGH) as usize));
        // Checked when opening: there are far more segments than shards.
        let shards = u32::try_from(options.shards).unwrap_or(u32::MAX);
        let watermarks = Watermarks::new(table.limit(), shards);
        let owned = shards.saturating_mul(OWNED_MIN);
        let log_bytes_max = watermarks.room_bytes(table.limit(), owned, table.segment_bytes());
        // Nothing is counted where nothing may be mapped.
        let counted = if options.mapped_bytes_max == 0 { 0 } else { table.limit() };
        let heat = Heat::new(counted, table.segment_frames());
        let budget = Budget::new(options.budgets, log_bytes_max, options.on_full == OnFull::Enospc);
        let budget = Arc::new(budget);
        for volume in volumes.values() {
            volume.join(&budget);
        }
        Self {
            budget,
            disk,
            clock,
            watermarks,
            table,
            ports: (0..options.shards).map(|_| Arc::default()).collect(),
            on_full: options.on_full,
            pressure: Pressure::default(),
            signal: Signal::default(),
            sums: Sums::new(options.checksums_bytes_max),
            mapped_frames_max: options.mapped_bytes_max / FRAME_BYTES as u64,
            heat,
            mapped: AtomicBool::new(false),
            figures: Figures { bad_footers: AtomicU64::new(recovered.bad_footers), ..Figures::default() },
            catalog,
            next_segment_id: AtomicU64::new(next_segment_id),
            superblock: Mutex::new(superblock),
            recovered,
            syncs: Notify::new(),
            writebacks_ended: AtomicU64::new(0),
            keeper_blocked: AtomicBool::new(false),
            store: AtomicBool::new(false),
            closed: Mutex::new(closed),
            volumes: Mutex::new(volumes),
            dead: Mutex::default(),
            lock,
        }
    }

    pub fn volumes(&self) -> MutexGuard<'_, HashMap<ExportId, Arc<Volume>>> {
        // A map is whole between the map's own calls.
        self.volumes.lock_whole()
    }

    /// Has the keeper forget the extents of `dead`, which may be many.
    pub fn bury(&self, dead: Dead) {
        if !dead.is_empty() {
            self.dead.lock_whole().push(dead);
            self.signal.raise();
        }
    }

    /// Forgets up to about `extents` extents out of use, and returns whether there were any.
    pub fn bury_some(&self, extents: usize) -> bool {
        let Some(mut dead) = self.dead.lock_whole().pop() else { return false };
        dead.forget_some(&self.table, extents);
        if !dead.is_empty() {
            self.dead.lock_whole().push(dead);
        }
        true
    }

    /// The volume of `id`, unless it was removed.
    pub fn find_volume(&self, id: ExportId) -> Option<Arc<Volume>> {
        self.volumes().get(&id).cloned()
    }

    /// An id no segment ever had.
    pub fn new_segment_id(&self) -> u64 {
        self.next_segment_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes sure that a glidefs without [`EntryKind::Damaged`](crate::cache::log::format::EntryKind::Damaged) never opens the
    /// cache. Blocks on the disk, the first time.
    pub fn expect_damage(&self) -> io::Result<()> {
        let mut superblock = self.superblock.lock_whole();
        if superblock.version < VERSION_DAMAGED {
            let raised = Superblock { version: VERSION_DAMAGED, ..*superblock };
            self.disk.replace_superblock(&raised.encode())?;
            *superblock = raised;
        }
        Ok(())
    }

    /// Number of this start, as log and catalog count.
    pub fn start(&self) -> u32 {
        self.superblock.lock_whole().start
    }

    /// Logs an `error` about the file of segment `number`.
    pub fn report(&self, number: u32, error: &(dyn std::error::Error + 'static), what: &'static str) {
        tracing::error!(file = self.disk.segment_name(number), error, "{what}");
    }

    /// Reports a footer that does not decode: the record headers serve instead.
    pub fn note_bad_footer(&self, number: u32, error: &Unusable) {
        self.report(number, error, "a footer is damaged; scanning the segment");
        self.figures.bad_footers.fetch_add(1, Ordering::Relaxed);
    }

    /// The volume of `id`, made by `begin` if there is none.
    pub fn volume(&self, id: ExportId, begin: impl FnOnce() -> Volume) -> Arc<Volume> {
        let made = || {
            let volume = begin();
            volume.join(&self.budget);
            Arc::new(volume)
        };
        Arc::clone(self.volumes().entry(id).or_insert_with(made))
    }

    pub fn all_volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes().values().cloned().collect()
    }

    /// Takes a segment which is appended to no more, to be sealed off the workers.
    pub fn close(&self, segment: SegmentWriter) {
        self.table.get(segment.number).enter(State::Closed);
        self.closed.lock_whole().push(segment);
        self.signal.raise();
    }

    /// Whether a shard waits for a segment or for checksums, or a segment waits to be sealed.
    pub fn is_keeper_needed(&self) -> bool {
        self.ports.iter().any(|port| port.is_waiting(Way::Common))
            || self.sums.is_asked()
            || !self.closed.lock_whole().is_empty()
    }

    /// Moves the segments closed since the last call to `segments`.
    pub fn take_closed(&self, segments: &mut Vec<SegmentWriter>) {
        segments.append(&mut self.closed.lock_whole());
    }

    /// Whether a READ may find a mapped segment.
    pub fn has_mapped(&self) -> bool {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Tells READs whether any segment is mapped.
    pub fn set_mapped(&self, mapped: bool) {
        self.mapped.store(mapped, Ordering::Relaxed);
    }

    /// Notes that the keeper found a file to sync being synced by another holder.
    pub fn block_keeper_on_sync(&self) {
        self.keeper_blocked.store(true, Ordering::SeqCst);
    }

    /// Notes that data is written back to a store from now on.
    pub fn attach_store(&self) {
        self.store.store(true, Ordering::Relaxed);
    }

    /// Whether data is written back to a store.
    pub fn has_store(&self) -> bool {
        self.store.load(Ordering::Relaxed)
    }

    /// A cut has reached the store: some data may be forgotten.
    pub fn writeback_ended(&self) {
        self.writebacks_ended.fetch_add(1, Ordering::Release);
        self.signal.raise();
    }

    /// Ends with the next sync that ends after this call.
    pub fn next_sync(&self) -> Notified<'_> {
        self.syncs.notified()
    }

    /// A sync has ended: wakes every shard, the keeper and each cut waiting for another one's sync.
    pub fn sync_ended(&self) {
        self.syncs.notify_waiters();
        if self.keeper_blocked.swap(false, Ordering::SeqCst) {
            self.signal.raise();
        }
        for port in &self.ports {
            port.sync_ended();
        }
    }
}
