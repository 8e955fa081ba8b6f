//! DISCARD and `WRITE_ZEROES`: whether a record is needed, for which sectors, and the change of the index in pieces.
//!
//! Does not own the append (`shard/zero`). Invariants:
//!
//! - Zeroes are not recorded where a READ would find zeroes without asking the store: in sectors with zeroes in the index, whose
//!   record a later FLUSH covers, and in sectors with nothing in the index and nothing in the store. Nothing in the log is newer
//!   than the zeroes, or than the catalog's bar, there: so recovery finds no older content either. The exceptions are the record
//!   of a failed write, which may be on disk, and a write with data under way, which the shard took before the zeroes: while there
//!   may be one of them, all zeroes are recorded.
//! - A record of zeroes may cover more sectors than the request, as long as these have no other content: sectors with zeroes, and
//!   sectors with nothing, while no write with data is under way, which would have a lower number and land later.
//! - Deciding looks at a number of extents given by the caller, whatever a guest has done to the index. Where the number is not
//!   enough all zeroes are recorded, and so are zeroes in many pieces: the record makes one piece of the range, so the next
//!   decision is cheap.
//! - The zeroes are acknowledged, and the sequence numbers land, when the index has all of the zeroes. Until then the segment with
//!   the record is pinned by the caller, since no extent may refer to the segment.

use super::appends::WriteKind;
use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::layers::Looks;
use crate::units::{SectorRange, Seq};

/// Most sectors an entry covers.
pub(in crate::cache) const ENTRY_SECTORS_MAX: u64 = u32::MAX as u64;
/// Most zeroes joined on one side of new zeroes.
const JOINED_MAX: usize = 16;
/// A question to the store's manifest counts as so many extents.
const QUESTION_EXTENTS: usize = 16;
/// Most pieces in which zeroes are left without a record.
const ZERO_PIECES_MAX: usize = 64;

/// What to record of a DISCARD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Zeroing {
    /// Nothing: all of the sectors read as zeroes already.
    Nothing,
    /// Zeroes for this range, in entries of up to [`ENTRY_SECTORS_MAX`] with sequence numbers from the first on.
    Record(Seq, SectorRange),
}

/// Recorded zeroes on their way into the index.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Carving {
    /// The sequence number of the first entry.
    first: Seq,
    range: SectorRange,
    /// The first sector not in the index yet.
    at: u64,
    pub place: Place,
}

/// How many entries a record has for zeroes of `range`.
pub(in crate::cache) fn entries_of(range: SectorRange) -> u64 {
    range.count().div_ceil(ENTRY_SECTORS_MAX)
}

impl Carving {
    /// Zeroes for `range`, recorded with numbers from `first` on in the record which ends at `place`.
    pub fn new(first: Seq, range: SectorRange, place: Place) -> Self {
        Self { first, range, at: range.start(), place }
    }

    /// The sequence number of the last entry.
    pub fn last(&self) -> Seq {
        Seq(self.first.0.saturating_add(entries_of(self.range).saturating_sub(1)))
    }

    /// The part of the next entry that is not in the index yet; `None` at the end.
    fn rest(&self) -> Option<Extent> {
        let entry = (self.at - self.range.start()) / ENTRY_SECTORS_MAX;
        let behind = entry.checked_add(1)?.checked_mul(ENTRY_SECTORS_MAX)?.checked_add(self.range.start());
        let end = behind.map_or(self.range.end(), |behind| behind.min(self.range.end()));
        let range = SectorRange::new(self.at, end.checked_sub(self.at)?).filter(|rest| !rest.is_empty())?;
        let backing = Backing::Zero { number: self.place.number };
        Some(Extent { range, seq: Seq(self.first.0.saturating_add(entry)), backing })
    }
}

impl Volume {
    /// Decides what to record of zeroes for `range`, and gives out the sequence numbers. With `whole` all of `range` is recorded.
    /// Looks at about `limit` extents at most, and returns how many as well.
    ///
    /// # Errors
    /// [`IoError::Removed`], [`IoError::NoSequenceNumber`], and [`IoError::IndexFull`] when the record would make an index larger
    /// which has no memory.
    pub(in crate::cache) fn begin_zeroes(
        &self,
        range: SectorRange,
        whole: bool,
        limit: usize,
    ) -> Result<(Zeroing, usize), IoError> {
        let mut inner = self.lock();
        if inner.removed {
            return Err(IoError::Removed(self.id));
        }
        let (record, looked) = self.to_record(&inner, range, whole, limit);
        let Some(record) = record else { return Ok((Zeroing::Nothing, looked)) };
        let record = self.allowed(&inner, range, record).ok_or(IoError::IndexFull)?;
        let first = inner.next_seqs(entries_of(record))?;
        Ok((Zeroing::Record(first, record), looked))
    }

    /// What to record of zeroes for `range`, and about how many extents were looked at, `limit` at most.
    pub(super) fn to_record(
        &self,
        inner: &Inner,
        range: SectorRange,
        whole: bool,
        limit: usize,
    ) -> (Option<SectorRange>, usize) {
        let link = self.store_link();
        // Asked under the lock: content leaves the index only after the store has the content.
        let in_store = |range| link.is_some_and(|link| link.remote.covers(range));
        let is_zero_or_gap = |piece: &Piece| matches!(piece.backing, None | Some(Backing::Zero { .. }));
        let is_void =
            |piece: &Piece| is_zero_or_gap(piece) && (piece.backing.is_some() || !in_store(piece.range));
        let gap = if link.is_some() { QUESTION_EXTENTS } else { 0 };
        let (mut record, mut looks) = (range, Looks { left: limit, gap });
        let is_settled = !inner.may_leave && !inner.may_have_failed_records();
        if !whole && limit > 0 && inner.data_under_way == 0 && is_settled {
            let mut pieces = 0;
            // One question about the whole range may make those about each gap needless.
            let has_questions = in_store(range);
            let mut all = Looks { gap: if has_questions { gap } else { 0 }, ..looks };
            let content = inner.layers.content_in(range, &mut all, |piece| {
                pieces += usize::from(matches!(piece.backing, Some(Backing::Zero { .. })));
                if has_questions { is_void(piece) } else { is_zero_or_gap(piece) }
            });
            looks.left = all.left;
            if pieces <= ZERO_PIECES_MAX {
                let Some(content) = content else { return (None, limit - looks.left) };
                record = content;
            }
        }
        if inner.data_under_way == 0 && !inner.layers.is_doubted() {
            let most = (ENTRY_SECTORS_MAX, JOINED_MAX);
            record = inner.layers.with_zeroes_around(record, most, &mut looks, is_void);
        }
        (Some(record), limit - looks.left)
    }

    /// Puts some of the recorded zeroes into the index, until about `limit` extents were touched. Returns the number of extents
    /// touched, and whether the index has all of the zeroes.
    pub(in crate::cache) fn carve_some(
        &self,
        table: &SegmentTable,
        carving: &mut Carving,
        limit: usize,
    ) -> Result<(usize, bool), IoError> {
        let mut inner = self.lock();
        if inner.removed {
            return Err(IoError::Removed(self.id));
        }
        let was_empty = inner.layers.is_active_empty();
        if carving.at == carving.range.start() {
            // A request that finds the first of the zeroes needs no record, and relies on a FLUSH to find the place.
            inner.remember(table, carving.place);
        }
        let mut touched = 0;
        while touched < limit
            && let Some(rest) = carving.rest()
        {
            let (end, met) = inner.layers.reach(rest.seq, rest.range, limit - touched);
            let part = SectorRange::new(carving.at, end.saturating_sub(carving.at));
            if let Some(part) = part.and_then(|part| rest.part(part)) {
                inner.layers.insert(table, None, part);
            }
            carving.at = end;
            touched += met + 1;
        }
        let is_done = carving.rest().is_none();
        let completes = is_done && inner.landed(carving.first, entries_of(carving.range), WriteKind::Zeroes);
        inner.note_append(self.store_link(), carving.first);
        self.note_index(&inner);
        let announce = inner.is_large() || (was_empty && !inner.layers.is_active_empty());
        drop(inner);
        self.tell_landed(completes);
        if announce {
            self.announce();
        }
        Ok((touched, is_done))
    }
}

impl Inner {
    /// Whether the log may have the record of a write which failed: recovery would find the record, unless newer content hides
    /// the record or the catalog bars recovery from taking the record. A cut in the store is noted with the cut's failures.
    fn may_have_failed_records(&self) -> bool {
        self.failed > Seq(0) || self.layers.cuts().iter().any(|cut| cut.failed > Seq(0))
    }
}

#[cfg(test)]
mod tests;
