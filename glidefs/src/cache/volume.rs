//! One export's data in the cache: its index, its history's position, what of it is not stable yet, and the cut that is
//! on its way to the store.
//!
//! Does not own segments, nor when a cut is made (`flush`). Invariants: a sequence number is given out once; everything this
//! volume appended and that is not known to be stable is in `unsynced` before the request that appended it is acknowledged;
//! a cut is complete when every write it covers has been appended or has failed.

pub(super) mod crowding;
mod doubts;
pub mod durability;
pub mod error;
pub mod extent;
pub mod fetch;
pub mod index;
mod layer;
pub mod layers;
pub mod linked;
pub mod store_link;
mod waits;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::cache::log::table::{Place, SegmentTable, Stability};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::fetch::Fill;
use crate::cache::volume::layers::{Dirty, Frozen, Layers, SeqMarks};
use crate::cache::volume::store_link::StoreLink;
use crate::observe::repeat::Repeat;
use crate::units::{ExportId, SectorRange, Seq};

/// One export's data in the cache.
#[derive(Debug)]
pub struct Volume {
    id: ExportId,
    /// The store's side of it; none where there is no store.
    store_link: OnceLock<StoreLink>,
    waits: waits::Waits,
    /// What lets one of many log lines pass about data that cannot be read here, and about flushes that fail.
    bad_reads: Repeat,
    bad_writebacks: Repeat,
    /// The same about a store that cannot be asked whose the export is.
    silence: Repeat,
    /// Held for one index operation at a time.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    layers: Layers,
    /// Last sequence number given out.
    last_seq: u64,
    /// Nothing up to here is taken from the log by recovery.
    evicted: Seq,
    /// Sequence numbers given out that have neither been appended nor failed.
    under_way: u64,
    /// Highest of the numbers whose record could not be written, of those that are in no cut, and of those in cuts that are in the
    /// store. Such a record may be on disk all the same, and be found by recovery.
    failed: Seq,
    failed_before: Seq,
    /// What a sample of what was appended since the last cut says.
    sampled: Sampled,
    /// The next FLUSH makes a cut.
    cut_at_flush: bool,
    /// When the oldest of what is not in a cut was appended. None without a store.
    active_since: Option<Duration>,
    /// Bytes of writes that were told to go on and have not ended. Counted only where there is a bound.
    promised_bytes: u64,
    unsynced: Vec<Place>,
    removed: bool,
}

/// Sectors of the extents that were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    /// Those that a cut has too.
    again: u64,
    /// Those that are nowhere else.
    new: u64,
}

/// One of so many extents is looked at, which one by a hash of the sequence number: writers have habits.
const SAMPLE_EVERY: u64 = 8;
/// 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
const SAMPLE_HASH: u64 = 0x9E37_79B9_7F4A_7C15;
/// Cuts of a volume at the same time, at most.
const CUTS_MAX: usize = 32;

/// Figures of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    /// Extents in the index.
    pub extents: u64,
    /// Bytes of data that are not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data that are in the store and in the log.
    pub clean_bytes: u64,
    /// Last sequence number given out.
    pub last_seq: Seq,
    /// Everything up to here is in the store.
    pub stored: Seq,
    /// How long the oldest data that is not in the store has been here; zero when there is none, or no store. What was here
    /// when the daemon started counts from then on.
    pub at_risk_for: Duration,
    /// A record of it may be lost: data that is older fails.
    pub doubted: bool,
    /// Cuts that the store does not have. The first one is on its way.
    pub cuts: usize,
}

/// How far a cut is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutState {
    /// There is none.
    None,
    /// Writes that it covers are being appended.
    Landing,
    /// It is what it will be: everything up to here.
    Complete(Seq),
}

impl Volume {
    /// An empty volume.
    pub fn new(id: ExportId) -> Self {
        Self::at(id, SeqMarks::default())
    }

    /// A volume that is in the store up to `marks.stored`, with nothing of it here.
    pub(super) fn at(id: ExportId, marks: SeqMarks) -> Self {
        let stored = marks.stored.max(marks.evicted);
        let inner = Inner {
            layers: Layers::new(stored),
            last_seq: stored.0,
            evicted: marks.evicted,
            ..Inner::default()
        };
        Self {
            id,
            store_link: OnceLock::new(),
            waits: waits::Waits::default(),
            bad_reads: Repeat::default(),
            bad_writebacks: Repeat::default(),
            silence: Repeat::default(),
            inner: Mutex::new(inner),
        }
    }

    /// Whose data it is.
    pub fn id(&self) -> ExportId {
        self.id
    }

    pub(super) fn bad_reads(&self) -> &Repeat {
        &self.bad_reads
    }

    pub(super) fn bad_writebacks(&self) -> &Repeat {
        &self.bad_writebacks
    }

    /// Figures at this moment.
    pub fn figures(&self) -> VolumeFigures {
        let inner = self.lock();
        VolumeFigures {
            extents: inner.layers.len() as u64,
            dirty_bytes: inner.layers.dirty_bytes(),
            clean_bytes: inner.layers.clean_bytes(),
            last_seq: Seq(inner.last_seq),
            stored: inner.layers.stored(),
            at_risk_for: inner.at_risk_for(self.store_link.get()),
            doubted: inner.layers.is_doubted(),
            cuts: inner.layers.cuts().len(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out `count` sequence numbers and returns the first. Each is given back with [`Self::appended`] or
    /// [`Self::failed`].
    pub(super) fn next_seqs(&self, count: u64) -> Seq {
        let mut inner = self.lock();
        let first = inner.last_seq + 1;
        inner.last_seq += count;
        inner.under_way += count;
        Seq(first)
    }

    /// Makes appended extents readable, whose `count` sequence numbers begin at `first`, and remembers that they end at
    /// `place`, which may not be stable yet.
    pub(super) fn appended(
        &self,
        table: &SegmentTable,
        (first, count): (Seq, u64),
        extents: impl Iterator<Item = Extent>,
        place: Place,
    ) -> Result<(), IoError> {
        let mut inner = self.lock();
        if inner.removed {
            return Err(IoError::Removed(self.id));
        }
        let was_empty = inner.layers.is_active_empty();
        inner.landed(first, count);
        for extent in extents {
            inner.sample(&extent);
            inner.layers.insert(table, extent);
        }
        if let Some(link) = self.store_link.get() {
            let Inner { layers, active_since, .. } = &mut *inner;
            let since = layers.cuts_from(first).next().map_or(active_since, |cut| &mut cut.since);
            since.get_or_insert_with(|| link.now());
            if inner.has_enough_for_another_cut(link.cut_bytes_max(), link.backlog_bytes_max()) {
                inner.freeze();
            }
        }
        inner.remember(table, place);
        let announce = was_empty && !inner.layers.is_active_empty();
        drop(inner);
        if announce {
            self.announce();
        }
        Ok(())
    }

    /// Gives back `count` sequence numbers from `first` on, of which nothing was written.
    pub(super) fn gave_back(&self, first: Seq, count: u64) {
        self.lock().landed(first, count);
    }

    /// Gives back `count` sequence numbers from `first` on, of a record that may be on disk or not.
    pub(super) fn failed(&self, first: Seq, count: u64) {
        let mut inner = self.lock();
        let last = Seq(first.0.saturating_add(count.saturating_sub(1)));
        let Inner { layers, failed, .. } = &mut *inner;
        let failed = layers.cuts_from(first).next().map_or(failed, |cut| &mut cut.failed);
        *failed = last.max(*failed);
        inner.landed(first, count);
    }

    /// The highest number in the first cut and those before of which the store has nothing, though recovery may find the record.
    pub(super) fn failed_in_cuts(&self) -> Seq {
        let inner = self.lock();
        inner.failed_before.max(inner.layers.cuts().front().map_or(Seq(0), |cut| cut.failed))
    }

    /// Makes the copy of an extent the one to read, where the one in segment `from` was.
    pub(super) fn relocated(&self, table: &SegmentTable, copy: Extent, from: u32) {
        let mut inner = self.lock();
        if !inner.removed {
            inner.layers.relocate(table, copy, from);
        }
    }

    /// Puts back an extent found by recovery, which is stable; `false` when newer data may have left the log since.
    pub(super) fn recovered(&self, table: &SegmentTable, extent: Extent) -> bool {
        let mut inner = self.lock();
        inner.last_seq = inner.last_seq.max(extent.seq.0);
        // A doubt stays known after its end.
        if extent.seq <= inner.evicted && !matches!(extent.backing, Backing::Doubt { .. }) {
            return false;
        }
        inner.layers.insert(table, extent);
        true
    }

    /// Takes note that data of it ends at `place`, which is not stable.
    pub(super) fn must_sync(&self, table: &SegmentTable, place: Place) {
        self.lock().remember(table, place);
    }

    /// Takes note that nothing here that is in the store may be served from here; returns up to which sequence number.
    pub(super) fn forget_clean(&self, table: &SegmentTable) -> Seq {
        let mut inner = self.lock();
        inner.layers.forget_clean(table);
        inner.evicted = inner.evicted.max(inner.layers.stored());
        inner.evicted
    }

    /// Up to which sequence number a doubt of it goes or went.
    pub(super) fn doubted_to(&self) -> Seq {
        self.lock().layers.doubted_to()
    }

    /// Whether there is or was a doubt about the segment and the damage that `evidence` stands for.
    pub(super) fn has_doubt_of(&self, evidence: SectorRange) -> bool {
        self.lock().layers.has_doubt_of(evidence)
    }

    /// Forgets the doubts, but for the highest, about segments of which `is_gone` says so.
    pub(super) fn forget_doubts(&self, table: &SegmentTable, is_gone: impl Fn(u64) -> bool) {
        self.lock().layers.forget_doubts(table, is_gone);
    }

    /// Whether the store has a cut that ended a doubt, and it was not written down that what was in doubt is out of use.
    pub(super) fn has_ended_doubt(&self) -> bool {
        let inner = self.lock();
        inner.layers.has_ended_doubt(inner.evicted)
    }

    /// Up to which sequence number nothing of it can be relied on, if so, and before which sector.
    pub(super) fn doubt(&self) -> Option<(Seq, u64)> {
        // The doubt takes note of a larger size before the tie does.
        let size_sectors = self.store_link.get().map_or(u64::MAX, StoreLink::size_sectors);
        self.lock().layers.doubt().map(|(seq, end)| (seq, end.min(size_sectors)))
    }

    /// Whether a record of it may be lost that the store does not know of.
    pub(super) fn is_doubted(&self) -> bool {
        self.lock().layers.is_doubted()
    }

    /// Where the newest content of `range` is, in order. The segments of pieces with data are pinned: unpin each.
    pub(super) fn plan(&self, table: &SegmentTable, range: SectorRange, plan: &mut Vec<Piece>) {
        let inner = self.lock();
        inner.layers.lookup(range, |piece| add_to(plan, table, piece));
    }

    /// Same for what the first cut holds of `range`.
    pub(super) fn plan_cut(&self, table: &SegmentTable, range: SectorRange, plan: &mut Vec<Piece>) {
        let inner = self.lock();
        inner.layers.lookup_frozen(range, |piece| add_to(plan, table, piece));
    }

    /// What of `range` is not here, in order; neighbours are one.
    pub(super) fn missing(&self, range: SectorRange) -> Vec<SectorRange> {
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

    /// Fetches from the store what is not here of `range`; `None` when nothing is missing any more. The answer may be
    /// awaited anywhere; who awaits it ends the wait when [`Self::waits_ended`] returns, by dropping the receiver.
    pub fn fetch(&self, range: SectorRange) -> Option<tokio::sync::oneshot::Receiver<Result<Fill, IoError>>> {
        let missing = self.missing(range);
        let (first, last) = (missing.first()?, missing.last()?);
        let hull = SectorRange::new(first.start(), last.end() - first.start())?;
        Some(self.store_link.get()?.fetch(hull, missing, self.id))
    }

    /// What of `range` still comes from write `seq` in `segment` and is not in the store.
    pub(super) fn dirty_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        number: u32,
        visit: impl FnMut(SectorRange),
    ) {
        self.lock().layers.dirty_parts(range, seq, number, visit);
    }

    /// Everything whose place is in `segment`. Takes time in proportion to the number of extents.
    pub(super) fn extents_in(&self, number: u32) -> Vec<Extent> {
        self.lock().layers.extents_in(number).collect()
    }

    /// Whether what write `seq` wrote is in the store, and may be forgotten.
    pub(super) fn is_clean(&self, seq: Seq) -> bool {
        self.lock().layers.is_clean(seq)
    }

    /// Forgets what of `range` comes from write `seq` in `segment`, if it is in the store.
    pub(super) fn evict(&self, table: &SegmentTable, range: SectorRange, seq: Seq, number: u32) {
        self.lock().layers.evict(table, range, seq, number);
    }

    /// Whether the entry in `segment` says that a record of it may be lost.
    pub(super) fn is_doubted_in(&self, number: u32) -> bool {
        self.lock().layers.is_doubted_in(number)
    }

    /// Adds to `needs` every place that must become stable for a FLUSH; fails when one of them never will.
    /// Returns what the FLUSH covers.
    pub(super) fn flush(&self, table: &SegmentTable, needs: &mut Vec<Place>) -> Result<Seq, IoError> {
        let waits = self.waits_for_store();
        let mut inner = self.lock();
        if inner.cut_at_flush || (waits && inner.has_no_cut()) {
            inner.freeze();
        }
        let covers = Seq(inner.last_seq);
        inner.unsynced(table, needs).map(|()| covers)
    }

    /// Adds to `needs` every place that must become stable before the cut may leave the host.
    pub(super) fn unsynced(&self, table: &SegmentTable, needs: &mut Vec<Place>) -> Result<(), IoError> {
        self.lock().unsynced(table, needs)
    }

    /// Makes a cut at the next FLUSH, unless there is one.
    pub(super) fn cut_at_flush(&self) {
        let mut inner = self.lock();
        inner.cut_at_flush = inner.has_no_cut();
    }

    /// Makes a cut now, unless there is one.
    pub(super) fn cut_now(&self) {
        let mut inner = self.lock();
        if inner.has_no_cut() {
            inner.freeze();
        }
    }

    /// How far the first cut is.
    pub(super) fn cut_state(&self) -> CutState {
        match self.lock().layers.cuts().front() {
            None => CutState::None,
            Some(cut) if cut.under_way > 0 => CutState::Landing,
            Some(cut) => CutState::Complete(cut.last),
        }
    }

    /// The extents of the first cut.
    pub(super) fn cut_extents(&self) -> Vec<Extent> {
        self.lock().layers.frozen().collect()
    }

    /// Takes note that the store has some of the first cut's extents, up to `count`; `true` when there are no more. The next cut
    /// is the first one then.
    pub(super) fn thaw_some(&self, table: &SegmentTable, count: usize) -> bool {
        let mut inner = self.lock();
        let failed = inner.layers.cuts().front().map_or(Seq(0), |cut| cut.failed);
        inner.failed_before = inner.failed_before.max(failed);
        inner.layers.thaw_some(table, count)
    }

    /// Takes the first cut back. What it held is a part of the next one, which may be made later.
    pub(super) fn undo_cut(&self, table: &SegmentTable) {
        let mut inner = self.lock();
        let Inner { layers, active_since, failed, .. } = &mut *inner;
        if let (Some(first), 1) = (layers.cuts().front(), layers.cuts().len()) {
            *active_since = first.since.or(*active_since);
            *failed = first.failed.max(*failed);
        }
        inner.layers.undo(table);
        drop(inner);
        self.announce();
    }

    /// Forgets all data, for ever.
    pub(super) fn remove(&self, table: &SegmentTable) {
        let mut inner = self.lock();
        inner.layers.clear(table);
        inner.unsynced = Vec::new();
        inner.removed = true;
        drop(inner);
        // Who waits for its flush, or for bytes of it, is told.
        if let Some(link) = self.store_link.get() {
            link.remove(self.id);
        }
    }

    /// Whether the data was forgotten.
    pub fn is_removed(&self) -> bool {
        self.lock().removed
    }
}

impl Inner {
    fn has_no_cut(&self) -> bool {
        self.layers.cuts().is_empty()
    }

    /// Takes a look at an extent that is about to be inserted, if it is the turn of that one.
    fn sample(&mut self, extent: &Extent) {
        let is_its_turn = extent.seq.0.wrapping_mul(SAMPLE_HASH) < u64::MAX / SAMPLE_EVERY;
        if self.has_no_cut() || !is_its_turn || !matches!(extent.backing, Backing::Data { .. }) {
            return;
        }
        let sectors = extent.range.count();
        match self.layers.where_dirty(extent.range) {
            // What is active does not grow.
            Dirty::Active => {}
            Dirty::Cut => self.sampled.again = self.sampled.again.saturating_add(sectors),
            Dirty::Not => self.sampled.new = self.sampled.new.saturating_add(sectors),
        }
    }

    /// Whether what is active is to be a cut of its own behind those that are on their way: one of `cut_bytes`, while no more than
    /// `backlog_bytes` are not in the store. Sectors that are written again and again would fill the log with what no reader needs,
    /// so they make what is active larger instead.
    fn has_enough_for_another_cut(&self, cut_bytes: u64, backlog_bytes: u64) -> bool {
        (1..CUTS_MAX).contains(&self.layers.cuts().len())
            && self.layers.active_bytes() >= cut_bytes
            && self.sampled.again <= self.sampled.new
            && self.layers.dirty_bytes() <= backlog_bytes
    }

    /// How long the oldest data has not been in the store.
    fn at_risk_for(&self, link: Option<&StoreLink>) -> Duration {
        let since = self.layers.cuts().iter().find_map(|cut| cut.since).or(self.active_since);
        since.zip(link).map_or(Duration::ZERO, |(since, link)| link.now().saturating_sub(since))
    }

    fn freeze(&mut self) {
        self.cut_at_flush = false;
        if Seq(self.last_seq) == self.layers.cut() {
            // There is nothing to cut, and nobody would take note of such a cut's end.
            return;
        }
        self.sampled = Sampled::default();
        let mut cut = Frozen::at(Seq(self.last_seq));
        cut.under_way = self.under_way;
        cut.since = self.active_since.take();
        cut.failed = std::mem::take(&mut self.failed);
        self.layers.freeze(cut);
    }

    fn landed(&mut self, first: Seq, count: u64) {
        self.under_way = self.under_way.saturating_sub(count);
        for cut in self.layers.cuts_from(first) {
            cut.under_way = cut.under_way.saturating_sub(count);
        }
    }

    fn unsynced(&mut self, table: &SegmentTable, needs: &mut Vec<Place>) -> Result<(), IoError> {
        let mut outcome = Ok(());
        self.unsynced.retain(|place| match place.stability(table) {
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

    fn remember(&mut self, table: &SegmentTable, place: Place) {
        let same = |known: &&mut Place| known.number == place.number && known.segment_id == place.segment_id;
        if let Some(known) = self.unsynced.iter_mut().find(same) {
            known.end = known.end.max(place.end);
            return;
        }
        self.unsynced.retain(|known| known.stability(table) != Stability::Stable);
        self.unsynced.push(place);
    }
}

/// Adds a piece to a plan, pinning its segment unless it is one with the last.
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

#[cfg(test)]
mod tests;
