//! Where the newest content of a volume is: for a READ, for a cut, and for a fetch from the store.
//!
//! Does not own the read itself (`shard/read`). Invariant: the segment of each piece with data in a plan is pinned once.

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Piece};
use crate::cache::volume::fetch::Fill;
use crate::units::SectorRange;

impl Volume {
    /// Where the newest content of `range` is, in order. The segments of pieces with data are pinned: unpin each.
    pub(in crate::cache) fn plan(&self, table: &SegmentTable, range: SectorRange, plan: &mut Vec<Piece>) {
        let inner = self.lock();
        inner.layers.lookup(range, |piece| add_to(plan, table, piece));
    }

    /// Adds the places of the first cut's content in `range`, as [`Self::plan`] does.
    pub(in crate::cache) fn plan_cut(&self, table: &SegmentTable, range: SectorRange, plan: &mut Vec<Piece>) {
        let inner = self.lock();
        inner.layers.lookup_frozen(range, |piece| add_to(plan, table, piece));
    }

    /// The parts of `range` with no content here, in order; neighbours are joined.
    pub(in crate::cache) fn missing(&self, range: SectorRange) -> Vec<SectorRange> {
        let mut missing: Vec<SectorRange> = Vec::new();
        self.lock().layers.lookup(range, |piece| {
            if piece.backing.is_some() {
                return;
            }
            let joined = missing.last().filter(|last| last.end() == piece.range.start());
            match joined.and_then(|last| SectorRange::new(last.start(), last.count() + piece.range.count())) {
                Some(joined) => {
                    missing.pop();
                    missing.push(joined);
                }
                None => missing.push(piece.range),
            }
        });
        missing
    }

    /// Fetches from the store the parts of `range` with no content here; `None` when no part is missing any more. The answer may
    /// be awaited anywhere. The task awaiting the answer ends the wait when [`Self::waits_ended`] returns, by dropping the
    /// receiver.
    pub fn fetch(&self, range: SectorRange) -> Option<tokio::sync::oneshot::Receiver<Result<Fill, IoError>>> {
        let missing = self.missing(range);
        let (first, last) = (missing.first()?, missing.last()?);
        let hull = SectorRange::new(first.start(), last.end() - first.start())?;
        Some(self.store_link()?.fetch(hull, missing, self.id))
    }
}

/// Adds a piece to a plan. Pins the segment of the piece, unless the piece continues the last one.
fn add_to(plan: &mut Vec<Piece>, table: &SegmentTable, piece: Piece) {
    if let Some(last) = plan.last_mut()
        && let Some(joined) = join(last, &piece)
    {
        *last = joined;
        return;
    }
    if let Some(Backing::Data { number, .. }) = piece.backing {
        table.get(number).pin();
    }
    plan.push(piece);
}

/// One piece for both, when `next` continues `last` in the export and in the segment.
fn join(last: &Piece, next: &Piece) -> Option<Piece> {
    let range = SectorRange::new(last.range.start(), last.range.count().checked_add(next.range.count())?)?;
    let continues = match (last.backing?, next.backing?) {
        (Backing::Data { number: a, sector }, Backing::Data { number: b, sector: next_sector }) => {
            a == b && u64::from(sector) + last.range.count() == u64::from(next_sector)
        }
        (Backing::Zero { .. }, Backing::Zero { .. }) | (Backing::Damaged { .. }, Backing::Damaged { .. }) => {
            true
        }
        _ => false,
    };
    continues.then_some(Piece { range, ..*last })
}
