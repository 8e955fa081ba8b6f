//! Which pack counts for a sector: the newest one with an entry for the sector.
//!
//! Owns the precedence of packs. Does not own reading blocks (`pack_reader`). Invariant: what is left of an index is at most one part for
//! each sector of the range, however long the index is.

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

/// A range being resolved in packs, newest first. An index is looked at once, and not held.
#[derive(Debug)]
pub(in crate::store::volume) struct Resolution {
    /// Packs with blocks of `parts`.
    packs: Vec<PackRef>,
    parts: Vec<Part>,
    /// What no pack so far has an entry for.
    missing: Vec<SectorRange>,
}

impl Resolution {
    pub fn new(range: SectorRange) -> Self {
        let missing = if range.is_empty() { Vec::new() } else { vec![range] };
        Self { packs: Vec::new(), parts: Vec::new(), missing }
    }

    /// Whether older packs cannot matter.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Takes what is missing from `pack`, which is older than the packs so far and has the entries `index` for the range.
    pub fn look_up(&mut self, pack: &PackRef, index: &PackIndex) {
        let number = self.packs.len();
        let mut has_blocks = false;
        let missing = std::mem::take(&mut self.missing);
        for piece in missing.iter().flat_map(|range| index.lookup(*range)) {
            let content = match piece.kind {
                PieceKind::Data(entry) => {
                    has_blocks = true;
                    Content::Block(number, *entry)
                }
                PieceKind::Zero => Content::Zero,
                PieceKind::Absent => {
                    self.missing.push(piece.range);
                    continue;
                }
            };
            self.parts.push(Part { range: piece.range, content });
        }
        if has_blocks {
            self.packs.push(*pack);
        }
    }

    /// The packs with blocks of the range, and ascending parts of the range without gaps.
    pub fn finish(self) -> (Vec<PackRef>, Vec<Part>) {
        let Self { packs, mut parts, missing } = self;
        parts.extend(missing.into_iter().map(|range| Part { range, content: Content::Absent }));
        parts.sort_unstable_by_key(|part| part.range.start());
        (packs, parts)
    }
}
