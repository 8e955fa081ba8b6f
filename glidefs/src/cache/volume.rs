//! The data of one export in the cache: the index, the position of the history, the places not known to be stable, and the cuts
//! on their way to the store.
//!
//! Owns the state, and the lock around the state; the methods are in the children, by subject. Does not own segments, nor when a
//! cut is made (`writeback/due`). Invariants: a sequence number is given out once (`appends`); a place with an append not known
//! to be stable is in `unsynced` before the request of the append is acknowledged (`appends`); a cut is complete when every
//! write of the cut has been appended or has failed (`cuts`).

pub(super) mod appends;
pub(in crate::cache) mod budget;
pub(in crate::cache) mod budgeted;
pub mod cells;
mod content;
pub(super) mod crowding;
pub(super) mod cuts;
mod doubts;
pub mod durability;
pub mod error;
pub mod extent;
pub mod fetch;
pub mod flush_habit;
pub(super) mod gate;
pub(in crate::cache) mod hold;
pub mod index;
pub(in crate::cache) mod layer;
pub mod layers;
pub mod linked;
pub(in crate::cache) mod loading;
#[cfg(test)]
mod longest;
pub mod queue;
pub(in crate::cache) mod ranks;
pub mod store_link;
pub(super) mod zeroes;

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use self::budget::Usage;
use self::cuts::Sample;
use self::flush_habit::FlushHabit;
use self::gate::Gate;
use crate::cache::log::table::{Place, SegmentTable};
use crate::cache::volume::layer::Dead;
use crate::cache::volume::layers::{Layers, SeqMarks};
use crate::cache::volume::store_link::StoreLink;
use crate::fair::WEIGHT_DEFAULT;
use crate::locks::MutexExt;
use crate::observe::memory::heap_bytes;
use crate::observe::repeat::Repeat;
use crate::store::volume::VolumeWriter;
use crate::units::{ExportId, SectorRange, Seq};

/// The data of one export in the cache.
#[derive(Debug)]
pub struct Volume {
    id: ExportId,
    /// The link to the volume's counterpart in the store. None where there is no store, and small then.
    store_link: OnceLock<Box<StoreLink>>,
    /// Whether requests are served, and may wait.
    gate: Arc<Gate>,
    weight: AtomicU16,
    usage: Usage,
    pub(super) flush_habit: FlushHabit,
    /// Holds back log lines about data unreadable here.
    pub(super) bad_reads: Repeat,
    /// Holds back log lines about failing writeback.
    pub(super) bad_writebacks: Repeat,
    /// Holds back log lines about a store which does not say whose the export is.
    silence: Repeat,
    /// Held for one index operation at a time.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    layers: Layers,
    /// Last sequence number given out.
    last_seq: u64,
    /// Numbers to leave out before the next one given out: an earlier life of the daemon may have given these out.
    skipped_seqs: u64,
    /// Content may be left to the store (`linked`), and a sector may have other content then.
    may_leave: bool,
    /// Nothing up to here is taken from the log by recovery.
    evicted: Seq,
    /// Sequence numbers given out and not landed: the write has neither been appended nor failed.
    under_way: u64,
    /// Those of them given out to writes with data.
    data_under_way: u64,
    /// Highest failed number in no cut. The record of a failed number may be on disk all the same, and recovery may find the
    /// record.
    failed: Seq,
    /// Highest failed number of the cuts in the store.
    failed_before: Seq,
    /// A sample of the writes since the last cut.
    sample: Sample,
    /// The next FLUSH makes a cut.
    cut_at_flush: bool,
    /// Writeback is told when so many bytes of data are not in the store.
    tell_at: Option<u64>,
    /// When the oldest data in no cut was appended. None without a store.
    active_since: Option<Duration>,
    /// Bytes of writes told to go on and not ended yet. Counted only where data at risk is bounded.
    promised_bytes: u64,
    /// Sectors of writes let go on since the index has extents for them to replace, `true`, or needs none. No two overlap.
    kept: Vec<(SectorRange, bool)>,
    /// Places which may not be stable, one for each use of a segment file.
    unsynced: Vec<Place>,
    removed: bool,
}

/// Figures of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    /// Extents in the index.
    pub extents: u64,
    /// Extents of data in the store and in the log.
    pub clean_extents: u64,
    /// Memory of the index in all layers, as the budget counts it: bytes, as if nothing were packed.
    pub index_bytes: u64,
    /// The part of `index_bytes` that packed leaves do not take.
    pub index_saved_bytes: u64,
    /// Bytes of data not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data in the store and in the log.
    pub clean_bytes: u64,
    /// Last sequence number given out.
    pub last_seq: Seq,
    /// Everything up to here is in the store.
    pub stored: Seq,
    /// Age of the oldest data not in the store; zero without such data, or without a store. Data found when the daemon started
    /// counts from the start on.
    pub at_risk_for: Duration,
    /// A record of the volume may be lost: a READ of older data fails.
    pub doubted: bool,
    /// Cuts not in the store. The first one is on the way there.
    pub cuts: usize,
}

impl Volume {
    /// An empty volume.
    pub fn new(id: ExportId) -> Self {
        Self::at(id, SeqMarks::default())
    }

    /// A volume which is in the store up to `marks.stored`, with no data here.
    pub(super) fn at(id: ExportId, marks: SeqMarks) -> Self {
        let stored = marks.stored.max(marks.evicted);
        let inner = Inner {
            layers: Layers::new(stored),
            last_seq: stored.0,
            evicted: marks.evicted,
            ..Inner::default()
        };
        Self {
            id,
            store_link: OnceLock::new(),
            gate: Arc::default(),
            weight: AtomicU16::new(WEIGHT_DEFAULT),
            usage: Usage::default(),
            flush_habit: FlushHabit::default(),
            bad_reads: Repeat::default(),
            bad_writebacks: Repeat::default(),
            silence: Repeat::default(),
            inner: Mutex::new(inner),
        }
    }

    /// Whether the volume has nothing that a new volume with the history `stored` in the store would lack. For recovery: no request
    /// is under way.
    pub(super) fn is_blank_at(&self, stored: Seq) -> bool {
        let inner = self.lock();
        inner.last_seq == stored.0 && inner.unsynced.is_empty() && inner.layers.is_blank_at(stored)
    }

    /// Whether nothing was ever written, here or in the store: every sector reads as zeroes. `false` also where the store's part is not
    /// known. For a volume in service, whose history recovery has found.
    pub fn is_blank(&self) -> bool {
        let is_blank_here = {
            let inner = self.lock();
            let is_whole = !inner.removed && inner.evicted == Seq(0);
            is_whole && inner.last_seq == 0 && inner.under_way == 0 && inner.layers.is_blank_at(Seq(0))
        };
        is_blank_here && self.remote().is_none_or(VolumeWriter::is_blank)
    }

    /// The export of the data.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// Share of the export wherever exports compete, in proportion to the weights of the others: 1 to
    /// [`WEIGHT_MAX`](crate::fair::WEIGHT_MAX).
    #[inline]
    pub fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Changes the weight, also for requests which wait, and in the store.
    pub fn set_weight(&self, weight: u16) {
        self.weight.store(weight, Ordering::Relaxed);
        self.weigh_link();
    }

    /// Tells the volume's counterpart in the store the weight.
    fn weigh_link(&self) {
        if let Some(link) = self.store_link() {
            link.remote.set_weight(self.weight());
        }
    }

    /// Figures at this moment.
    pub fn figures(&self) -> VolumeFigures {
        let inner = self.lock();
        VolumeFigures {
            extents: inner.layers.len() as u64,
            clean_extents: inner.layers.clean_len() as u64,
            index_bytes: inner.layers.index_bytes(),
            index_saved_bytes: inner.layers.index_saved_bytes(),
            dirty_bytes: inner.layers.dirty_bytes(),
            clean_bytes: inner.layers.clean_bytes(),
            last_seq: Seq(inner.last_seq),
            stored: inner.layers.stored(),
            at_risk_for: inner.at_risk_for(self.store_link()),
            doubted: inner.layers.is_doubted(),
            cuts: inner.layers.cuts().len(),
        }
    }

    /// Memory besides the index, bytes.
    pub fn own_bytes(&self) -> u64 {
        let unsynced = self.lock().unsynced.capacity() * size_of::<Place>();
        let link = self
            .store_link
            .get()
            .map_or(0, |_| heap_bytes(size_of::<StoreLink>()) + VolumeWriter::HEAP_BYTES);
        (heap_bytes(size_of::<Self>()) + heap_bytes(size_of::<Gate>()) + heap_bytes(unsynced) + link) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        hold::begin();
        // No code under the lock can panic half-way through a change.
        self.inner.lock_whole()
    }

    /// Takes all data out of use, for ever. The extents are to be forgotten.
    pub(super) fn remove(&self, table: &SegmentTable) -> Dead {
        let mut inner = self.lock();
        let dead = inner.layers.clear(table);
        self.note_index(&inner);
        inner.unsynced = Vec::new();
        inner.removed = true;
        drop(inner);
        // Waits for writeback and for fetches are told.
        if let Some(link) = self.store_link() {
            link.remove(self.id);
        }
        dead
    }

    /// Whether the data was forgotten.
    pub fn is_removed(&self) -> bool {
        self.lock().removed
    }
}

impl Inner {
    /// How long the oldest data has not been in the store.
    fn at_risk_for(&self, link: Option<&StoreLink>) -> Duration {
        let since = self.layers.cuts().iter().find_map(|cut| cut.since).or(self.active_since);
        since.zip(link).map_or(Duration::ZERO, |(since, link)| link.queue.clock.now().saturating_sub(since))
    }
}

#[cfg(test)]
mod tests;
