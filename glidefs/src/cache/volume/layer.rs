//! One layer of a volume: an index with counted references to each segment.
//!
//! Owns the calls that count. Invariant: the counts of the segment table agree with the extents of all layers whenever no call of
//! a layer is under way; during a call, the table never shows fewer extents missing in the store than a segment has.

use super::extent::{Extent, Piece};
use super::index::Index;
use crate::cache::log::table::SegmentTable;
use crate::units::{SectorRange, Seq};

/// The relation of a layer's content to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// The store does not have the content.
    #[default]
    Dirty,
    /// The store has the content as well: the content may be evicted.
    Clean,
}

/// An index with counted references.
#[derive(Debug, Default)]
pub(super) struct Layer {
    index: Index,
    kind: Kind,
}

impl Layer {
    /// An empty layer for content in the store.
    pub fn clean() -> Self {
        Self { index: Index::default(), kind: Kind::Clean }
    }

    /// Makes `extent` the content of its sectors, except sectors with newer content.
    pub fn insert(&mut self, table: &SegmentTable, extent: Extent) {
        let kind = self.kind;
        self.index.insert(extent, &mut |refs| {
            table.count_refs(refs);
            if kind == Kind::Clean {
                table.count_clean(refs);
            }
        });
    }

    /// Forgets the content of `range`.
    pub fn remove(&mut self, table: &SegmentTable, range: SectorRange) {
        let kind = self.kind;
        self.index.remove(range, &mut |refs| {
            if kind == Kind::Clean {
                table.count_clean(refs);
            }
            table.count_refs(refs);
        });
    }

    pub fn clear(&mut self, table: &SegmentTable) {
        let kind = self.kind;
        self.index.clear(&mut |refs| {
            if kind == Kind::Clean {
                table.count_clean(refs);
            }
            table.count_refs(refs);
        });
    }

    /// Calls `visit` with pieces which cover `range` exactly, in ascending order.
    pub fn lookup(&self, range: SectorRange, visit: impl FnMut(Piece)) {
        self.index.lookup(range, visit);
    }

    /// Calls `visit` with the parts of `range` with content of write `seq` in segment `number`.
    pub fn parts(&self, range: SectorRange, seq: Seq, number: u32, mut visit: impl FnMut(SectorRange)) {
        self.index.lookup(range, |piece| {
            if piece.seq == seq && piece.backing.is_some_and(|backing| backing.number() == number) {
                visit(piece.range);
            }
        });
    }

    /// All extents, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.index.iter()
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no extent.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Bytes of data; zeroes do not count.
    pub fn live_bytes(&self) -> u64 {
        self.index.live_bytes()
    }
}
