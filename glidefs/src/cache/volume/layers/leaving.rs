//! Dirty content of a volume that is left to the store.
//!
//! Owns the steps in the layers. Does not own whether the store has the content (`writeback/unnoted`). Invariant: no reader finds
//! older content in the place of content left to the store: clean content goes first, and a sector leaves all dirty layers at once.

use allocator_api2::vec::Vec as CellVec;

use super::{Layers, beginning};
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::cells::Cells;
use crate::units::{SectorRange, Seq};

impl Layers {
    /// Forgets dirty content up to `mark` from sector `from` on. Looks at about `limit` extents. Returns the sector to go on from,
    /// unless all extents behind were looked at. Clean content must be gone.
    pub fn leave_from(&mut self, table: &SegmentTable, mark: Seq, from: u64, limit: usize) -> Option<u64> {
        debug_assert!(self.clean.is_empty(), "older content must not show up");
        let Self { active, frozen, .. } = self;
        let share = (limit / (1 + frozen.len())).max(1);
        let range = SectorRange::new(from, u64::MAX.saturating_sub(from))?;
        let dirty = frozen.iter().map(|cut| &cut.index).chain([&*active]);
        let (range, next) = beginning(range, dirty, share);
        let mut found = CellVec::new_in(Cells);
        for layer in frozen.iter_mut().map(|cut| &mut cut.index).chain([active]) {
            layer.lookup(range, |piece| {
                if piece.backing.is_some() && piece.seq <= mark {
                    found.push(piece.range);
                }
            });
            found.drain(..).for_each(|part| layer.remove(table, part));
        }
        next
    }

    /// Notes that everything up to `mark` is in the store, when all such content has left the dirty layers. Returns the highest
    /// failed number of cuts that so came to an end.
    pub fn left(&mut self, mark: Seq) -> Seq {
        debug_assert!(mark > self.stored, "the history in the store only grows");
        self.stored = mark;
        let mut failed = Seq(0);
        while let Some(cut) = self.frozen.front().filter(|cut| cut.last <= mark) {
            debug_assert!(cut.index.is_empty() && cut.under_way == 0, "the cut has no later number");
            failed = failed.max(cut.failed);
            self.frozen.pop_front();
        }
        failed
    }
}
