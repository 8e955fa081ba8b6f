//! The sequence numbers of a volume: given out before an append, landed with the append or with the append's failure.
//!
//! Owns the numbers not landed yet, the numbers of failed appends, and the places of appends not known to be stable. Does not own the
//! append itself (`shard/append`), nor the sync (`shard/sync`). Invariants: each number given out lands at most once, and always unless
//! the volume is removed meanwhile; a cut is complete when every number of the cut has landed; a place is in the list before the request
//! of the append is acknowledged, and until a sync has made it stable; the list has one place for each use of a segment file.

use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable, Stability};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::ranks::Ranks;
use crate::cache::volume::store_link::StoreLink;
use crate::tasks;
use crate::units::{SectorRange, Seq};

/// More sequence numbers of an export than the records of one segment hold.
pub(in crate::cache) const SEQS_IN_A_SEGMENT: u64 = 1 << 32;
/// Sequence numbers in a piece of an export's history. A doubt makes an export skip [`SEQS_IN_A_SEGMENT`] numbers, so an empty
/// piece lies between the numbers given out before a doubt and the numbers given out after.
pub(in crate::cache) const SEQS_IN_A_PIECE: u64 = SEQS_IN_A_SEGMENT / 2;
/// More sequence numbers than a life of the daemon gives out, behind the last one in the log, to writes that fail; and so few that no
/// start takes the gap for that of a doubt.
pub(super) const SEQS_SKIPPED: u64 = SEQS_IN_A_PIECE / 2;

/// Whether a write has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum WriteKind {
    Data,
    Zeroes,
}

impl Volume {
    /// Gives out `count` sequence numbers for data and returns the first. Each number lands with [`Self::appended`],
    /// [`Self::failed`] or [`Self::gave_back`].
    ///
    /// # Errors
    /// [`IoError::NoSequenceNumber`] when no number is left.
    pub(in crate::cache) fn next_seqs(&self, count: u64) -> Result<Seq, IoError> {
        let mut inner = self.lock();
        let first = inner.next_seqs(count)?;
        inner.data_under_way += count;
        Ok(first)
    }

    /// Makes appended extents readable. The extents have the `count` sequence numbers from `first` on, and end at `place`, which
    /// is noted as not stable.
    pub(in crate::cache) fn appended(
        &self,
        table: &SegmentTable,
        (first, count): (Seq, u64),
        extents: impl Iterator<Item = Extent>,
        place: Place,
    ) -> Result<(), IoError> {
        // A record has writes of many exports.
        let _work = tasks::work_for(Some(self.id));
        let mut inner = self.lock();
        if inner.removed {
            return Err(IoError::Removed(self.id));
        }
        let was_empty = inner.layers.is_active_empty();
        let completes = inner.landed(first, count, WriteKind::Data);
        for extent in extents {
            let Inner { layers, sample, .. } = &mut *inner;
            sample.look_at(layers, &extent);
            layers.insert(table, None, extent);
        }
        inner.note_append(self.store_link(), first);
        inner.remember(table, place);
        self.note_index(&inner);
        let announce = inner.is_large() || (was_empty && !inner.layers.is_active_empty());
        drop(inner);
        self.tell_landed(completes);
        if announce {
            self.announce();
        }
        Ok(())
    }

    /// Lands `count` sequence numbers from `first` on without data: nothing was written under these numbers.
    pub(in crate::cache) fn gave_back(&self, first: Seq, count: u64, kind: WriteKind) {
        let completes = self.lock().landed(first, count, kind);
        self.tell_landed(completes);
    }

    /// Lands `count` sequence numbers from `first` on without data: the record of these numbers may be on disk or not.
    pub(in crate::cache) fn failed(&self, first: Seq, count: u64, kind: WriteKind) {
        let mut inner = self.lock();
        let last = Seq(first.0.saturating_add(count.saturating_sub(1)));
        let Inner { layers, failed, .. } = &mut *inner;
        let failed = layers.cuts_from(first).next().map_or(failed, |cut| &mut cut.failed);
        *failed = last.max(*failed);
        let completes = inner.landed(first, count, kind);
        drop(inner);
        self.tell_landed(completes);
    }

    /// Tells who carries the first cut to the store that a cut is complete now, if so.
    pub(super) fn tell_landed(&self, completes: bool) {
        if let Some(link) = self.store_link().filter(|_| completes) {
            link.landing.notify_waiters();
        }
    }

    /// The highest failed number of the first cut and of the cuts before: the store has nothing of the write, though recovery may
    /// find the record.
    pub(in crate::cache) fn failed_in_cuts(&self) -> Seq {
        let inner = self.lock();
        inner.failed_before.max(inner.layers.cuts().front().map_or(Seq(0), |cut| cut.failed))
    }

    /// Puts back an extent found by recovery, which is stable. Returns `false`, and leaves the extent out, when newer data of the
    /// same sectors may have left the log since.
    pub(in crate::cache) fn recovered(&self, table: &SegmentTable, extent: Extent) -> bool {
        self.recovered_all(table, &Ranks::default(), [extent]) == (1, 0)
    }

    /// As [`Self::recovered`], for some extents. Returns how many were put back, and how many left out.
    pub(in crate::cache) fn recovered_all(
        &self,
        table: &SegmentTable,
        ranks: &Ranks,
        extents: impl IntoIterator<Item = Extent>,
    ) -> (u64, u64) {
        let (mut put_back, mut left_out) = (0, 0);
        let mut inner = self.lock();
        for extent in extents {
            inner.last_seq = inner.last_seq.max(extent.seq.0);
            // A doubt stays known after the doubt has ended.
            if extent.seq <= inner.evicted && !matches!(extent.backing, Backing::Doubt { .. }) {
                left_out += 1;
            } else {
                inner.layers.insert(table, Some(ranks), extent);
                put_back += 1;
            }
        }
        self.note_index(&inner);
        (put_back, left_out)
    }

    /// The parts of `range` where write `seq`, lost to recovery, would be the newest content; nothing where newer data of the same sectors
    /// may have left the log. An entry of the write itself does not count in segments with numbers that `is_note` accepts. For a start,
    /// when all other content is put back.
    pub(in crate::cache) fn missed_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        is_note: impl Fn(u32) -> bool,
    ) -> Vec<SectorRange> {
        let inner = self.lock();
        if seq > inner.evicted { inner.layers.older_parts(range, seq, is_note) } else { Vec::new() }
    }

    /// Takes note that data of the volume ends at `place`, which is not stable.
    pub(in crate::cache) fn must_sync(&self, table: &SegmentTable, place: Place) {
        self.lock().remember(table, place);
    }

    /// Adds to `needs` every place which must become stable before a cut may leave the host; fails when one of the places never
    /// will.
    pub(in crate::cache) fn unsynced(
        &self,
        table: &SegmentTable,
        needs: &mut Vec<Place>,
    ) -> Result<(), IoError> {
        self.lock().unsynced(table, needs)
    }
}

impl Inner {
    pub(super) fn next_seqs(&mut self, count: u64) -> Result<Seq, IoError> {
        // The catalog may have any number as the last one, from a version that believed every manifest.
        let before = self.last_seq.saturating_add(self.skipped_seqs);
        let last = before.saturating_add(count);
        if last > Seq::MAX.0 {
            return Err(IoError::NoSequenceNumber);
        }
        self.skipped_seqs = 0;
        self.last_seq = last;
        self.under_way += count;
        Ok(Seq(before + 1))
    }

    /// Notes the time of the append of write `first`, where there is a store, and makes a cut where enough data has gathered.
    pub(super) fn note_append(&mut self, link: Option<&StoreLink>, first: Seq) {
        let Some(link) = link else { return };
        let Self { layers, active_since, .. } = self;
        let since = layers.cuts_from(first).next().map_or(active_since, |cut| &mut cut.since);
        since.get_or_insert_with(|| link.queue.clock.now());
        if self.has_enough_for_another_cut(link.queue.cut_bytes_max(), link.queue.backlog_bytes_max) {
            self.freeze();
        }
    }

    /// Takes note that numbers have landed. Returns whether a cut is complete now.
    #[must_use = "somebody may wait for the cut"]
    pub(super) fn landed(&mut self, first: Seq, count: u64, kind: WriteKind) -> bool {
        if kind == WriteKind::Data {
            debug_assert!(self.data_under_way >= count, "a number lands once, after it was given out");
            self.data_under_way = self.data_under_way.saturating_sub(count);
        }
        debug_assert!(self.under_way >= count, "a number lands once, after it was given out");
        self.under_way = self.under_way.saturating_sub(count);
        let mut completes = false;
        for cut in self.layers.cuts_from(first) {
            debug_assert!(cut.under_way >= count, "a cut knows all writes under way when the cut was made");
            cut.under_way = cut.under_way.saturating_sub(count);
            completes |= cut.under_way == 0;
        }
        debug_assert!(
            self.layers.cuts().iter().map(|cut| cut.under_way).chain([self.under_way]).is_sorted(),
            "writes under way for a cut are under way for later cuts too"
        );
        completes
    }

    pub(super) fn unsynced(&mut self, table: &SegmentTable, needs: &mut Vec<Place>) -> Result<(), IoError> {
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

    pub(super) fn remember(&mut self, table: &SegmentTable, place: Place) {
        let is_same = |known: &Place| known.number == place.number && known.segment_id == place.segment_id;
        if let Some(known) = self.unsynced.iter_mut().find(|known| is_same(known)) {
            known.end = known.end.max(place.end);
            return;
        }
        self.unsynced.retain(|known| known.stability(table) != Stability::Stable);
        debug_assert!(
            self.unsynced.iter().all(|known| !is_same(known)),
            "one place for each use of a segment file"
        );
        self.unsynced.push(place);
    }
}
