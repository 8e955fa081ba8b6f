//! A volume and the budget of the indexes: the memory noted, the question before a write, and the eviction that makes room.
//!
//! Does not own the decision (`budget`). Invariant: a write which leaves the index with no more extents than before never waits, so
//! a client can always make room; of such writes only those with sectors of their own are under way at once, as each counts on the
//! extents which the index has now.

use std::sync::Arc;
use std::time::Duration;

use super::budget::{Budget, Claim};
use super::durability::Pace;
use super::hold::EXTENTS_MAX;
use super::store_link::StoreLink;
use super::{Inner, Volume};
use crate::cache::log::table::SegmentTable;
use crate::units::{SectorRange, Seq};

/// Most extents looked at to find that zeroes make the index no larger.
const ZEROES_LOOKS: usize = 64;

/// The content that a write gives to the sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Data,
    /// With `whole` all of the zeroes are recorded.
    Zeroes {
        whole: bool,
    },
}

/// The index of an export and the budget of indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexFigures {
    /// Memory of the index, bytes.
    pub bytes: u64,
    /// Whether a write which makes the index larger has to wait, or to fail.
    pub is_full: bool,
    /// Writes held back because of the index.
    pub held: u64,
    /// Time in which writes were held back because of the index, nanoseconds.
    pub held_nanos: u64,
}

impl Volume {
    /// Counts the index in `budget` from now on.
    pub(in crate::cache) fn join(&self, budget: &Arc<Budget>) {
        let inner = self.lock();
        self.usage.join(budget, inner.layers.index_bytes());
    }

    /// Notes the memory of the index after a change.
    #[inline]
    pub(super) fn note_index(&self, inner: &Inner) {
        self.usage.note(inner.layers.index_bytes());
    }

    /// When a write may go on with the memory that the index may have. `paused` says that the write has paused already. With
    /// [`Pace::Go`] may come sectors kept for the write: call [`Self::give_back`] when the write has ended.
    #[inline]
    pub fn index_pace(
        &self,
        range: SectorRange,
        content: Content,
        paused: bool,
    ) -> (Pace, Option<SectorRange>) {
        match self.usage.to_ask(self.weight()) {
            None => (Pace::Go, None),
            Some(budget) => self.ask(budget, range, content, paused),
        }
    }

    #[cold]
    fn ask(
        &self,
        budget: &Budget,
        range: SectorRange,
        content: Content,
        paused: bool,
    ) -> (Pace, Option<SectorRange>) {
        budget.ask();
        let pace = match budget.pace(self.claim()) {
            Pace::Pause(_) if paused => Pace::Go,
            pace => pace,
        };
        if pace == Pace::Go || self.lost().is_some() {
            return (Pace::Go, None);
        }
        let mut inner = self.lock();
        let record = match content {
            Content::Data => Some(range),
            Content::Zeroes { whole } => self.to_record(&inner, range, whole, ZEROES_LOOKS).0,
        };
        if record.is_none_or(|record| inner.layers.is_replaced_by(record)) {
            // The record of zeroes may leave out sectors of the request, and may have more.
            let sectors = record.and_then(|record| hull(range, record)).unwrap_or(range);
            // The extent may be gone when the other write has landed; then this write would make the index larger.
            if inner.kept.iter().any(|(other, _)| other.overlaps(sectors)) {
                return (pace, None);
            }
            inner.kept.push((sectors, record.is_some()));
            return (Pace::Go, Some(sectors));
        }
        // The end of data under way may make the record of zeroes needless.
        let is_hopeless = content == Content::Data || inner.data_under_way == 0;
        let is_hopeless = is_hopeless && pace == Pace::Wait && self.waits_for_client();
        (if is_hopeless { Pace::Full } else { pace }, None)
    }

    /// The part of `record`, a record of zeroes for `range`, that the budget allows; `None` where zeroes were let go on without a
    /// record, or with the index smaller, and a record would make the index larger than allowed.
    pub(super) fn allowed(
        &self,
        inner: &Inner,
        range: SectorRange,
        record: SectorRange,
    ) -> Option<SectorRange> {
        let Some(budget) = self.usage.to_ask(self.weight()) else { return Some(record) };
        let covers =
            |(kept, _): &&(SectorRange, bool)| kept.start() <= range.start() && range.end() <= kept.end();
        match inner.kept.iter().find(covers) {
            // What is around the sectors may have become zeroes since, of which another write is sure.
            Some((kept, true)) => {
                let start = record.start().max(kept.start());
                SectorRange::new(start, record.end().min(kept.end()).checked_sub(start)?)
            }
            // A lost volume fails the request later.
            _ => (budget.pace(self.claim()) != Pace::Wait || self.lost().is_some()).then_some(record),
        }
    }

    /// Whether a write fails which can only go on when the client makes room.
    pub fn fails_when_full(&self) -> bool {
        self.usage.budget().is_some_and(Budget::fails)
    }

    /// Whether a write held back waits for the client alone to make room.
    pub fn waits_for_client(&self) -> bool {
        self.store_link().is_none()
    }

    /// Takes note that a write has ended for which [`Self::index_pace`] kept `sectors`.
    pub fn give_back(&self, sectors: SectorRange) {
        let mut inner = self.lock();
        let at = inner.kept.iter().position(|(kept, _)| *kept == sectors);
        debug_assert!(at.is_some(), "sectors are given back once");
        if let Some(at) = at {
            inner.kept.swap_remove(at);
        }
    }

    /// The memory of the index as a claim on the budget. Data unreadable here can only be written again: meanwhile the index may
    /// become twice as large as otherwise.
    pub(in crate::cache) fn claim(&self) -> Claim {
        let is_unreadable = self.store_link().is_some_and(StoreLink::is_unreadable);
        let bytes = self.usage.index_bytes();
        Claim { bytes: if is_unreadable { bytes / 2 } else { bytes }, weight: self.weight() }
    }

    /// Counts a write held back by [`Self::index_pace`].
    pub fn count_held(&self) {
        self.usage.count_held();
    }

    /// Counts time in which writes were held back by [`Self::index_pace`].
    pub fn count_held_time(&self, time: Duration) {
        self.usage.count_time(time);
    }

    /// The figures of the budget at this moment. Takes no lock.
    pub fn index_figures(&self) -> IndexFigures {
        let (held, held_nanos) = self.usage.held();
        let is_full = self.usage.budget().is_some_and(|budget| budget.pace(self.claim()) == Pace::Wait);
        IndexFigures { bytes: self.usage.index_bytes(), is_full, held, held_nanos }
    }

    /// Forgets clean extents up to sequence number `mark`, from sector `from` on, until about `extents` were looked at or the index
    /// has at most `target` bytes. Returns the sector to go on from, if there is more to do.
    pub(in crate::cache) fn evict_from(
        &self,
        table: &SegmentTable,
        mark: Seq,
        (from, target): (u64, u64),
        extents: usize,
    ) -> Option<u64> {
        let mut next = Some(from);
        for _ in 0..extents.div_ceil(EXTENTS_MAX) {
            if self.usage.index_bytes() <= target {
                return None;
            }
            let mut inner = self.lock();
            next = inner.layers.evict_from(table, mark, next?, EXTENTS_MAX);
            self.note_index(&inner);
        }
        next
    }
}

/// The sectors from the first one of both to the last one of both.
fn hull(one: SectorRange, other: SectorRange) -> Option<SectorRange> {
    let (start, end) = (one.start().min(other.start()), one.end().max(other.end()));
    SectorRange::new(start, end.checked_sub(start)?)
}

#[cfg(test)]
mod tests;
