//! One layer of a volume: an index with counted references to each segment.
//!
//! Owns the calls that count. Invariant: the counts of the segment table agree with the extents of all layers whenever no call of
//! a layer is under way; during a call, the table never shows fewer extents missing in the store than a segment has.

use std::ops::Deref;

use allocator_api2::vec::Vec as CellVec;

use super::cells::Cells;
use super::extent::{Backing, Extent};
use super::index::Index;
use super::ranks::Ranks;
use crate::cache::log::table::{Refs, SegmentTable};
use crate::units::{SectorRange, Seq};

/// Unpacking so many bytes of an index takes about as long as touching an extent.
const UNPACKED_BYTES: u64 = 64;

/// An index with counted references.
#[derive(Debug, Default)]
pub(super) struct Layer {
    index: Index,
    /// The store has the content as well: the content may be evicted.
    is_clean: bool,
}

/// Reads of a layer are reads of its index; what changes the index counts references.
impl Deref for Layer {
    type Target = Index;

    fn deref(&self) -> &Index {
        &self.index
    }
}

impl Layer {
    /// An empty layer for content in the store.
    pub fn clean() -> Self {
        Self { index: Index::default(), is_clean: true }
    }

    /// Makes `index` the content of the layer, which is empty. The references of `index` are counted by the caller.
    pub fn load(&mut self, index: Index) {
        debug_assert!(self.is_empty(), "only an empty layer is loaded");
        self.index = index;
    }

    /// Makes `extent` the content of its sectors, except sectors with newer content. At a start `ranks` decide between extents of an
    /// equal sequence number; without them the last one inserted stays.
    pub fn insert(&mut self, table: &SegmentTable, ranks: Option<&Ranks>, extent: Extent) {
        let is_clean = self.is_clean;
        let mut refs = |refs| count(table, is_clean, refs);
        match ranks {
            Some(ranks) => self.index.put_back(extent, ranks, &mut refs),
            None => self.index.insert(extent, &mut refs),
        }
    }

    /// Forgets the content of `range`.
    pub fn remove(&mut self, table: &SegmentTable, range: SectorRange) {
        let is_clean = self.is_clean;
        self.index.remove(range, &mut |refs| count(table, is_clean, refs));
    }

    /// Forgets the content of `range` for which `is` returns true.
    pub fn remove_if(&mut self, table: &SegmentTable, range: SectorRange, is: impl Fn(Backing, Seq) -> bool) {
        let mut found = CellVec::new_in(Cells);
        self.index.lookup(range, |piece| {
            if piece.backing.is_some_and(|backing| is(backing, piece.seq)) {
                found.push(piece.range);
            }
        });
        for part in found {
            self.remove(table, part);
        }
    }

    /// Forgets some extents of a layer that is not in use any more; `false` when none is left.
    fn forget_some(&mut self, table: &SegmentTable) -> bool {
        let is_clean = self.is_clean;
        self.index.forget_some(&mut |refs| count(table, is_clean, refs))
    }

    /// Moves extents of `self`, first ones first, to `to`, except sectors with newer content there, until about `limit` extents
    /// were touched. Returns `true` when none is left.
    pub fn move_some(&mut self, table: &SegmentTable, to: &mut Self, limit: usize) -> bool {
        let mut left = limit;
        while left > 0 {
            let Some(first) = self.iter().next() else { return true };
            // An extent may cover any number of extents of the other layer.
            let (end, touched) = to.reach(first.range, left);
            let range = SectorRange::new(first.range.start(), end.saturating_sub(first.range.start()));
            let Some(part) = range.and_then(|range| first.part(range)) else {
                debug_assert!(false, "a part of an extent lies in the extent");
                return true;
            };
            let saved_bytes =
                |layers: [&Self; 2]| layers.map(|layer| layer.saved_bytes()).iter().sum::<u64>();
            let saved_before = saved_bytes([&*self, &*to]);
            to.insert(table, None, part);
            self.remove(table, part.range);
            let unpacked_bytes = saved_before.saturating_sub(saved_bytes([&*self, &*to]));
            let unpacked = usize::try_from(unpacked_bytes / UNPACKED_BYTES).unwrap_or(usize::MAX);
            left = left.saturating_sub(touched.saturating_add(unpacked).saturating_add(1));
        }
        self.is_empty()
    }

    /// Calls `visit` with the parts of `range` with content of write `seq` in segment `number`.
    pub fn parts(&self, range: SectorRange, seq: Seq, number: u32, mut visit: impl FnMut(SectorRange)) {
        self.index.lookup(range, |piece| {
            if piece.seq == seq && piece.backing.is_some_and(|backing| backing.number() == number) {
                visit(piece.range);
            }
        });
    }
}

/// Counts a change in the references of a layer. In between, a segment has more extents missing in the store, never
/// fewer; of its sectors it may have fewer.
#[inline]
fn count(table: &SegmentTable, is_clean: bool, refs: Refs) {
    if is_clean && refs.extents < 0 {
        table.count_clean(refs);
    }
    table.count_refs(refs);
    if is_clean && refs.extents >= 0 {
        table.count_clean(refs);
    }
}

/// Layers which no reader uses any more. The extents still count as references to segments, so no segment is freed too early.
#[derive(Debug, Default)]
#[must_use = "the references to segments are counted until the layers were forgotten"]
pub(in crate::cache) struct Dead(Vec<Layer>);

impl Dead {
    /// Adds `layer`, if any extent is in `layer`.
    pub(super) fn add(&mut self, layer: Layer) {
        if !layer.is_empty() {
            self.0.push(layer);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets about `extents` extents, and gives their memory back. To be called where nobody waits.
    pub fn forget_some(&mut self, table: &SegmentTable, extents: usize) {
        let mut left = extents;
        while left > 0
            && let Some(layer) = self.0.last_mut()
        {
            let before = layer.len();
            if layer.forget_some(table) {
                left = left.saturating_sub(before.saturating_sub(layer.len()).max(1));
            } else {
                self.0.pop();
            }
        }
    }

    /// Forgets all extents. Takes time in proportion to their number.
    pub fn forget(mut self, table: &SegmentTable) {
        self.forget_some(table, usize::MAX);
    }
}
