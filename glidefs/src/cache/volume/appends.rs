//! The sequence numbers of a volume: given out before an append, landed with the append or its failure.
//!
//! Owns which numbers have not landed yet and which have failed. Does not own the append itself (`shard/append`).
//! Invariant: each number that was given out lands once; a cut is complete when every number that the cut covers has landed.

use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent};
use crate::units::Seq;

impl Volume {
    /// Gives out `count` sequence numbers and returns the first. Each is given back with [`Self::appended`] or
    /// [`Self::failed`].
    pub(in crate::cache) fn next_seqs(&self, count: u64) -> Seq {
        let mut inner = self.lock();
        let first = inner.last_seq + 1;
        inner.last_seq += count;
        inner.under_way += count;
        Seq(first)
    }

    /// Makes appended extents readable, whose `count` sequence numbers begin at `first`, and remembers that they end at
    /// `place`, which may not be stable yet.
    pub(in crate::cache) fn appended(
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
            let Inner { layers, sample, .. } = &mut *inner;
            sample.look_at(layers, &extent);
            layers.insert(table, extent);
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
    pub(in crate::cache) fn gave_back(&self, first: Seq, count: u64) {
        self.lock().landed(first, count);
    }

    /// Gives back `count` sequence numbers from `first` on, of a record that may be on disk or not.
    pub(in crate::cache) fn failed(&self, first: Seq, count: u64) {
        let mut inner = self.lock();
        let last = Seq(first.0.saturating_add(count.saturating_sub(1)));
        let Inner { layers, failed, .. } = &mut *inner;
        let failed = layers.cuts_from(first).next().map_or(failed, |cut| &mut cut.failed);
        *failed = last.max(*failed);
        inner.landed(first, count);
    }

    /// The highest number in the first cut and those before of which the store has nothing, though recovery may find the record.
    pub(in crate::cache) fn failed_in_cuts(&self) -> Seq {
        let inner = self.lock();
        inner.failed_before.max(inner.layers.cuts().front().map_or(Seq(0), |cut| cut.failed))
    }

    /// Puts back an extent found by recovery, which is stable; `false` when newer data may have left the log since.
    pub(in crate::cache) fn recovered(&self, table: &SegmentTable, extent: Extent) -> bool {
        let mut inner = self.lock();
        inner.last_seq = inner.last_seq.max(extent.seq.0);
        // A doubt stays known after its end.
        if extent.seq <= inner.evicted && !matches!(extent.backing, Backing::Doubt { .. }) {
            return false;
        }
        inner.layers.insert(table, extent);
        true
    }
}

impl Inner {
    pub(super) fn landed(&mut self, first: Seq, count: u64) {
        self.under_way = self.under_way.saturating_sub(count);
        for cut in self.layers.cuts_from(first) {
            cut.under_way = cut.under_way.saturating_sub(count);
        }
    }
}
