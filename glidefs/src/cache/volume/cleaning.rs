//! Answers of a volume to the cleaner, which moves live data and forgets clean data.
//!
//! Does not own which segment is cleaned (`keeper/cleaner`). Invariant: only data that the store has is forgotten.

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::extent::Extent;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// Everything whose place is in `segment`. Takes time in proportion to the number of extents.
    pub(in crate::cache) fn extents_in(&self, number: u32) -> Vec<Extent> {
        self.lock().layers.extents_in(number).collect()
    }

    /// What of `range` still comes from write `seq` in `segment` and is not in the store.
    pub(in crate::cache) fn dirty_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        number: u32,
        visit: impl FnMut(SectorRange),
    ) {
        self.lock().layers.dirty_parts(range, seq, number, visit);
    }

    /// Makes the copy of an extent the one to read, where the one in segment `from` was.
    pub(in crate::cache) fn relocated(&self, table: &SegmentTable, copy: Extent, from: u32) {
        let mut inner = self.lock();
        if !inner.removed {
            inner.layers.relocate(table, copy, from);
        }
    }

    /// Whether what write `seq` wrote is in the store, and may be forgotten.
    pub(in crate::cache) fn is_clean(&self, seq: Seq) -> bool {
        self.lock().layers.is_clean(seq)
    }

    /// Forgets what of `range` comes from write `seq` in `segment`, if it is in the store.
    pub(in crate::cache) fn evict(&self, table: &SegmentTable, range: SectorRange, seq: Seq, number: u32) {
        self.lock().layers.evict(table, range, seq, number);
    }

    /// Takes note that nothing here that is in the store may be served from here; returns up to which sequence number.
    pub(in crate::cache) fn forget_clean(&self, table: &SegmentTable) -> Seq {
        let mut inner = self.lock();
        inner.layers.forget_clean(table);
        inner.evicted = inner.evicted.max(inner.layers.stored());
        inner.evicted
    }
}
