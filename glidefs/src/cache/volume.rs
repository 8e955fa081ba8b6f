//! One export's data in the cache: its index, its history's position, what of it is not stable yet, and the cut that is
//! on its way to the store.
//!
//! Does not own segments, nor when a cut is made (`flush`). Invariants: a sequence number is given out once; everything this
//! volume appended and that is not known to be stable is in `unsynced` before the request that appended it is acknowledged;
//! a cut is complete when every write it covers has been appended or has failed.

mod appends;
mod cleaning;
pub(super) mod crowding;
pub(super) mod cuts;
mod doubted;
mod doubts;
pub mod durability;
pub mod error;
pub mod extent;
pub mod fetch;
pub mod index;
mod layer;
pub mod layers;
pub mod linked;
mod plan;
pub mod queue;
mod sample;
pub mod store_link;
mod unsynced;
mod waits;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use self::sample::Sample;
use crate::cache::log::table::{Place, SegmentTable};
use crate::cache::volume::layers::{Layers, SeqMarks};
use crate::cache::volume::store_link::StoreLink;
use crate::observe::repeat::Repeat;
use crate::units::{ExportId, Seq};

/// One export's data in the cache.
#[derive(Debug)]
pub struct Volume {
    id: ExportId,
    /// The store's side of it; none where there is no store.
    store_link: OnceLock<StoreLink>,
    waits: waits::Waits,
    /// What lets one of many log lines pass about data that cannot be read here, and about flushes that fail.
    bad_reads: Repeat,
    bad_writebacks: Repeat,
    /// The same about a store that cannot be asked whose the export is.
    silence: Repeat,
    /// Held for one index operation at a time.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    layers: Layers,
    /// Last sequence number given out.
    last_seq: u64,
    /// Nothing up to here is taken from the log by recovery.
    evicted: Seq,
    /// Sequence numbers given out that have neither been appended nor failed.
    under_way: u64,
    /// Highest of the numbers whose record could not be written, of those that are in no cut, and of those in cuts that are in the
    /// store. Such a record may be on disk all the same, and be found by recovery.
    failed: Seq,
    failed_before: Seq,
    /// What a sample of what was appended since the last cut says.
    sample: Sample,
    /// The next FLUSH makes a cut.
    cut_at_flush: bool,
    /// When the oldest of what is not in a cut was appended. None without a store.
    active_since: Option<Duration>,
    /// Bytes of writes that were told to go on and have not ended. Counted only where there is a bound.
    promised_bytes: u64,
    unsynced: Vec<Place>,
    removed: bool,
}

/// Figures of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    /// Extents in the index.
    pub extents: u64,
    /// Bytes of data that are not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data that are in the store and in the log.
    pub clean_bytes: u64,
    /// Last sequence number given out.
    pub last_seq: Seq,
    /// Everything up to here is in the store.
    pub stored: Seq,
    /// How long the oldest data that is not in the store has been here; zero when there is none, or no store. What was here
    /// when the daemon started counts from then on.
    pub at_risk_for: Duration,
    /// A record of it may be lost: data that is older fails.
    pub doubted: bool,
    /// Cuts that the store does not have. The first one is on its way.
    pub cuts: usize,
}

impl Volume {
    /// An empty volume.
    pub fn new(id: ExportId) -> Self {
        Self::at(id, SeqMarks::default())
    }

    /// A volume that is in the store up to `marks.stored`, with nothing of it here.
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
            waits: waits::Waits::default(),
            bad_reads: Repeat::default(),
            bad_writebacks: Repeat::default(),
            silence: Repeat::default(),
            inner: Mutex::new(inner),
        }
    }

    /// Whose data it is.
    pub fn id(&self) -> ExportId {
        self.id
    }

    pub(super) fn bad_reads(&self) -> &Repeat {
        &self.bad_reads
    }

    pub(super) fn bad_writebacks(&self) -> &Repeat {
        &self.bad_writebacks
    }

    /// Figures at this moment.
    pub fn figures(&self) -> VolumeFigures {
        let inner = self.lock();
        VolumeFigures {
            extents: inner.layers.len() as u64,
            dirty_bytes: inner.layers.dirty_bytes(),
            clean_bytes: inner.layers.clean_bytes(),
            last_seq: Seq(inner.last_seq),
            stored: inner.layers.stored(),
            at_risk_for: inner.at_risk_for(self.store_link.get()),
            doubted: inner.layers.is_doubted(),
            cuts: inner.layers.cuts().len(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all data, for ever.
    pub(super) fn remove(&self, table: &SegmentTable) {
        let mut inner = self.lock();
        inner.layers.clear(table);
        inner.unsynced = Vec::new();
        inner.removed = true;
        drop(inner);
        // Who waits for its flush, or for bytes of it, is told.
        if let Some(link) = self.store_link.get() {
            link.remove(self.id);
        }
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
        since.zip(link).map_or(Duration::ZERO, |(since, link)| link.now().saturating_sub(since))
    }
}

#[cfg(test)]
mod tests;
