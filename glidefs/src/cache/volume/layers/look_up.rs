//! Searching the layers of a volume: the newest content of a range, and the content missing in the store.
//!
//! Does not own the layers. Invariant: a newer layer hides the older ones.

use super::{Dirty, Layers};
use crate::cache::volume::extent::{Extent, Piece};
use crate::cache::volume::layer::Layer;
use crate::units::{SectorRange, Seq};

impl Layers {
    /// Calls `visit` with pieces which cover `range` exactly, in ascending order, each with the newest content. Content in doubt
    /// is damaged.
    pub fn lookup(&self, range: SectorRange, mut visit: impl FnMut(Piece)) {
        let Some(doubt) = self.doubt_in_force() else { return self.lookup_undoubted(range, visit) };
        let end = doubt.end.clamp(range.start(), range.end());
        let part = |from: u64, to: u64| SectorRange::new(from, to - from).filter(|part| !part.is_empty());
        if let Some(doubted) = part(range.start(), end) {
            self.lookup_undoubted(doubted, |piece| visit(doubt.judge(piece)));
        }
        if let Some(newer) = part(end, range.end()) {
            self.lookup_undoubted(newer, visit);
        }
    }

    /// As [`Self::lookup`], with content in doubt as it is.
    fn lookup_undoubted(&self, range: SectorRange, mut visit: impl FnMut(Piece)) {
        if self.frozen.is_empty() && self.clean.is_empty() {
            return self.active.lookup(range, visit);
        }
        self.active.lookup(range, |piece| match piece.backing {
            Some(_) => visit(piece),
            None => self.look_below(self.frozen.len(), piece.range, &mut visit),
        });
    }

    /// As [`Self::lookup_undoubted`], in the first `cuts` cuts and the clean layer.
    fn look_below(&self, cuts: usize, range: SectorRange, visit: &mut dyn FnMut(Piece)) {
        let newest = cuts.checked_sub(1).and_then(|at| Some((at, self.frozen.get(at)?)));
        let Some((older, cut)) = newest else { return self.clean.lookup(range, visit) };
        cut.index.lookup(range, |piece| match piece.backing {
            Some(_) => visit(piece),
            None => self.look_below(older, piece.range, visit),
        });
    }

    /// Calls `visit` with pieces of the first cut which cover `range` exactly, in ascending order.
    pub fn lookup_frozen(&self, range: SectorRange, mut visit: impl FnMut(Piece)) {
        match self.frozen.front() {
            Some(cut) => cut.index.lookup(range, visit),
            None => visit(Piece { range, backing: None, seq: Seq::default() }),
        }
    }

    /// Whether the active layer, or else a cut, has content for the first sector of `range`.
    pub fn where_dirty(&self, range: SectorRange) -> Dirty {
        let Some(first) = SectorRange::new(range.start(), 1) else { return Dirty::Not };
        let is_in = |layer: &Layer| {
            let mut found = false;
            layer.lookup(first, |piece| found |= piece.backing.is_some());
            found
        };
        if is_in(&self.active) {
            Dirty::Active
        } else if self.frozen.iter().rev().any(|cut| is_in(&cut.index)) {
            Dirty::Cut
        } else {
            Dirty::Not
        }
    }

    /// All content not in the store, newest content only, in ascending order.
    pub fn dirty(&self) -> Vec<Extent> {
        let mut dirty: Vec<Extent> = self.active.iter().collect();
        for (at, cut) in self.frozen.iter().enumerate() {
            for extent in cut.index.iter() {
                self.bare(at + 1, extent.range, &mut |part| dirty.extend(extent.part(part)));
            }
        }
        dirty.sort_unstable_by_key(|extent| extent.range.start());
        debug_assert!(
            dirty.is_sorted_by(|extent, next| extent.range.end() <= next.range.start()),
            "each sector has one newest content"
        );
        dirty
    }

    /// Calls `visit` with the parts of `range` in no cut from the one at `at` on, and not active either.
    fn bare(&self, at: usize, range: SectorRange, visit: &mut dyn FnMut(SectorRange)) {
        let cut = self.frozen.get(at);
        cut.map_or(&self.active, |cut| &cut.index).lookup(range, |piece| {
            if piece.backing.is_some() {
            } else if cut.is_some() {
                self.bare(at + 1, piece.range, visit);
            } else {
                visit(piece.range);
            }
        });
    }
}
