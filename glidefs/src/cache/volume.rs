//! One export's data in the cache: its index, its history's position, and what of it is not stable yet.
//!
//! Does not own segments. Invariants: a sequence number is given out once; everything this volume appended and that is
//! not known to be stable is in `unsynced` before the request that appended it is acknowledged.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::IoError;
use super::index::{Backing, Extent, Index, Piece};
use super::slots::{Slots, Stability};
use crate::units::{ExportId, SectorRange, Seq};

/// One export's data in the cache.
#[derive(Debug)]
pub struct Volume {
    id: ExportId,
    /// Held for one index operation at a time.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    index: Index,
    /// Last sequence number given out.
    last_seq: u64,
    unsynced: Vec<Place>,
    removed: bool,
}

/// Where in which segment something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Slot of the segment when it was written.
    pub slot: u32,
    /// The segment.
    pub segment_id: u64,
    /// One past the last frame.
    pub end: u32,
}

impl Place {
    pub fn stability(&self, slots: &Slots) -> Stability {
        slots.stability(self.slot, self.segment_id, self.end)
    }
}

impl Volume {
    /// An empty volume.
    pub fn new(id: ExportId) -> Self {
        Self { id, inner: Mutex::default() }
    }

    /// Whose data it is.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// Extents in the index, and bytes of data they map.
    pub fn size(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.index.len() as u64, inner.index.live_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out `count` sequence numbers and returns the first.
    pub(super) fn next_seqs(&self, count: u64) -> Seq {
        let mut inner = self.lock();
        let first = inner.last_seq + 1;
        inner.last_seq += count;
        Seq(first)
    }

    /// Makes appended extents readable, and remembers that they end at `place`, which may not be stable yet.
    pub(super) fn appended(
        &self,
        slots: &Slots,
        extents: impl Iterator<Item = Extent>,
        place: Place,
    ) -> Result<(), IoError> {
        let mut inner = self.lock();
        if inner.removed {
            return Err(IoError::Removed(self.id));
        }
        for extent in extents {
            inner.insert(slots, extent);
        }
        inner.remember(slots, place);
        Ok(())
    }

    /// Makes the copy of an extent the one to read, where nothing newer is.
    pub(super) fn relocated(&self, slots: &Slots, extent: Extent) {
        let mut inner = self.lock();
        if !inner.removed {
            inner.insert(slots, extent);
        }
    }

    /// Puts back an extent found by recovery, which is stable.
    pub(super) fn recovered(&self, slots: &Slots, extents: impl Iterator<Item = Extent>) {
        let mut inner = self.lock();
        for extent in extents {
            inner.last_seq = inner.last_seq.max(extent.seq.0);
            inner.insert(slots, extent);
        }
    }

    /// Where the newest content of `range` is, in order. The slots of pieces with data are pinned: unpin each.
    pub(super) fn plan(&self, slots: &Slots, range: SectorRange, plan: &mut Vec<Piece>) {
        let inner = self.lock();
        inner.index.lookup(range, |piece| {
            if let Some(last) = plan.last_mut()
                && let Some(joined) = join(last, &piece)
            {
                *last = joined;
                return;
            }
            if let Some(Backing::Data { slot, .. }) = piece.backing {
                slots.get(slot).pin();
            }
            plan.push(piece);
        });
    }

    /// What of `range` still comes from write `seq` in `slot`.
    pub(super) fn live_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        slot: u32,
        mut visit: impl FnMut(SectorRange),
    ) {
        self.lock().index.lookup(range, |piece| {
            if piece.seq == seq && piece.backing.is_some_and(|backing| backing.slot() == slot) {
                visit(piece.range);
            }
        });
    }

    /// Adds to `needs` every place that must become stable for a FLUSH; fails when one of them never will.
    pub(super) fn unsynced(&self, slots: &Slots, needs: &mut Vec<Place>) -> Result<(), IoError> {
        let mut inner = self.lock();
        let mut outcome = Ok(());
        inner.unsynced.retain(|place| match place.stability(slots) {
            Stability::Stable => false,
            Stability::Unsynced => {
                needs.push(*place);
                true
            }
            Stability::Lost => {
                outcome = Err(IoError::Sync);
                true
            }
        });
        outcome
    }

    /// Forgets all data, for ever.
    pub(super) fn remove(&self, slots: &Slots) {
        let mut inner = self.lock();
        inner.index.clear(&mut |refs| slots.count_refs(refs));
        inner.unsynced = Vec::new();
        inner.removed = true;
    }
}

impl Inner {
    fn insert(&mut self, slots: &Slots, extent: Extent) {
        self.index.insert(extent, &mut |refs| slots.count_refs(refs));
    }

    fn remember(&mut self, slots: &Slots, place: Place) {
        let same = |known: &&mut Place| known.slot == place.slot && known.segment_id == place.segment_id;
        if let Some(known) = self.unsynced.iter_mut().find(same) {
            known.end = known.end.max(place.end);
            return;
        }
        self.unsynced.retain(|known| known.stability(slots) != Stability::Stable);
        self.unsynced.push(place);
    }
}

/// One piece for both, when `next` continues `last` in the export and in the segment.
fn join(last: &Piece, next: &Piece) -> Option<Piece> {
    let range = SectorRange::new(last.range.start(), last.range.count().checked_add(next.range.count())?)?;
    let continues = match (last.backing?, next.backing?) {
        (Backing::Data { slot: a, sector }, Backing::Data { slot: b, sector: next_sector }) => {
            a == b && u64::from(sector) + last.range.count() == u64::from(next_sector)
        }
        (Backing::Zero { .. }, Backing::Zero { .. }) => true,
        _ => false,
    };
    continues.then_some(Piece { range, ..*last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(start, count).unwrap()
    }

    fn data(start: u64, count: u64, seq: u64, sector: u32) -> Extent {
        Extent { range: range(start, count), seq: Seq(seq), backing: Backing::Data { slot: 0, sector } }
    }

    fn slots() -> Slots {
        let slots = Slots::new(2, 2, [0; 16], 64);
        slots.get(0).begin_use(1, 1);
        slots.get(1).begin_use(2, 1);
        slots
    }

    const PLACE: Place = Place { slot: 0, segment_id: 1, end: 9 };

    #[test]
    fn a_slot_counts_the_sectors_and_extents_that_refer_to_it() {
        let (slots, volume) = (slots(), Volume::new(ExportId(1)));
        volume.appended(&slots, [data(0, 16, 1, 16)].into_iter(), PLACE).unwrap();
        volume.appended(&slots, [data(4, 4, 2, 40)].into_iter(), PLACE).unwrap();
        assert_eq!((slots.get(0).extents(), slots.get(0).live_sectors()), (3, 16));
        let moved = Extent { backing: Backing::Data { slot: 1, sector: 8 }, ..data(0, 16, 1, 0) };
        volume.relocated(&slots, moved);
        assert_eq!((slots.get(0).live_sectors(), slots.get(1).live_sectors()), (4, 12));
        volume.remove(&slots);
        assert_eq!((slots.get(0).extents(), slots.get(0).live_sectors()), (0, 0));
        assert_eq!((slots.get(1).extents(), slots.get(1).live_sectors()), (0, 0));
    }

    #[test]
    fn a_removed_volume_takes_no_data_back() {
        let (slots, volume) = (slots(), Volume::new(ExportId(1)));
        volume.remove(&slots);
        let appended = volume.appended(&slots, [data(0, 8, 1, 16)].into_iter(), PLACE);
        assert_eq!(appended, Err(IoError::Removed(ExportId(1))));
        volume.relocated(&slots, data(0, 8, 1, 16));
        assert_eq!(volume.size(), (0, 0));
    }

    #[test]
    fn pieces_that_continue_each_other_are_read_as_one_with_one_pin() {
        let (slots, volume) = (slots(), Volume::new(ExportId(1)));
        volume.appended(&slots, [data(0, 8, 1, 16), data(8, 8, 2, 24)].into_iter(), PLACE).unwrap();
        let mut plan = Vec::new();
        volume.plan(&slots, range(0, 16), &mut plan);
        assert_eq!(plan.len(), 1);
        assert_eq!(plan[0].range, range(0, 16));
        slots.get(0).unpin();
        assert!(!slots.get(0).is_pinned());
    }

    #[test]
    fn a_flush_needs_only_what_is_not_stable_and_fails_when_that_is_lost() {
        let (slots, volume) = (slots(), Volume::new(ExportId(1)));
        let mut needs = Vec::new();
        volume.appended(&slots, [data(0, 8, 1, 16)].into_iter(), PLACE).unwrap();
        volume.unsynced(&slots, &mut needs).unwrap();
        assert_eq!(needs, [PLACE]);
        assert!(slots.get(0).begin_sync());
        slots.get(0).end_sync(9, true);
        needs.clear();
        volume.unsynced(&slots, &mut needs).unwrap();
        assert_eq!(needs, []);
        volume.appended(&slots, [data(0, 8, 2, 16)].into_iter(), Place { end: 12, ..PLACE }).unwrap();
        slots.get(0).poison();
        assert_eq!(volume.unsynced(&slots, &mut needs), Err(IoError::Sync));
    }
}
