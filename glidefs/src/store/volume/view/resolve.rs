//! Which pack counts for a sector: the newest one that says something about the sector.
//!
//! Owns the order of packs. Does not own reading blocks (`pack_reader`).

use std::sync::Arc;

use crate::store::format::{IndexEntry, PackIndex, PackRef, PieceKind};
use crate::units::SectorRange;

/// Which part of a range is where.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::volume) struct Part {
    pub range: SectorRange,
    pub content: Content,
}

/// What a part is.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::volume) enum Content {
    /// In which of the packs that were asked, and by which entry.
    Block(usize, IndexEntry),
    /// Zeroes, as one of the packs says.
    Zero,
    /// None of the packs says anything.
    Absent,
}

impl Part {
    /// Where to fetch it.
    pub fn block(&self) -> Option<(usize, IndexEntry)> {
        match self.content {
            Content::Block(pack, entry) => Some((pack, entry)),
            Content::Zero | Content::Absent => None,
        }
    }
}

/// A pack, with its index.
pub(in crate::store::volume) type Opened = (PackRef, Arc<PackIndex>);

/// The parts of `range` that `index` knows nothing of.
pub(in crate::store::volume) fn absent(index: &PackIndex, range: SectorRange) -> Vec<SectorRange> {
    index.lookup(range).filter(|piece| piece.kind == PieceKind::Absent).map(|piece| piece.range).collect()
}

/// Where every sector of `range` is, as far as `packs` say, newest first: parts that ascend, without gaps.
pub(in crate::store::volume) fn resolve(packs: &[Opened], range: SectorRange) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut missing = if range.is_empty() { Vec::new() } else { vec![range] };
    for (number, (_, index)) in packs.iter().enumerate() {
        let mut still_missing = Vec::new();
        for piece in missing.iter().flat_map(|range| index.lookup(*range)) {
            match piece.kind {
                PieceKind::Data(entry) => {
                    parts.push(Part { range: piece.range, content: Content::Block(number, *entry) });
                }
                PieceKind::Zero => parts.push(Part { range: piece.range, content: Content::Zero }),
                PieceKind::Absent => still_missing.push(piece.range),
            }
        }
        missing = still_missing;
    }
    parts.extend(missing.into_iter().map(|range| Part { range, content: Content::Absent }));
    parts.sort_unstable_by_key(|part| part.range.start());
    parts
}
