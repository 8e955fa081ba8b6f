//! A volume and the budgets: the use noted, the questions before a write, and the eviction that makes room in an index.
//!
//! Does not own the decision (`budget`). Invariants: a write which leaves the index with no more extents than before never waits for
//! the index, so a client can always make room; of such writes only those with sectors of their own are under way at once, as each
//! counts on the extents which the index has now. Only data, and zeroes so short that they may take a frame more, wait for a share of the
//! log, and only where writeback makes room: no write of a volume which is lost or has no store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::budget::{Budget, Claim, Coming, Resource};
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

/// The use that an export makes of a resource, and the budget of the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFigures {
    /// Memory of the index, or log space for data not in the store, bytes.
    pub bytes: u64,
    /// Whether a write which takes more of the resource has to wait, or to fail.
    pub is_full: bool,
    /// Writes held back because of the resource.
    pub held: u64,
    /// Time in which writes were held back because of the resource, nanoseconds.
    pub held_nanos: u64,
}

impl Volume {
    /// Counts the index and the data in `budget` from now on.
    pub(in crate::cache) fn join(&self, budget: &Arc<Budget>) {
        let inner = self.lock();
        self.usage.join(budget, inner.layers.index_bytes(), inner.layers.log_bytes());
    }

    /// Notes the use of the budgets after a change of the index.
    #[inline]
    pub(super) fn note_index(&self, inner: &Inner) {
        self.usage.note(inner.layers.index_bytes(), inner.layers.log_bytes());
    }

    /// When a write may go on with the share of the log that the volume may have, where `coming` is data of writes just let go on.
    /// `paused` says that the write has paused already.
    #[inline]
    pub fn log_pace(&self, coming: Coming, paused: bool) -> Pace {
        match self.usage.to_ask(Resource::Log, self.weight()) {
            None => Pace::Go,
            Some(budget) => self.ask_for_log(budget, coming, paused),
        }
    }

    #[cold]
    fn ask_for_log(&self, budget: &Budget, coming: Coming, paused: bool) -> Pace {
        if !self.can_be_written_back() {
            return Pace::Go;
        }
        // The keeper has this volume written back, and all others which use much.
        budget.ask();
        match budget.log.pace_behind(self.claim(Resource::Log), coming) {
            Pace::Pause(_) if paused => Pace::Go,
            pace => pace,
        }
    }

    /// Whether writeback makes the volume's part of the log free, sooner or later.
    fn can_be_written_back(&self) -> bool {
        self.store_link().is_some() && self.lost().is_none()
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
        match self.usage.to_ask(Resource::Index, self.weight()) {
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
        let pace = match budget.index.pace(self.claim(Resource::Index)) {
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
        let Some(budget) = self.usage.to_ask(Resource::Index, self.weight()) else { return Some(record) };
        let covers =
            |(kept, _): &&(SectorRange, bool)| kept.start() <= range.start() && range.end() <= kept.end();
        match inner.kept.iter().find(covers) {
            // What is around the sectors may have become zeroes since, of which another write is sure.
            Some((kept, true)) => {
                let start = record.start().max(kept.start());
                SectorRange::new(start, record.end().min(kept.end()).checked_sub(start)?)
            }
            // A lost volume fails the request later.
            _ => {
                let may_grow = budget.index.pace(self.claim(Resource::Index)) != Pace::Wait;
                (may_grow || self.lost().is_some()).then_some(record)
            }
        }
    }

    /// Whether a write fails which can only go on when the client makes room.
    pub fn fails_when_full(&self) -> bool {
        self.usage.budget().is_some_and(|budget| budget.fails)
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

    /// The use of the resource as a claim on the budget. Data unreadable here can only be written again: meanwhile the use may
    /// become twice as large as otherwise.
    pub(in crate::cache) fn claim(&self, resource: Resource) -> Claim {
        let is_unreadable = self.store_link().is_some_and(StoreLink::is_unreadable);
        let bytes = self.usage.bytes(resource);
        Claim { bytes: if is_unreadable { bytes / 2 } else { bytes }, weight: self.weight() }
    }

    /// Counts a write held back by [`Self::index_pace`] or [`Self::log_pace`].
    pub fn count_held(&self, resource: Resource) {
        self.usage.of(resource).held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts time in which writes were held back by [`Self::index_pace`] or [`Self::log_pace`].
    pub fn count_held_time(&self, resource: Resource, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.usage.of(resource).held_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The figures of the budget at this moment. Takes no lock.
    pub fn usage(&self, resource: Resource) -> UsageFigures {
        let used = self.usage.of(resource);
        let (held, held_nanos) = (used.held.load(Ordering::Relaxed), used.held_nanos.load(Ordering::Relaxed));
        let waits = resource == Resource::Index || self.can_be_written_back();
        let is_full = waits
            && self
                .usage
                .budget()
                .is_some_and(|budget| budget.pool(resource).pace(self.claim(resource)) == Pace::Wait);
        UsageFigures { bytes: self.usage.bytes(resource), is_full, held, held_nanos }
    }

    /// The resource for which writes of the volume have to wait, or without which they fail.
    pub fn waits_for(&self) -> Option<Resource> {
        [Resource::Index, Resource::Log].into_iter().find(|resource| self.usage(*resource).is_full)
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
            if self.usage.bytes(Resource::Index) <= target {
                return None;
            }
            let mut inner = self.lock();
            let from = next?;
            let range = SectorRange::new(from, u64::MAX.saturating_sub(from))?;
            next = inner.layers.evict(table, range, EXTENTS_MAX, |_, seq| seq <= mark);
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
