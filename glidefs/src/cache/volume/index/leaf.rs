//! A sorted run of extents, the unit in which the index keeps extents in memory.
//!
//! A leaf is *packed* when the extents of a start come in ascending order, and *open* from the first change of the leaf on. Owns which
//! of the two a leaf is. Does not own the memory layouts (`open`, `packed`), or which extents belong in which leaf. Invariants: starts
//! ascend strictly; the form of a leaf shows in nothing but time and memory; a packed leaf counts as an open one
//! with the same extents, which takes no less memory: so a write that replaces an extent takes no memory which is not counted, besides
//! free cells that stay in memory (head of `cells`).

mod open;
mod packed;

use std::ops::{AddAssign, SubAssign};

use self::open::Open;
use self::packed::{Packed, View};
use crate::cache::log::table::Refs;
use crate::cache::volume::extent::Backing;
use crate::units::{FRAME_SECTORS, Seq};

/// Most extents in a leaf: few enough to shift in a few dozen nanoseconds, enough to keep the tree of leaves small.
pub(super) const LEAF_ITEMS_MAX: usize = 64;

/// One extent, of at least one sector. The end does not overflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) start: u64,
    pub(super) seq: Seq,
    pub(super) count: u32,
    pub(super) backing: Backing,
}

impl Item {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.count))
    }

    /// The rest of the extent from sector `from` on.
    pub(super) fn tail(&self, from: u64) -> Self {
        debug_assert!(from >= self.start, "the rest of an extent begins inside the extent");
        let skipped = u32::try_from(from.saturating_sub(self.start)).unwrap_or(u32::MAX);
        let count = self.count.saturating_sub(skipped);
        Self { start: from, seq: self.seq, count, backing: self.backing.skip(skipped) }
    }

    /// The rest of the extent before sector `to`.
    pub(super) fn head(&self, to: u64) -> Self {
        let count = u32::try_from(to.saturating_sub(self.start)).unwrap_or(u32::MAX).min(self.count);
        Self { count, ..*self }
    }

    /// The rest of the extent behind sector `to`, if any.
    pub(super) fn beyond(&self, to: u64) -> Option<Self> {
        (self.end() > to).then(|| self.tail(to))
    }

    /// The references to the segment gained by adding the extent.
    pub(super) fn gained(&self) -> Refs {
        Refs { number: self.backing.number(), extents: 1, sectors: signed(self.data_sectors()) }
    }

    /// The references to the segment lost by taking `[from, to)`, which overlaps the extent, out of the extent.
    pub(super) fn lost(&self, from: u64, to: u64) -> Refs {
        let taken = self.end().min(to).saturating_sub(self.start.max(from));
        let sectors = if self.data_sectors() == 0 { 0 } else { -signed(taken) };
        let left = i32::from(self.start < from) + i32::from(self.end() > to);
        Refs { number: self.backing.number(), extents: left - 1, sectors }
    }

    pub(super) fn data_sectors(&self) -> u64 {
        match self.backing {
            Backing::Data { .. } => u64::from(self.count),
            Backing::Zero { .. } | Backing::Damaged { .. } | Backing::Doubt { .. } => 0,
        }
    }

    /// Frames with data of the extent.
    pub(super) fn frames(&self) -> u64 {
        match self.backing {
            Backing::Data { sector, .. } => {
                (u64::from(sector) % FRAME_SECTORS + u64::from(self.count)).div_ceil(FRAME_SECTORS)
            }
            Backing::Zero { .. } | Backing::Damaged { .. } | Backing::Doubt { .. } => 0,
        }
    }
}

/// A number of sectors as a signed one: an extent counts sectors in 32 bits.
fn signed(sectors: u64) -> i64 {
    i64::try_from(sectors).unwrap_or(i64::MAX)
}

/// Memory of one leaf or of several, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeafBytes {
    /// Memory of the extents and of the room for more, counted as of open leaves.
    pub(super) counted: usize,
    /// The part of `counted` that packed leaves do not take.
    pub(super) saved: usize,
}

impl AddAssign for LeafBytes {
    fn add_assign(&mut self, other: Self) {
        self.counted += other.counted;
        self.saved += other.saved;
    }
}

impl SubAssign for LeafBytes {
    fn sub_assign(&mut self, other: Self) {
        self.counted -= other.counted;
        self.saved -= other.saved;
    }
}

#[derive(Debug)]
pub(super) enum Leaf {
    Open(Open),
    Packed(Packed),
}

impl Default for Leaf {
    fn default() -> Self {
        Self::Open(Open::default())
    }
}

/// Reads a leaf in either form.
#[derive(Clone, Copy)]
enum Reader<'a> {
    Open(&'a Open),
    Packed(View<'a>),
}

impl Reader<'_> {
    fn get(self, at: usize) -> Option<Item> {
        match self {
            Self::Open(open) => open.get(at),
            Self::Packed(view) => view.get(at),
        }
    }
}

impl Leaf {
    pub(super) fn of(item: Item) -> Self {
        let mut open = Open::default();
        open.insert(0, item);
        Self::Open(open)
    }

    /// A leaf of `items`, at most [`LEAF_ITEMS_MAX`] by ascending start. Packed, unless the items are few.
    pub(super) fn of_items(items: &[Item]) -> Self {
        let open = || Self::Open(Open::of(items.len(), items.iter().copied()));
        Packed::of(items).map_or_else(open, Self::Packed)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Open(open) => open.len(),
            Self::Packed(packed) => packed.len(),
        }
    }

    pub(super) fn bytes(&self) -> LeafBytes {
        match self {
            Self::Open(open) => LeafBytes { counted: open.bytes(), saved: 0 },
            Self::Packed(packed) => {
                let counted = Open::bytes_of(packed.len());
                LeafBytes { counted, saved: counted.saturating_sub(packed.bytes()) }
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= LEAF_ITEMS_MAX
    }

    fn reader(&self) -> Reader<'_> {
        match self {
            Self::Open(open) => Reader::Open(open),
            Self::Packed(packed) => Reader::Packed(packed.view()),
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<Item> {
        self.reader().get(at)
    }

    pub(super) fn last(&self) -> Option<Item> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Extents from the one at `at` on.
    pub(super) fn iter_from(&self, at: usize) -> impl Iterator<Item = Item> {
        let reader = self.reader();
        (at..self.len()).map_while(move |at| reader.get(at))
    }

    /// How many extents start before `sector`: also the place of the first later one.
    pub(super) fn count_before(&self, sector: u64) -> usize {
        match self {
            Self::Open(open) => open.count_before(sector),
            Self::Packed(packed) => packed.view().count_before(sector),
        }
    }

    /// Makes a packed leaf an open one.
    fn opened(&mut self) -> &mut Open {
        loop {
            match self {
                Self::Open(open) => return open,
                Self::Packed(_) => *self = Self::Open(Open::of(self.len(), self.iter_from(0))),
            }
        }
    }

    /// Puts `item` at `at`, and returns the extent replaced.
    pub(super) fn replace(&mut self, at: usize, item: Item) -> Option<Item> {
        self.opened().replace(at, item)
    }

    pub(super) fn insert(&mut self, at: usize, item: Item) {
        self.opened().insert(at, item);
    }

    /// Removes the extents at `from..to`.
    pub(super) fn remove(&mut self, from: usize, to: usize) {
        if from == 0 && to == self.len() {
            *self = Self::default();
        } else if from < to {
            self.opened().remove(from, to);
        }
    }

    /// Keeps the extents before `at` and gives back the others.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self::Open(self.opened().split_off(at))
    }

    /// Takes all extents of `other`, which start behind the extents of `self`. There are [`LEAF_ITEMS_MAX`] in all at most.
    pub(super) fn append(&mut self, other: &Self) {
        if other.len() > 0 {
            self.opened().append(other.len(), other.iter_from(0));
        }
    }
}

#[cfg(test)]
mod tests;
