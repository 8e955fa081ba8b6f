//! An ordered map of extents without overlap: a tree of leaves.
//!
//! Owns finding, splitting and removing extents, and the sums over all extents. Does not own which of two writes wins: an extent
//! written here replaces older ones. Invariants: leaf `k` holds the extents with a start in `[k, next leaf's key)`, and knows the
//! next key; the first key is 0; no leaf but the first is empty.

mod bulk;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

pub use self::bulk::IndexLoader;
use super::leaf::{Item, LEAF_ITEMS_MAX, Leaf, LeafBytes};
use crate::cache::log::table::Refs;
use crate::cache::volume::hold;

/// A leaf shrunk to this many extents joins the leaf before, if there is room.
const LEAF_ITEMS_FEW: usize = LEAF_ITEMS_MAX / 8;

/// Memory of a leaf in the tree: the nodes of a tree are half to wholly full.
const OWNER_BYTES: usize = (size_of::<u64>() + size_of::<Owner>()) * 3 / 2;

#[derive(Debug)]
struct Owner {
    leaf: Leaf,
    /// Key of the next leaf; `u64::MAX` in the last, as no extent starts there.
    next: u64,
}

#[derive(Debug, Default)]
pub(super) struct ExtentMap {
    owners: BTreeMap<u64, Owner>,
    pub(super) len: usize,
    pub(super) data_sectors: u64,
    /// Sum of [`Item::frames`] over all extents.
    pub(super) frames: u64,
    /// Sum of [`Leaf::bytes`] over all leaves.
    leaf_bytes: LeafBytes,
}

impl ExtentMap {
    /// Memory of the map, counted as if no leaf were packed.
    pub(super) fn bytes(&self) -> usize {
        self.leaf_bytes.counted + self.owners.len() * OWNER_BYTES
    }

    /// The part of [`Self::bytes`] that packed leaves do not take.
    pub(super) fn saved_bytes(&self) -> usize {
        self.leaf_bytes.saved
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Item> {
        self.owners.values().flat_map(|owner| owner.leaf.iter_from(0)).inspect(|_| hold::touch())
    }

    /// The extent with the last start before `sector`.
    pub(super) fn last_before(&self, sector: u64) -> Option<Item> {
        // Only the first leaf may be empty, and the last leaf with a key below `sector` may begin behind.
        self.owners.range(..sector).rev().take(2).find_map(|(_, owner)| {
            hold::touch();
            owner.leaf.get(owner.leaf.count_before(sector).checked_sub(1)?)
        })
    }

    /// The largest end up to `to` for which at most `limit` extents have sectors from `from` to the end, and their number.
    pub(super) fn reach(&self, from: u64, to: u64, limit: usize) -> (u64, usize) {
        let mut count = 0;
        let stop = self.overlapping(from, to, |item| {
            if count == limit {
                return ControlFlow::Break(item.start.max(from));
            }
            count += 1;
            ControlFlow::Continue(())
        });
        (stop.break_value().unwrap_or(to), count)
    }

    /// Forgets the extents of one leaf, and tells `refs`; `false` when there is none. Only for a map in which nothing is looked up
    /// or written any more.
    pub(super) fn forget_leaf(&mut self, refs: &mut impl FnMut(Refs)) -> bool {
        let Some((_, owner)) = self.owners.pop_first() else { return false };
        for item in owner.leaf.iter_from(0) {
            refs(item.lost(item.start, item.end()));
        }
        self.len = self.len.saturating_sub(owner.leaf.len());
        true
    }

    /// Calls `visit` with each extent with sectors in `[from, to)`, in ascending order, until `visit` breaks.
    pub(super) fn overlapping<B>(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(Item) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some((key, mut owner)) = self.owners.range(..=from).next_back() else {
            return ControlFlow::Continue(());
        };
        let mut at = owner.leaf.count_before(from);
        let before = match at.checked_sub(1) {
            Some(before) => owner.leaf.get(before),
            None => self.owners.range(..key).next_back().and_then(|(_, owner)| owner.leaf.last()),
        };
        if let Some(item) = before.filter(|item| item.end() > from && from < to) {
            hold::touch();
            visit(item)?;
        }
        loop {
            for item in owner.leaf.iter_from(at) {
                if item.start >= to {
                    return ControlFlow::Continue(());
                }
                hold::touch();
                visit(item)?;
            }
            if owner.next >= to {
                return ControlFlow::Continue(());
            }
            let Some(next) = self.owners.get(&owner.next) else { return ControlFlow::Continue(()) };
            (owner, at) = (next, 0);
        }
    }

    /// Makes `item` the extent of its sectors. `refs` is told of `item` first, then of the extents split or removed.
    pub(super) fn write(&mut self, item: Item, refs: &mut impl FnMut(Refs)) {
        hold::touch();
        refs(item.gained());
        if !self.write_in_leaf(item, refs) {
            self.carve(item.start, item.end(), refs);
            self.add(item);
        }
    }

    /// Writes `item` with one search if all touched extents lie in one leaf with room, which is nearly always so. Returns whether
    /// `item` was written.
    fn write_in_leaf(&mut self, item: Item, refs: &mut impl FnMut(Refs)) -> bool {
        let (from, to) = (item.start, item.end());
        let Some((key, owner)) = self.owners.range_mut(..=from).next_back() else { return false };
        let leaf = &mut owner.leaf;
        let was_bytes = leaf.bytes();
        let at = leaf.count_before(from);
        if let Some(found) = leaf.get(at)
            && (found.start, found.count) == (from, item.count)
        {
            // The same sectors once more, as file systems write. No room is needed, so the leaf may be full.
            refs(found.lost(from, to));
            leaf.replace(at, item);
            self.leaf_bytes += leaf.bytes();
            self.leaf_bytes -= was_bytes;
            let gone_sectors = found.data_sectors();
            self.data_sectors =
                self.data_sectors.saturating_sub(gone_sectors).saturating_add(item.data_sectors());
            self.frames = self.frames.saturating_sub(found.frames()).saturating_add(item.frames());
            return true;
        }
        if to >= owner.next || (at == 0 && *key != 0) || leaf.len() + 2 > LEAF_ITEMS_MAX {
            return false;
        }
        let mut rest = None;
        let (mut gone_sectors, mut gone_frames) = (0, 0);
        if let Some(before) = at.checked_sub(1)
            && let Some(found) = leaf.get(before)
            && found.end() > from
        {
            let head = found.head(from);
            leaf.replace(before, head);
            let lost = found.lost(from, to);
            gone_sectors += lost.sectors_gone();
            gone_frames += found.frames().saturating_sub(head.frames());
            refs(lost);
            rest = found.beyond(to);
        }
        let mut end = at;
        while let Some(found) = leaf.get(end).filter(|found| found.start < to) {
            let lost = found.lost(from, to);
            gone_sectors += lost.sectors_gone();
            gone_frames += found.frames();
            refs(lost);
            rest = found.beyond(to);
            end += 1;
        }
        let was = leaf.len();
        let more_frames = item.frames() + rest.map_or(0, |rest| rest.frames());
        let mut place = at;
        for item in [Some(item), rest].into_iter().flatten() {
            if place < end {
                leaf.replace(place, item);
            } else {
                leaf.insert(place, item);
                end += 1;
            }
            place += 1;
        }
        if place < end {
            leaf.remove(place, end);
        }
        self.data_sectors =
            self.data_sectors.saturating_sub(gone_sectors).saturating_add(item.data_sectors());
        self.frames = self.frames.saturating_add(more_frames).saturating_sub(gone_frames);
        self.len = self.len - was + leaf.len();
        self.leaf_bytes += leaf.bytes();
        self.leaf_bytes -= was_bytes;
        true
    }

    /// Removes `[from, to)` from all extents, and tells `refs`.
    pub(super) fn carve(&mut self, from: u64, to: u64, refs: &mut impl FnMut(Refs)) {
        let mut rest = None;
        // Of the leaves with keys below `from`, only the last two can hold the extent that reaches there.
        for (_, owner) in self.owners.range_mut(..from).rev().take(2) {
            let Some(before) = owner.leaf.count_before(from).checked_sub(1) else { continue };
            if let Some(found) = owner.leaf.get(before).filter(|found| found.end() > from) {
                let head = found.head(from);
                self.leaf_bytes -= owner.leaf.bytes();
                owner.leaf.replace(before, head);
                self.leaf_bytes += owner.leaf.bytes();
                self.frames = self.frames.saturating_add(head.frames()).saturating_sub(found.frames());
                self.data_sectors = self.data_sectors.saturating_sub(found.tail(from).data_sectors());
                refs(found.lost(from, to));
                rest = found.beyond(to);
            }
            break;
        }
        let mut next = self.owners.range(..=from).next_back().map(|(key, _)| *key);
        while let Some((key, owner)) = next.and_then(|key| Some((key, self.owners.get_mut(&key)?))) {
            let leaf = &mut owner.leaf;
            let (first, end) = (leaf.count_before(from), leaf.count_before(to));
            for found in leaf.iter_from(first).take(end - first) {
                hold::touch();
                self.len -= 1;
                self.data_sectors = self.data_sectors.saturating_sub(found.data_sectors());
                self.frames = self.frames.saturating_sub(found.frames());
                refs(found.lost(from, to));
                rest = found.beyond(to);
            }
            self.leaf_bytes -= leaf.bytes();
            leaf.remove(first, end);
            self.leaf_bytes += leaf.bytes();
            next = Some(owner.next).filter(|next| *next < to);
            if owner.leaf.len() <= LEAF_ITEMS_FEW {
                self.join(key);
            }
        }
        if let Some(item) = rest {
            self.add(item);
        }
    }

    /// Adds an extent of sectors in no other extent.
    fn add(&mut self, item: Item) {
        self.len += 1;
        self.data_sectors = self.data_sectors.saturating_add(item.data_sectors());
        self.frames = self.frames.saturating_add(item.frames());
        let Some((_, owner)) = self.owners.range_mut(..=item.start).next_back() else {
            let leaf = Leaf::of(item);
            self.leaf_bytes += leaf.bytes();
            self.owners.insert(0, Owner { leaf, next: u64::MAX });
            return;
        };
        let at = owner.leaf.count_before(item.start);
        self.leaf_bytes -= owner.leaf.bytes();
        if !owner.leaf.is_full() {
            owner.leaf.insert(at, item);
            self.leaf_bytes += owner.leaf.bytes();
            return;
        }
        let (key, leaf) = if at == owner.leaf.len() {
            // A writer going upwards leaves full leaves behind.
            (item.start, Leaf::of(item))
        } else {
            let mut upper = owner.leaf.split_off(LEAF_ITEMS_MAX / 2);
            match at.checked_sub(LEAF_ITEMS_MAX / 2) {
                Some(at) if at > 0 => upper.insert(at, item),
                _ => owner.leaf.insert(at, item),
            }
            let Some(first) = upper.get(0) else { return };
            (first.start, upper)
        };
        self.leaf_bytes += owner.leaf.bytes();
        self.leaf_bytes += leaf.bytes();
        let upper = Owner { leaf, next: owner.next };
        owner.next = key;
        self.owners.insert(key, upper);
    }

    /// Moves the extents of leaf `key` into the leaf before, if the leaf before has room enough.
    fn join(&mut self, key: u64) {
        let Some(owner) = self.owners.get(&key) else { return };
        let (next, len) = (owner.next, owner.leaf.len());
        let Some((_, before)) = self.owners.range_mut(..key).next_back() else {
            debug_assert_eq!(key, 0, "the first key is 0");
            return;
        };
        debug_assert_eq!(before.next, key, "a leaf knows the next key");
        if len > 0 && before.leaf.len() + len > LEAF_ITEMS_MAX / 2 {
            return;
        }
        before.next = next;
        if let Some(owner) = self.owners.remove(&key)
            && let Some((_, before)) = self.owners.range_mut(..key).next_back()
        {
            self.leaf_bytes -= before.leaf.bytes();
            self.leaf_bytes -= owner.leaf.bytes();
            before.leaf.append(&owner.leaf);
            self.leaf_bytes += before.leaf.bytes();
        }
    }

    #[cfg(test)]
    fn sum_of_leaf_bytes(&self) -> LeafBytes {
        let mut sum = LeafBytes::default();
        self.owners.values().for_each(|owner| sum += owner.leaf.bytes());
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::volume::extent::Backing;
    use crate::units::Seq;

    proptest! {
        /// Shorter ones may lie within a frame, and make two extents with data in the frame.
        #[test]
        fn zeroes_of_seven_sectors_and_more_take_no_frames(
            changes in prop::collection::vec((any::<bool>(), 0..400_u64, 1..40_u32), 0..200)
        ) {
            let mut map = ExtentMap::default();
            for (at, (is_data, start, count)) in changes.into_iter().enumerate() {
                // Each record begins with a frame.
                let backing = if is_data { Backing::Data { number: 0, sector: 8 } } else { Backing::Zero { number: 0 } };
                let count = if is_data { count } else { count + 6 };
                let before = map.frames;
                map.write(Item { start, seq: Seq(at as u64), count, backing }, &mut |_| {});
                prop_assert!(is_data || map.frames <= before);
            }
        }

        #[test]
        fn the_sums_are_those_over_all_extents(
            changes in prop::collection::vec((0..3_u8, 0..4_000_u64, 1..40_u32, 0..20_u32), 0..600)
        ) {
            let mut map = ExtentMap::default();
            for (at, (kind, start, count, sector)) in changes.into_iter().enumerate() {
                let backing = match kind {
                    0 => Backing::Zero { number: 0 },
                    _ => Backing::Data { number: 0, sector },
                };
                if kind < 2 {
                    map.write(Item { start, seq: Seq(at as u64), count, backing }, &mut |_| {});
                } else {
                    map.carve(start, start + u64::from(count) * 50, &mut |_| {});
                }
                prop_assert_eq!(map.leaf_bytes, map.sum_of_leaf_bytes());
                prop_assert_eq!(map.frames, map.iter().map(|item| item.frames()).sum::<u64>());
                prop_assert_eq!(map.data_sectors, map.iter().map(|item| item.data_sectors()).sum::<u64>());
            }
        }
    }
}
