//! The cuts of a volume that the store does not have: how each begins and ends.
//!
//! Owns the moves of whole layers. Does not own when a cut is made or carried to the store. Invariant: a move in steps leaves readers the
//! same content between any two steps.

use std::time::Duration;

use super::Layers;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::layer::{Dead, Layer};
use crate::units::Seq;

/// A cut: the content, and the figures of the writes.
#[derive(Debug, Default)]
pub(in crate::cache) struct Frozen {
    pub(super) index: Layer,
    /// Last sequence number of the cut. Each cut has a higher one than the cuts before.
    pub last: Seq,
    /// Numbers up to `last` which have neither been appended nor failed.
    pub under_way: u64,
    /// When the oldest of the content was appended.
    pub since: Option<Duration>,
    /// Highest of the cut's failed numbers.
    pub failed: Seq,
}

impl Frozen {
    /// An empty cut at `last`.
    pub fn at(last: Seq) -> Self {
        Self { last, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn live_bytes(&self) -> u64 {
        self.index.live_bytes()
    }
}

impl Layers {
    /// Makes the active layer a cut, with the figures of `cut`.
    pub fn freeze(&mut self, cut: Frozen) {
        debug_assert!(cut.last > self.cut() && cut.index.is_empty(), "the numbers of cuts ascend");
        self.frozen.push_back(Frozen { index: std::mem::take(&mut self.active), ..cut });
    }

    /// Makes extents of the first cut, which is in the store, clean, until about `limit` extents were touched. Returns whether none
    /// is left in the cut. If the cut ends a doubt, all clean data is out of use with the cut's: write down beforehand that nothing
    /// up to the cut may be taken from the log any more.
    pub fn thaw_some(&mut self, table: &SegmentTable, limit: usize) -> (bool, Dead) {
        let mut dead = Dead::default();
        let Some(cut) = self.frozen.front_mut() else { return (true, dead) };
        let is_last = cut.index.move_some(table, &mut self.clean, limit);
        if is_last {
            let last = cut.last;
            debug_assert!(last > self.stored, "the history in the store only grows");
            let doubted = self.is_doubted();
            self.stored = last;
            self.frozen.pop_front();
            if doubted && !self.is_doubted() {
                dead = self.forget_clean();
            }
        }
        (is_last, dead)
    }

    /// Makes extents of the first cut a part of the second, or of the active layer where there is no second, until about `limit`
    /// extents were touched. Returns `true` when none is left: then it is as if the first cut had not been made. The older content
    /// goes to the layer of the newer, and never hides newer content there; so readers find the same content all the time.
    pub fn undo_some(&mut self, table: &SegmentTable, limit: usize) -> bool {
        let Some(mut first) = self.frozen.pop_front() else { return true };
        let joined = self.frozen.front_mut().map_or(&mut self.active, |second| &mut second.index);
        if !first.index.move_some(table, joined, limit) {
            self.frozen.push_front(first);
            return false;
        }
        if let Some(second) = self.frozen.front_mut() {
            second.since = first.since.or(second.since);
            second.failed = second.failed.max(first.failed);
        }
        true
    }
}
