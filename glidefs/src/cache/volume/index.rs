//! Where the newest bytes of one export are: sector ranges mapped to places in segments, newest sequence number wins.
//!
//! Does not own segments, nor the bytes at the places. Invariants: extents are not empty and never overlap; of all inserts that
//! covered a sector the one with the highest sequence number has the sector, in whatever order inserts came; the changes reported
//! to `refs` add up to the number of extents that refer to each segment.

mod leaf;
mod map;

use std::ops::ControlFlow;

use self::leaf::Item;
use self::map::ExtentMap;
pub use self::map::IndexLoader;
use crate::cache::log::table::Refs;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::hold;
use crate::units::{FRAME_BYTES, SECTOR_BYTES, SectorRange, Seq};

/// The extents of one export.
#[derive(Debug, Default)]
pub struct Index {
    extents: ExtentMap,
    max_seq: Seq,
}

impl Index {
    /// Makes `extent` the content of its sectors, except sectors with a newer extent. An extent of an equal sequence number is
    /// replaced, so a moved write is found at the last place. `refs` is told each change in the references to a segment: first
    /// the new references, then the lost ones, so a count never touches 0 in between.
    ///
    /// A range of more than `u32::MAX` sectors becomes several extents.
    pub fn insert(&mut self, extent: Extent, refs: &mut impl FnMut(Refs)) {
        // Live writes come in order; only replay and moved data can meet something newer.
        let may_be_older = extent.seq < self.max_seq;
        self.insert_beside(extent, may_be_older, |seq, _| seq > extent.seq, refs);
    }

    /// Makes `extent` the content of its sectors, except sectors with content for which `stays` returns true, given sequence number
    /// and segment number. Nothing stays unless `may_be_older`.
    #[inline]
    pub(super) fn insert_beside(
        &mut self,
        extent: Extent,
        may_be_older: bool,
        stays: impl Fn(Seq, u32) -> bool,
        refs: &mut impl FnMut(Refs),
    ) {
        let (mut at, end) = (extent.range.start(), extent.range.end());
        self.max_seq = self.max_seq.max(extent.seq);
        while at < end {
            let newer = if may_be_older { self.first_staying(at, end, &stays) } else { None };
            let (gap_end, next) = newer.map_or((end, end), |found| (found.start.max(at), found.end()));
            self.overwrite(at, gap_end, &extent, refs);
            at = next;
        }
    }

    /// Calls `visit` with pieces which cover `range` exactly, in ascending order.
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
        hold::touch();
        let (mut at, end) = (range.start(), range.end());
        self.extents.overlapping(at, end, |item| {
            visit_part(at, item.start, None, Seq::default(), &mut visit)?;
            at = at.max(item.start);
            let part = item.tail(at);
            let part_end = item.end().min(end);
            visit_part(at, part_end, Some(part.backing), part.seq, &mut visit)?;
            at = part_end;
            ControlFlow::Continue(())
        })?;
        visit_part(at, end, None, Seq::default(), &mut visit)
    }

    /// The largest end of a beginning of `range` with sectors of at most `limit` extents, and the number of these extents.
    pub fn reach(&self, range: SectorRange, limit: usize) -> (u64, usize) {
        self.extents.reach(range.start(), range.end(), limit)
    }

    /// Whether the whole of an extent lies in `range`. Looks at three extents at most.
    pub fn has_within(&self, range: SectorRange) -> bool {
        let found = self.extents.overlapping(range.start(), range.end(), |item| {
            let is_within = item.start >= range.start() && item.end() <= range.end();
            if is_within { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found.is_break()
    }

    /// The extent with the last start before `sector`.
    pub fn last_before(&self, sector: u64) -> Option<Extent> {
        self.extents.last_before(sector).and_then(whole)
    }

    /// Forgets the content of `range`.
    pub fn remove(&mut self, range: SectorRange, refs: &mut impl FnMut(Refs)) {
        self.extents.carve(range.start(), range.end(), refs);
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.extents.len
    }

    /// Whether there is no extent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All extents, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.iter().filter_map(whole)
    }

    /// Forgets some extents of an index that is not in use any more; `false` when none is left.
    pub fn forget_some(&mut self, refs: &mut impl FnMut(Refs)) -> bool {
        self.extents.forget_leaf(refs)
    }

    /// Highest sequence number ever inserted, even if no extent has the number any more; 0 before the first insert.
    pub fn max_seq(&self) -> Seq {
        self.max_seq
    }

    /// Bytes of data mapped; zeroes do not count.
    pub fn live_bytes(&self) -> u64 {
        self.extents.data_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Bytes of the frames with data; a frame counts whole, once for each extent with data in the frame.
    pub fn frame_bytes(&self) -> u64 {
        self.extents.frames.saturating_mul(FRAME_BYTES as u64)
    }

    /// Memory of the extents, kept as a sum, and counted as if no leaf were packed: a write that replaces an extent then takes no
    /// memory which is not counted, besides free cells that stay in memory (head of `cells`).
    pub fn bytes(&self) -> u64 {
        self.extents.bytes() as u64
    }

    /// The part of [`Self::bytes`] that packed leaves do not take.
    pub fn saved_bytes(&self) -> u64 {
        self.extents.saved_bytes() as u64
    }

    /// First extent with sectors in `[from, to)` that must not be replaced.
    fn first_staying(&self, from: u64, to: u64, stays: impl Fn(Seq, u32) -> bool) -> Option<Item> {
        let found = self.extents.overlapping(from, to, |item| {
            let is_staying = stays(item.seq, item.backing.number());
            if is_staying { ControlFlow::Break(item) } else { ControlFlow::Continue(()) }
        });
        found.break_value()
    }

    /// Gives `[from, to)`, where nothing is newer, to `extent`.
    fn overwrite(&mut self, from: u64, to: u64, extent: &Extent, refs: &mut impl FnMut(Refs)) {
        let mut at = from;
        while at < to {
            let count = u32::try_from(to - at).unwrap_or(u32::MAX);
            let skipped = u32::try_from(at - extent.range.start()).unwrap_or(u32::MAX);
            let item = Item { start: at, seq: extent.seq, count, backing: extent.backing.skip(skipped) };
            at = item.end();
            self.extents.write(self.continued(item), refs);
        }
    }

    /// `item`, with the extent before if both are zeroes of the same write in the same segment: one extent, however many pieces
    /// the write was inserted in.
    fn continued(&self, item: Item) -> Item {
        let before = match item.backing {
            Backing::Zero { .. } => self.extents.last_before(item.start),
            _ => None,
        };
        let is_same = |before: &Item| {
            (before.end(), before.seq, before.backing) == (item.start, item.seq, item.backing)
        };
        let joined = before.filter(is_same).and_then(|before| {
            Some(Item { start: before.start, count: before.count.checked_add(item.count)?, ..item })
        });
        joined.unwrap_or(item)
    }
}

fn whole(item: Item) -> Option<Extent> {
    let range = SectorRange::new(item.start, u64::from(item.count))?;
    Some(Extent { range, seq: item.seq, backing: item.backing })
}

fn visit_part(
    from: u64,
    to: u64,
    backing: Option<Backing>,
    seq: Seq,
    visit: &mut impl FnMut(Piece) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let range = SectorRange::new(from, to.saturating_sub(from));
    match range.filter(|range| !range.is_empty()) {
        Some(range) => visit(Piece { range, backing, seq }),
        None => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests;
