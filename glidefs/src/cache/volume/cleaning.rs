//! Answers of a volume to the cleaner, which moves live data and forgets clean data.
//!
//! Does not own which segment is cleaned (`keeper/cleaner`). Invariant: only data in the store is forgotten.

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::extent::Extent;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// All extents with their place in segment `number`. Takes time in proportion to the number of extents.
    pub(in crate::cache) fn extents_in(&self, number: u32) -> Vec<Extent> {
        self.lock().layers.extents_in(number).collect()
    }

    /// Calls `visit` with the parts of `range` which still come from write `seq` in segment `number` and are not in the store.
    pub(in crate::cache) fn dirty_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        number: u32,
        visit: impl FnMut(SectorRange),
    ) {
        self.lock().layers.dirty_parts(range, seq, number, visit);
    }

    /// Makes `copy` the extent to read instead of the original in segment `from`.
    pub(in crate::cache) fn relocated(&self, table: &SegmentTable, copy: Extent, from: u32) {
        let mut inner = self.lock();
        if !inner.removed {
            inner.layers.relocate(table, copy, from);
        }
    }

    /// Whether the data of write `seq` is in the store, and so may be forgotten.
    pub(in crate::cache) fn is_clean(&self, seq: Seq) -> bool {
        self.lock().layers.is_clean(seq)
    }

    /// Forgets the clean parts of `range` which come from write `seq` in segment `number`.
    pub(in crate::cache) fn evict(&self, table: &SegmentTable, range: SectorRange, seq: Seq, number: u32) {
        self.lock().layers.evict(table, range, seq, number);
    }

    /// Forgets all clean data, and takes note that no clean data may come back from the log. Returns the sequence number up to
    /// which this holds.
    pub(in crate::cache) fn forget_clean(&self, table: &SegmentTable) -> Seq {
        let mut inner = self.lock();
        inner.layers.forget_clean(table);
        inner.evicted = inner.evicted.max(inner.layers.stored());
        debug_assert_eq!(inner.evicted, inner.layers.stored(), "only data in the store is evicted");
        inner.evicted
    }
}
