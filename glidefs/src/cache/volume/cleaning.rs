//! What the cleaner asks of a volume: which data of a segment is live, and to move or forget it.
//!
//! Does not own which segment is cleaned (`keeper/cleaner`). Invariant: only data in the store is forgotten.

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::extent::Extent;
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// All extents with their place in segment `number`. Takes time in proportion to the number of extents.
    pub(in crate::cache) fn extents_in(&self, number: u32) -> Vec<Extent> {
        let mut found = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let (some, behind) = self.lock().layers.extents_in(|place| place == number, from, EXTENTS_MAX);
            found.extend(some);
            next = behind;
        }
        found
    }

    /// Calls `visit` with the parts of `range` which still come from write `seq` in segment `number` and are not in the store.
    pub(in crate::cache) fn dirty_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        number: u32,
        mut visit: impl FnMut(SectorRange),
    ) {
        let mut rest = Some(range);
        while let Some(range) = rest {
            let (parts, next) = self.lock().layers.dirty_parts(range, (seq, number), EXTENTS_MAX);
            parts.into_iter().for_each(&mut visit);
            rest = rest_from(range, next);
        }
    }

    /// Makes `copy` the extent to read instead of the original in segment `from`.
    pub(in crate::cache) fn relocated(&self, table: &SegmentTable, copy: Extent, from: u32) {
        let mut rest = Some(copy);
        while let Some(copy) = rest {
            let mut inner = self.lock();
            if inner.removed {
                return;
            }
            let next = inner.layers.relocate(table, copy, from, EXTENTS_MAX);
            self.note_index(&inner);
            rest = rest_from(copy.range, next).and_then(|range| copy.part(range));
        }
    }

    /// Whether the data of write `seq` is in the store, and so may be forgotten.
    pub(in crate::cache) fn is_clean(&self, seq: Seq) -> bool {
        self.lock().layers.is_clean(seq)
    }

    /// Forgets the clean parts of `range` which come from write `seq` in segment `number`.
    pub(in crate::cache) fn evict(&self, table: &SegmentTable, range: SectorRange, seq: Seq, number: u32) {
        let mut rest = Some(range);
        while let Some(range) = rest {
            let mut inner = self.lock();
            let next = inner.layers.evict(table, range, (seq, number), EXTENTS_MAX);
            self.note_index(&inner);
            drop(inner);
            rest = rest_from(range, next);
        }
    }

    /// Forgets all clean data, and takes note that no clean data may come back from the log. Returns the sequence number up to
    /// which this holds.
    pub(in crate::cache) fn forget_clean(&self, table: &SegmentTable) -> Seq {
        let mut inner = self.lock();
        let dead = inner.layers.forget_clean();
        self.note_index(&inner);
        inner.evicted = inner.evicted.max(inner.layers.stored());
        debug_assert_eq!(inner.evicted, inner.layers.stored(), "only data in the store is evicted");
        let evicted = inner.evicted;
        drop(inner);
        dead.forget(table);
        evicted
    }
}

/// The rest of `range` from sector `next` on, if there is more to do.
fn rest_from(range: SectorRange, next: Option<u64>) -> Option<SectorRange> {
    next.and_then(|next| SectorRange::new(next, range.end().checked_sub(next)?))
}
