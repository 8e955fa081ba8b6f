//! The cuts of a volume: made at a FLUSH or at once, complete when the cut's writes have landed, then thawed (the extents
//! become clean) or taken back.
//!
//! Owns the decision which writes a cut covers. Does not own when a cut is due (`writeback/due`), nor how a cut gets to the store
//! (`writeback/carry`). Invariants: cuts ascend; only a complete cut leaves the host; the first cut is carried first.

use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::cache::volume::layer::Dead;
use crate::cache::volume::layers::{Dirty, Frozen, Layers};
use crate::units::Seq;

/// Most cuts of a volume at the same time.
pub(super) const CUTS_MAX: usize = 32;

/// How far a cut is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum CutState {
    /// The volume has no cut.
    None,
    /// Writes of the cut are being appended.
    Landing,
    /// All writes of the cut have landed. The cut covers everything up to this number.
    Complete(Seq),
}

impl Volume {
    /// Adds to `needs` every place which must become stable before the FLUSH ends; fails when one of the places never will.
    /// Returns the last sequence number covered by the FLUSH. Makes the cut when one is wanted.
    pub(in crate::cache) fn flush(
        &self,
        table: &SegmentTable,
        needs: &mut Vec<Place>,
    ) -> Result<Seq, IoError> {
        let waits = self.waits_for_store();
        let mut inner = self.lock();
        let is_wanted = inner.cut_at_flush;
        if is_wanted || (waits && inner.has_no_cut()) {
            inner.freeze();
        }
        let covers = Seq(inner.last_seq);
        let outcome = inner.unsynced(table, needs).map(|()| covers);
        drop(inner);
        if is_wanted {
            // Writeback looks at the volume for other reasons only much later.
            self.announce();
        }
        outcome
    }

    /// Has the volume announced when `bytes` of data are not in the store; `true` when there are so many already.
    pub(in crate::cache) fn tell_when_dirty(&self, bytes: u64) -> bool {
        let mut inner = self.lock();
        inner.tell_at = (inner.layers.dirty_bytes() < bytes).then_some(bytes);
        inner.tell_at.is_none()
    }

    /// Makes a cut at the next FLUSH, unless the volume has a cut.
    pub(in crate::cache) fn cut_at_flush(&self) {
        let mut inner = self.lock();
        inner.cut_at_flush = inner.has_no_cut();
    }

    /// Makes a cut now, unless the volume has a cut.
    pub(in crate::cache) fn cut_now(&self) {
        let mut inner = self.lock();
        if inner.has_no_cut() {
            inner.freeze();
        }
    }

    /// Makes one cut more, however many the volume has.
    #[cfg(test)]
    pub(in crate::cache) fn cut_once_more(&self) {
        self.lock().freeze();
    }

    /// How far the first cut is.
    pub(in crate::cache) fn cut_state(&self) -> CutState {
        match self.lock().layers.cuts().front() {
            None => CutState::None,
            Some(cut) if cut.under_way > 0 => CutState::Landing,
            Some(cut) => CutState::Complete(cut.last),
        }
    }

    /// Extents of the first cut, and bytes of data.
    pub(in crate::cache) fn cut_size(&self) -> (usize, u64) {
        let inner = self.lock();
        inner.layers.cuts().front().map_or((0, 0), |cut| (cut.index.len(), cut.index.live_bytes()))
    }

    /// The extents of the first cut, which is complete. A complete cut stays as the cut is until the store has the cut or the cut
    /// is taken back, and the caller does neither meanwhile. Only places change, when data moves or is lost; so looking through the
    /// sectors in ascending order, one range under each hold of the lock, finds each extent once.
    pub(in crate::cache) fn cut_extents(&self) -> Vec<Extent> {
        self.extents(|inner, from| inner.layers.frozen_from(from, EXTENTS_MAX))
    }

    /// Takes note of some extents of the first cut, which the store has, until about `limit` extents were touched: the extents
    /// become clean. Returns `true` when none is left in the cut. Then the next cut is the first. Extents out of use are to be
    /// forgotten.
    pub(in crate::cache) fn thaw_some(&self, table: &SegmentTable, limit: usize) -> (bool, Dead) {
        let mut inner = self.lock();
        debug_assert!(
            inner.removed || inner.layers.cuts().front().is_none_or(|cut| cut.under_way == 0),
            "a cut leaves the host when its writes have landed"
        );
        let failed = inner.layers.cuts().front().map_or(Seq(0), |cut| cut.failed);
        inner.failed_before = inner.failed_before.max(failed);
        let thawed = inner.layers.thaw_some(table, limit);
        self.note_index(&inner);
        thawed
    }

    /// Takes some extents of the first cut back, until about `limit` extents were touched. Returns `true` when none is left in the
    /// cut: then the content is a part of the next cut, which may be made later.
    pub(in crate::cache) fn undo_some(&self, table: &SegmentTable, limit: usize) -> bool {
        let mut inner = self.lock();
        let only = inner.layers.cuts().front().filter(|_| inner.layers.cuts().len() == 1);
        let only = only.map(|cut| (cut.since, cut.failed));
        let is_undone = inner.layers.undo_some(table, limit);
        self.note_index(&inner);
        if !is_undone {
            return false;
        }
        if let Some((since, failed)) = only {
            inner.active_since = since.or(inner.active_since);
            inner.failed = failed.max(inner.failed);
        }
        drop(inner);
        self.announce();
        true
    }
}

impl Inner {
    pub(super) fn has_no_cut(&self) -> bool {
        self.layers.cuts().is_empty()
    }

    /// Whether the active data becomes a cut of its own behind the cuts on their way: `cut_bytes` are enough, while at most
    /// `backlog_bytes` are not in the store. Sectors written again and again would fill the log with versions that no reader
    /// needs, so in such a volume the active layer grows instead.
    pub(super) fn has_enough_for_another_cut(&self, cut_bytes: u64, backlog_bytes: u64) -> bool {
        (1..CUTS_MAX).contains(&self.layers.cuts().len())
            && self.layers.active_bytes() >= cut_bytes
            && !self.sample.is_mostly_again()
            && self.layers.dirty_bytes() <= backlog_bytes
    }

    /// Whether so much data has gathered that writeback has to look at the volume.
    pub(super) fn is_large(&mut self) -> bool {
        let dirty_bytes = || self.layers.dirty_bytes();
        let is_large = self.tell_at.is_some_and(|bytes| dirty_bytes() >= bytes);
        if is_large {
            self.tell_at = None;
        }
        is_large
    }

    pub(super) fn freeze(&mut self) {
        debug_assert!(Seq(self.last_seq) >= self.layers.cut(), "a cut covers numbers that were given out");
        self.cut_at_flush = false;
        if Seq(self.last_seq) == self.layers.cut() {
            // There is nothing to cut, and nobody would take note of such a cut's end.
            return;
        }
        self.sample = Sample::default();
        self.layers.freeze(Frozen {
            last: Seq(self.last_seq),
            under_way: self.under_way,
            since: self.active_since.take(),
            failed: std::mem::take(&mut self.failed),
            ..Frozen::default()
        });
    }
}

/// One of so many extents is looked at, chosen by a hash of the sequence number: the habits of writers do not bias the sample.
const SAMPLE_EVERY: u64 = 8;
/// 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
const SAMPLE_HASH: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sample of the writes since the last cut: do they replace content of cuts, or add content? The answer decides whether data gathers
/// in the active layer or makes a cut behind others. Sectors of the extents looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Sectors that a cut has too.
    again: u64,
    /// Sectors with no content in cuts nor in the active layer.
    new: u64,
}

impl Sample {
    /// Looks at an extent about to be inserted, if the hash chooses the extent.
    pub fn look_at(&mut self, layers: &Layers, extent: &Extent) {
        let is_its_turn = extent.seq.0.wrapping_mul(SAMPLE_HASH) < u64::MAX / SAMPLE_EVERY;
        if layers.cuts().is_empty() || !is_its_turn || !matches!(extent.backing, Backing::Data { .. }) {
            return;
        }
        let sectors = extent.range.count();
        match layers.where_dirty(extent.range) {
            // The active layer does not grow.
            Dirty::Active => {}
            Dirty::Cut => self.again = self.again.saturating_add(sectors),
            Dirty::Not => self.new = self.new.saturating_add(sectors),
        }
    }

    /// Whether the writes mostly replace content of cuts.
    pub fn is_mostly_again(&self) -> bool {
        self.again > self.new
    }
}
