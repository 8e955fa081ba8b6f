//! Searching the layers of a volume: the newest content of a range, and the content missing in the store.
//!
//! Does not own the layers. Invariant: a newer layer hides the older ones.

use std::ops::ControlFlow;

use super::{Dirty, Layers, beginning};
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::layer::Layer;
use crate::units::{SectorRange, Seq};

/// A bound on looking for content, in extents.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Looks {
    /// So much may still be looked at.
    pub left: usize,
    /// Extra price of a piece with nothing in the index.
    pub gap: usize,
}

impl Looks {
    /// Pays for a piece of content, for which up to `layers` layers were searched.
    fn pay(&mut self, piece: &Piece, layers: usize) {
        let gap = if piece.backing.is_none() { self.gap } else { 0 };
        self.left = self.left.saturating_sub(layers.saturating_add(gap));
    }
}

impl Layers {
    /// Calls `visit` with pieces which cover `range` exactly, in ascending order, each with the newest content. Content in doubt
    /// is damaged.
    pub fn lookup(&self, range: SectorRange, mut visit: impl FnMut(Piece)) {
        let _: ControlFlow<()> = self.look(range, |piece| {
            visit(piece);
            ControlFlow::Continue(())
        });
    }

    /// As [`Self::lookup`], until `visit` breaks.
    pub fn look(
        &self,
        range: SectorRange,
        mut visit: impl FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(doubt) = self.doubt_in_force() else { return self.look_undoubted(range, visit) };
        let end = doubt.end.clamp(range.start(), range.end());
        let part = |from: u64, to: u64| SectorRange::new(from, to - from).filter(|part| !part.is_empty());
        if let Some(doubted) = part(range.start(), end) {
            self.look_undoubted(doubted, |piece| visit(doubt.judge(piece)))?;
        }
        match part(end, range.end()) {
            Some(newer) => self.look_undoubted(newer, visit),
            None => ControlFlow::Continue(()),
        }
    }

    /// As [`Self::look`], with content in doubt as it is.
    fn look_undoubted(
        &self,
        range: SectorRange,
        mut visit: impl FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.frozen.is_empty() && self.clean.is_empty() {
            return self.active.look(range, visit);
        }
        self.active.look(range, |piece| match piece.backing {
            Some(_) => visit(piece),
            None => self.look_below(self.frozen.len(), Some(&self.clean), piece.range, &mut visit),
        })
    }

    /// As [`Self::look_undoubted`], in the first `cuts` cuts and in `last`.
    fn look_below(
        &self,
        cuts: usize,
        last: Option<&Layer>,
        range: SectorRange,
        visit: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let newest = cuts.checked_sub(1).and_then(|at| Some((at, self.frozen.get(at)?)));
        let Some((older, cut)) = newest else {
            return match last {
                Some(last) => last.look(range, visit),
                None => visit(Piece { range, backing: None, seq: Seq::default() }),
            };
        };
        cut.index.look(range, |piece| match piece.backing {
            Some(_) => visit(piece),
            None => self.look_below(older, last, piece.range, visit),
        })
    }

    /// The parts of `range` without content of write `seq`, or of a newer one, in ascending order. Content of the write itself does not
    /// count in segments that `is_left_out` accepts.
    pub fn older_parts(
        &self,
        range: SectorRange,
        seq: Seq,
        is_left_out: impl Fn(u32) -> bool,
    ) -> Vec<SectorRange> {
        let mut found: Vec<SectorRange> = Vec::new();
        let _: ControlFlow<()> = self.look_undoubted(range, |piece| {
            let is_of_write = |backing: Backing| piece.seq == seq && is_left_out(backing.number());
            if piece.seq < seq || piece.backing.is_some_and(is_of_write) {
                let before = found.last().filter(|last| last.end() == piece.range.start()).copied();
                let start = before.map_or(piece.range.start(), SectorRange::start);
                if before.is_some() {
                    found.pop();
                }
                found.extend(SectorRange::new(start, piece.range.end() - start));
            }
            ControlFlow::Continue(())
        });
        found
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

    /// The newest content not in the store, from sector `from` on, in ascending order: about `limit` extents. Returns the sector to
    /// go on from as well.
    pub fn dirty_from(&self, from: u64, limit: usize) -> (Vec<Extent>, Option<u64>) {
        let (mut found, mut left) = (Vec::new(), limit / self.searched());
        let Some(range) = SectorRange::new(from, u64::MAX - from) else { return (found, None) };
        let mut next = None;
        let mut visit = |piece: Piece| {
            found.extend(content(piece));
            left = left.saturating_sub(1);
            if left == 0 {
                next = Some(piece.range.end());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let _: ControlFlow<()> = self.active.look(range, |piece| match piece.backing {
            Some(_) => visit(piece),
            None => self.look_below(self.frozen.len(), None, piece.range, &mut visit),
        });
        (found, next.filter(|next| *next < u64::MAX))
    }

    /// The extents of the first cut from sector `from` on, in ascending order: `limit` extents at most. Returns the sector to go
    /// on from as well.
    pub fn frozen_from(&self, from: u64, limit: usize) -> (Vec<Extent>, Option<u64>) {
        let mut found = Vec::with_capacity(limit);
        let (Some(cut), Some(range)) = (self.frozen.front(), SectorRange::new(from, u64::MAX - from)) else {
            return (found, None);
        };
        let (window, next) = beginning(range, [&cut.index], limit);
        cut.index.lookup(window, |piece| found.extend(content(piece)));
        (found, next)
    }

    /// The extents from sector `from` on in segments which `is_in` accepts, of all layers: about `limit` extents are looked at.
    /// Returns the sector to go on from as well. Extents move from layer to layer between two calls, never from sector to sector: so the
    /// layers are looked through together, a range of sectors at a time.
    pub fn extents_in(
        &self,
        is_in: impl Fn(u32) -> bool,
        from: u64,
        limit: usize,
    ) -> (Vec<Extent>, Option<u64>) {
        let mut found = Vec::new();
        let share = (limit / self.each_layer().count()).max(1);
        let Some(range) = SectorRange::new(from, u64::MAX - from) else { return (found, None) };
        let (window, next) = beginning(range, self.each_layer(), share);
        for layer in self.each_layer() {
            layer.lookup(window, |piece| {
                found.extend(content(piece).filter(|extent| is_in(extent.backing.number())));
            });
        }
        if next.is_none() {
            found.extend(self.doubts.extents().filter(|extent| is_in(extent.backing.number())));
        }
        (found, next)
    }

    /// Number of layers that may be searched for a piece of content.
    fn searched(&self) -> usize {
        1 + self.frozen.len() + usize::from(!self.clean.is_empty())
    }

    /// The parts of `range`, from the first to the last one that is not `void`, as one range; `None` when all of `range` is void.
    /// Looks as far as `looks` allow, and takes the rest for not void.
    pub fn content_in(
        &self,
        range: SectorRange,
        looks: &mut Looks,
        mut void: impl FnMut(&Piece) -> bool,
    ) -> Option<SectorRange> {
        if looks.left == 0 {
            return Some(range);
        }
        let layers = self.searched();
        let (mut first, mut end) = (None, range.start());
        let looked = self.look(range, |piece| {
            if !void(&piece) {
                first.get_or_insert(piece.range.start());
                end = piece.range.end();
            }
            looks.pay(&piece, layers);
            if looks.left > 0 {
                return ControlFlow::Continue(());
            }
            first.get_or_insert(piece.range.end());
            ControlFlow::Break(())
        });
        let end = if looked.is_break() { range.end() } else { end };
        let first = first?;
        SectorRange::new(first, end.checked_sub(first)?).filter(|found| !found.is_empty())
    }

    /// `range` with the active zeroes before and behind, as long as there are only zeroes and `void` sectors between: zeroes of
    /// the whole have no other content. At most `sectors` sectors, and `zeroes` extents on each side; looks as far as `looks` allow.
    pub fn with_zeroes_around(
        &self,
        range: SectorRange,
        (sectors, zeroes): (u64, usize),
        looks: &mut Looks,
        void: impl Fn(&Piece) -> bool,
    ) -> SectorRange {
        let (mut start, mut end) = (range.start(), range.end());
        // Pays for the zeroes found, and for the gap before or behind.
        let mut is_void = |from: u64, to: u64| {
            looks.left = looks.left.saturating_sub(1);
            let gap = SectorRange::new(from, to.saturating_sub(from)).filter(|gap| !gap.is_empty());
            looks.left > 0 && gap.is_none_or(|gap| self.content_in(gap, looks, &void).is_none())
        };
        for _ in 0..zeroes {
            let Some(before) = self.active.last_before(start).filter(is_zero) else { break };
            let from = before.range.start();
            if end - from > sectors || !is_void(before.range.end(), start) {
                break;
            }
            start = from;
        }
        for _ in 0..zeroes {
            let behind = SectorRange::new(end, u64::MAX - end).and_then(|behind| {
                let mut found = None;
                let _ = self.active.look(behind, |piece| match content(piece) {
                    Some(extent) => {
                        found = Some(extent);
                        ControlFlow::Break(())
                    }
                    None => ControlFlow::Continue(()),
                });
                found
            });
            let Some(behind) = behind.filter(is_zero) else { break };
            let to = behind.range.end();
            if to - start > sectors || !is_void(end, behind.range.start()) {
                break;
            }
            end = to;
        }
        SectorRange::new(start, end - start).unwrap_or(range)
    }
}

fn is_zero(extent: &Extent) -> bool {
    matches!(extent.backing, Backing::Zero { .. })
}

/// The extent of a piece with content.
fn content(piece: Piece) -> Option<Extent> {
    piece.backing.map(|backing| Extent { range: piece.range, seq: piece.seq, backing })
}
