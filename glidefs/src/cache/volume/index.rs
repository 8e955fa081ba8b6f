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
use crate::cache::log::table::Refs;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

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
        let (mut at, end) = (extent.range.start(), extent.range.end());
        // Live writes come in order; only replay and moved data can meet something newer.
        let may_be_older = extent.seq < self.max_seq;
        self.max_seq = self.max_seq.max(extent.seq);
        while at < end {
            let newer = if may_be_older { self.first_newer(at, end, extent.seq) } else { None };
            let (gap_end, next) = newer.map_or((end, end), |found| (found.start.max(at), found.end()));
            self.overwrite(at, gap_end, &extent, refs);
            at = next;
        }
    }

    /// Calls `visit` with pieces which cover `range` exactly, in ascending order.
    pub fn lookup(&self, range: SectorRange, mut visit: impl FnMut(Piece)) {
        let (mut at, end) = (range.start(), range.end());
        let _: ControlFlow<()> = self.extents.overlapping(at, end, |item| {
            visit_part(at, item.start, None, Seq::default(), &mut visit);
            at = at.max(item.start);
            let part = item.tail(at);
            let part_end = item.end().min(end);
            visit_part(at, part_end, Some(part.backing), part.seq, &mut visit);
            at = part_end;
            ControlFlow::Continue(())
        });
        visit_part(at, end, None, Seq::default(), &mut visit);
    }

    /// Forgets the content of `range`.
    pub fn remove(&mut self, range: SectorRange, refs: &mut impl FnMut(Refs)) {
        self.extents.carve(range.start(), range.end(), refs);
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether there is no extent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All extents, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.iter().filter_map(|item| {
            let range = SectorRange::new(item.start, u64::from(item.count))?;
            Some(Extent { range, seq: item.seq, backing: item.backing })
        })
    }

    /// Forgets everything, the highest sequence number as well.
    pub fn clear(&mut self, refs: &mut impl FnMut(Refs)) {
        for item in self.extents.iter() {
            refs(item.lost(item.start, item.end()));
        }
        *self = Self::default();
    }

    /// Highest sequence number ever inserted, even if no extent has the number any more; 0 before the first insert.
    pub fn max_seq(&self) -> Seq {
        self.max_seq
    }

    /// Bytes of data mapped; zeroes do not count.
    pub fn live_bytes(&self) -> u64 {
        self.extents.data_sectors().saturating_mul(SECTOR_BYTES)
    }

    /// Memory of the extents, kept as a sum.
    pub fn bytes(&self) -> u64 {
        self.extents.bytes() as u64
    }

    /// First extent with sectors in `[from, to)` newer than `seq`, which must not be replaced.
    fn first_newer(&self, from: u64, to: u64, seq: Seq) -> Option<Item> {
        let found = self.extents.overlapping(from, to, |item| {
            if item.seq > seq { ControlFlow::Break(item) } else { ControlFlow::Continue(()) }
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
            self.extents.write(item, refs);
            at = item.end();
        }
    }
}

fn visit_part(from: u64, to: u64, backing: Option<Backing>, seq: Seq, visit: &mut impl FnMut(Piece)) {
    let range = SectorRange::new(from, to.saturating_sub(from));
    if let Some(range) = range.filter(|range| !range.is_empty()) {
        visit(Piece { range, backing, seq });
    }
}

#[cfg(test)]
mod tests;
