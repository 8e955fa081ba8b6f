//! The content of a volume: where the newest is, for a READ, for a cut, and for a fetch from the store; and what the cleaner asks of it,
//! which data of a segment is live, and to move or forget it.
//!
//! Does not own the read itself (`shard/read`), nor which segment is cleaned (`keeper/cleaner`). Invariants: the segment of each piece with
//! data in a plan is pinned once; only data in the store is forgotten.

use super::{Inner, Volume};
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::fetch::Fill;
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::units::{SectorRange, Seq};

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

    /// All extents with their place in segment `number`. Takes time in proportion to the number of extents.
    pub(in crate::cache) fn extents_in(&self, number: u32) -> Vec<Extent> {
        self.extents(|inner, from| inner.layers.extents_in(|place| place == number, from, EXTENTS_MAX))
    }

    /// All extents that `some` finds, in ascending order: it gets the sector to begin at, looks at about [`EXTENTS_MAX`] extents under
    /// one hold of the lock, and returns the sector to go on from as well.
    pub(super) fn extents(&self, some: impl Fn(&Inner, u64) -> (Vec<Extent>, Option<u64>)) -> Vec<Extent> {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (more, behind) = some(&self.lock(), from);
            found.extend(more);
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
            let next = inner
                .layers
                .evict(table, range, EXTENTS_MAX, |backing, of| (of, backing.number()) == (seq, number));
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
