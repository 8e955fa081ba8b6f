//! An open leaf: extents in arrays with room for more.
//!
//! Owns the memory layout: starts apart from the rest, so a search reads eight adjacent cache lines at most. Invariant: both arrays
//! are equally long, and have room for as many.

use allocator_api2::vec::Vec;

use super::{Item, LEAF_ITEMS_MAX};
use crate::cache::volume::cells::{CELL_BYTES_MAX, Cells, cell_bytes};
use crate::cache::volume::extent::Backing;
use crate::units::Seq;

/// Number of starts in a cache line.
const GROUP_STARTS: usize = 8;
/// A leaf grows by this, not by doubling, so little memory of a leaf is unused.
const LEAF_ITEMS_STEP: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Rest {
    seq: Seq,
    count: u32,
    backing: Backing,
}

impl Rest {
    fn of(item: &Item) -> Self {
        Self { seq: item.seq, count: item.count, backing: item.backing }
    }
}

#[derive(Debug)]
pub(in crate::cache::volume::index) struct Open {
    starts: Vec<u64, Cells>,
    rest: Vec<Rest, Cells>,
}

// A full leaf has room for some more.
const _: () = assert!(2 * LEAF_ITEMS_MAX * size_of::<Rest>() <= CELL_BYTES_MAX, "the heap serves no leaf");

impl Default for Open {
    fn default() -> Self {
        Self { starts: Vec::new_in(Cells), rest: Vec::new_in(Cells) }
    }
}

impl Open {
    /// A leaf of `items`, of which there are `count`, by ascending start.
    pub(super) fn of(count: usize, items: impl Iterator<Item = Item>) -> Self {
        let mut open = Self::default();
        open.append(count, items);
        open
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn bytes(&self) -> usize {
        Self::bytes_of(self.starts.capacity())
    }

    /// Memory of a leaf with room for `count` extents.
    pub(super) fn bytes_of(count: usize) -> usize {
        cell_bytes(count.saturating_mul(size_of::<u64>()))
            + cell_bytes(count.saturating_mul(size_of::<Rest>()))
    }

    pub(super) fn get(&self, at: usize) -> Option<Item> {
        let (start, rest) = (*self.starts.get(at)?, self.rest.get(at)?);
        Some(Item { start, seq: rest.seq, count: rest.count, backing: rest.backing })
    }

    pub(super) fn count_before(&self, sector: u64) -> usize {
        let before = |starts: &[u64]| starts.iter().map(|start| usize::from(*start < sector)).sum::<usize>();
        // The last start of each group says how many groups come before. All of these starts are loaded at once, so a leaf in no
        // CPU cache costs one wait for memory, and no branch is guessed: quicker than a binary search of so few.
        let (groups, _) = self.starts.as_chunks::<GROUP_STARTS>();
        let whole: usize = groups.iter().map(|group| usize::from(group[GROUP_STARTS - 1] < sector)).sum();
        let rest = &self.starts[whole * GROUP_STARTS..];
        whole * GROUP_STARTS + before(rest.first_chunk::<GROUP_STARTS>().map_or(rest, |group| group))
    }

    pub(super) fn replace(&mut self, at: usize, item: Item) -> Option<Item> {
        let old = self.get(at)?;
        self.starts[at] = item.start;
        self.rest[at] = Rest::of(&item);
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
        self.rest.insert(at, Rest::of(&item));
    }

    pub(super) fn remove(&mut self, from: usize, to: usize) {
        self.starts.drain(from..to);
        self.rest.drain(from..to);
        self.tighten();
    }

    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let upper = Self { starts: self.starts.split_off(at), rest: self.rest.split_off(at) };
        self.tighten();
        upper
    }

    /// Adds `items`, of which there are `count`, and which start behind all others, one behind another.
    pub(super) fn append(&mut self, count: usize, items: impl Iterator<Item = Item>) {
        self.starts.reserve_exact(count);
        self.rest.reserve_exact(count);
        for item in items {
            debug_assert!(self.starts.last().is_none_or(|last| *last < item.start), "starts ascend strictly");
            self.starts.push(item.start);
            self.rest.push(Rest::of(&item));
        }
    }

    /// Gives memory back that is not used.
    fn tighten(&mut self) {
        let len = self.len();
        if self.starts.capacity() - len > 2 * LEAF_ITEMS_STEP {
            self.starts.shrink_to(len + LEAF_ITEMS_STEP);
            self.rest.shrink_to(len + LEAF_ITEMS_STEP);
        }
    }
}
