//! Questions about the doubts of a volume.
//!
//! Does not own the doubts (`doubts`), nor where damage is found (`recovery`).

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::store_link::StoreLink;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// Whether a record of it may be lost that the store does not know of.
    pub(in crate::cache) fn is_doubted(&self) -> bool {
        self.lock().layers.is_doubted()
    }

    /// Up to which sequence number nothing of it can be relied on, if so, and before which sector.
    pub(in crate::cache) fn doubt(&self) -> Option<(Seq, u64)> {
        // The doubt takes note of a larger size before the tie does.
        let size_sectors = self.store_link.get().map_or(u64::MAX, StoreLink::size_sectors);
        self.lock().layers.doubt().map(|(seq, end)| (seq, end.min(size_sectors)))
    }

    /// Up to which sequence number a doubt of it goes or went.
    pub(in crate::cache) fn doubted_to(&self) -> Seq {
        self.lock().layers.doubted_to()
    }

    /// Whether there is or was a doubt about the segment and the damage that `evidence` stands for.
    pub(in crate::cache) fn has_doubt_of(&self, evidence: SectorRange) -> bool {
        self.lock().layers.has_doubt_of(evidence)
    }

    /// Forgets the doubts, but for the highest, about segments of which `is_gone` says so.
    pub(in crate::cache) fn forget_doubts(&self, table: &SegmentTable, is_gone: impl Fn(u64) -> bool) {
        self.lock().layers.forget_doubts(table, is_gone);
    }

    /// Whether the store has a cut that ended a doubt, and it was not written down that what was in doubt is out of use.
    pub(in crate::cache) fn has_ended_doubt(&self) -> bool {
        let inner = self.lock();
        inner.layers.has_ended_doubt(inner.evicted)
    }

    /// Whether the entry in `segment` says that a record of it may be lost.
    pub(in crate::cache) fn is_doubted_in(&self, number: u32) -> bool {
        self.lock().layers.is_doubted_in(number)
    }
}
