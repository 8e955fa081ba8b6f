//! Questions about the doubts of a volume.
//!
//! Does not own the doubts (`doubts`), nor where damage is found (`recovery`).

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::store_link::StoreLink;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// Whether a record of the volume may be lost, and the store does not know of the loss.
    pub(in crate::cache) fn is_doubted(&self) -> bool {
        self.lock().layers.is_doubted()
    }

    /// The doubt in force, if any: the last sequence number that cannot be relied on, and the sector before which the doubt
    /// applies.
    pub(in crate::cache) fn doubt(&self) -> Option<(Seq, u64)> {
        // `grow` tells the doubt of a larger size before the link.
        let size_sectors = self.store_link().map_or(u64::MAX, StoreLink::size_sectors);
        self.lock().layers.doubt().map(|(seq, end)| (seq, end.min(size_sectors)))
    }

    /// Last sequence number of the highest doubt, ended or not.
    pub(in crate::cache) fn doubted_to(&self) -> Seq {
        self.lock().layers.doubts.highest()
    }

    /// Whether there is or was a doubt about the segment and the damage for which `evidence` stands.
    pub(in crate::cache) fn has_doubt_of(&self, evidence: SectorRange) -> bool {
        self.lock().layers.doubts.has_evidence(evidence)
    }

    /// Forgets the doubts, except the highest, about segments for which `is_gone` returns true.
    pub(in crate::cache) fn forget_doubts(&self, table: &SegmentTable, is_gone: impl Fn(u64) -> bool) {
        self.lock().layers.doubts.forget(table, is_gone);
    }

    /// Whether the store has a cut which ended a doubt, while it is not written down yet that the doubted data is out of use.
    pub(in crate::cache) fn has_ended_doubt(&self) -> bool {
        let inner = self.lock();
        inner.layers.has_ended_doubt(inner.evicted)
    }

    /// Whether an entry in segment `number` says that a record of the volume may be lost.
    pub(in crate::cache) fn is_doubted_in(&self, number: u32) -> bool {
        self.lock().layers.doubts.is_in(number)
    }
}
