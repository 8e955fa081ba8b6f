//! A sorted run of extents, the unit in which the index keeps extents in memory.
//!
//! Owns the memory layout: starts apart from the rest, so a search reads eight adjacent cache lines at most. Does not own which
//! extents belong in which leaf. Invariant: starts ascend strictly, and both arrays are equally long.

use crate::cache::log::table::Refs;
use crate::cache::volume::extent::Backing;
use crate::observe::memory::heap_bytes;
use crate::units::{FRAME_SECTORS, Seq};

/// Most extents in a leaf: few enough to shift in a few dozen nanoseconds, enough to keep the tree of leaves small.
pub(super) const LEAF_ITEMS_MAX: usize = 64;
/// Number of starts in a cache line.
const GROUP_STARTS: usize = 8;
/// A leaf grows by this, not by doubling, so little memory of a leaf is unused.
const LEAF_ITEMS_STEP: usize = 8;

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

#[derive(Clone, Copy, Debug)]
struct Rest {
    seq: Seq,
    count: u32,
    backing: Backing,
}

#[derive(Debug, Default)]
pub(super) struct Leaf {
    starts: Vec<u64>,
    rest: Vec<Rest>,
}

impl Leaf {
    pub(super) fn of(item: Item) -> Self {
        let mut leaf = Self::default();
        leaf.insert(0, item);
        leaf
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Memory of the extents and of the room for more.
    pub(super) fn bytes(&self) -> usize {
        heap_bytes(self.starts.capacity() * size_of::<u64>())
            + heap_bytes(self.rest.capacity() * size_of::<Rest>())
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= LEAF_ITEMS_MAX
    }

    pub(super) fn get(&self, at: usize) -> Option<Item> {
        let (start, rest) = (*self.starts.get(at)?, self.rest.get(at)?);
        Some(Item { start, seq: rest.seq, count: rest.count, backing: rest.backing })
    }

    pub(super) fn last(&self) -> Option<Item> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Extents from the one at `at` on.
    pub(super) fn iter_from(&self, at: usize) -> impl Iterator<Item = Item> {
        (at..self.len()).map_while(|at| self.get(at))
    }

    /// How many extents start before `sector`: also the place of the first later one.
    pub(super) fn count_before(&self, sector: u64) -> usize {
        let before = |starts: &[u64]| starts.iter().map(|start| usize::from(*start < sector)).sum::<usize>();
        // The last start of each group says how many groups come before. All of these starts are loaded at once, so a leaf in no
        // CPU cache costs one wait for memory, and no branch is guessed: quicker than a binary search of so few.
        let (groups, _) = self.starts.as_chunks::<GROUP_STARTS>();
        let whole: usize = groups.iter().map(|group| usize::from(group[GROUP_STARTS - 1] < sector)).sum();
        let rest = &self.starts[whole * GROUP_STARTS..];
        whole * GROUP_STARTS + before(rest.first_chunk::<GROUP_STARTS>().map_or(rest, |group| group))
    }

    /// Puts `item` at `at`, and returns the extent replaced.
    pub(super) fn replace(&mut self, at: usize, item: Item) -> Option<Item> {
        let old = self.get(at)?;
        self.starts[at] = item.start;
        self.rest[at] = Rest { seq: item.seq, count: item.count, backing: item.backing };
        Some(old)
    }

    pub(super) fn insert(&mut self, at: usize, item: Item) {
        if self.starts.len() == self.starts.capacity() {
            self.starts.reserve_exact(LEAF_ITEMS_STEP);
            self.rest.reserve_exact(LEAF_ITEMS_STEP);
        }
        debug_assert!(
            at.checked_sub(1).is_none_or(|before| self.starts[before] < item.start)
                && self.starts.get(at).is_none_or(|next| item.start < *next),
            "starts ascend strictly"
        );
        self.starts.insert(at, item.start);
        self.rest.insert(at, Rest { seq: item.seq, count: item.count, backing: item.backing });
    }

    /// Adds `item`, which starts behind all others, and takes room for a whole leaf.
    pub(super) fn push(&mut self, item: Item) {
        if self.starts.capacity() < LEAF_ITEMS_MAX {
            self.starts.reserve_exact(LEAF_ITEMS_MAX.saturating_sub(self.len()));
            self.rest.reserve_exact(LEAF_ITEMS_MAX.saturating_sub(self.len()));
        }
        debug_assert!(self.starts.last().is_none_or(|last| *last < item.start), "starts ascend strictly");
        self.starts.push(item.start);
        self.rest.push(Rest { seq: item.seq, count: item.count, backing: item.backing });
    }

    /// Removes the extents at `from..to`.
    pub(super) fn remove(&mut self, from: usize, to: usize) {
        self.starts.drain(from..to);
        self.rest.drain(from..to);
        self.tighten();
    }

    /// Keeps the extents before `at` and gives back the others.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let upper = Self { starts: self.starts.split_off(at), rest: self.rest.split_off(at) };
        self.tighten();
        upper
    }

    /// Takes all extents of `other`, which start behind the extents of `self`.
    pub(super) fn append(&mut self, mut other: Self) {
        debug_assert!(
            self.starts.last().zip(other.starts.first()).is_none_or(|(last, next)| last < next),
            "starts ascend strictly"
        );
        self.starts.reserve_exact(other.len());
        self.rest.reserve_exact(other.len());
        self.starts.append(&mut other.starts);
        self.rest.append(&mut other.rest);
    }

    /// Gives memory back that is not used.
    pub(super) fn tighten(&mut self) {
        let len = self.len();
        if self.starts.capacity() - len > 2 * LEAF_ITEMS_STEP {
            self.starts.shrink_to(len + LEAF_ITEMS_STEP);
            self.rest.shrink_to(len + LEAF_ITEMS_STEP);
        }
    }
}
