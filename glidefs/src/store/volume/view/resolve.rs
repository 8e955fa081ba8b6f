//! Which pack counts for a sector: the newest one with an entry for the sector.
//!
//! Owns the precedence of packs. Does not own reading blocks (`pack_reader`).

use std::sync::Arc;

use crate::store::format::{IndexEntry, PackIndex, PackRef, PieceKind};
use crate::units::SectorRange;

/// A part of a range, with the place of its content.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::volume) struct Part {
    pub range: SectorRange,
    pub content: Content,
}

/// The place of a part's content.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::volume) enum Content {
    /// A block: position of the pack in the list, and entry of the pack's index.
    Block(usize, IndexEntry),
    /// Zeroes, by an entry of a pack.
    Zero,
    /// No pack of the list has an entry.
    Absent,
}

impl Part {
    /// The block that has the part, if the part is data.
    pub fn block(&self) -> Option<(usize, IndexEntry)> {
        match self.content {
            Content::Block(pack, entry) => Some((pack, entry)),
            Content::Zero | Content::Absent => None,
        }
    }
}

/// A pack with its index.
pub(in crate::store::volume) type Opened = (PackRef, Arc<PackIndex>);

/// Parts of `range` that `index` has no entry for.
pub(in crate::store::volume) fn absent(index: &PackIndex, range: SectorRange) -> Vec<SectorRange> {
    index.lookup(range).filter(|piece| piece.kind == PieceKind::Absent).map(|piece| piece.range).collect()
}

/// Resolves every sector of `range` in `packs`, ordered newest first: ascending parts, without gaps.
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
