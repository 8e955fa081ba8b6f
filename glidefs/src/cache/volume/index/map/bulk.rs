//! An index of extents that come in ascending order, built leaf by leaf.
//!
//! Does not own extents out of order: the caller inserts these into the finished index. Invariant: the finished index is one that
//! inserts of the same extents could have made.

use super::{ExtentMap, Owner};
use crate::cache::log::table::Refs;
use crate::cache::volume::extent::Extent;
use crate::cache::volume::index::leaf::{Item, LEAF_ITEMS_MAX, Leaf, LeafBytes};
use crate::cache::volume::index::{Index, whole};
use crate::units::Seq;

/// An index while extents are added at the end: many times faster than [`Index::insert`].
#[derive(Debug, Default)]
pub struct IndexLoader {
    /// Leaves by the first start in each.
    owners: Vec<(u64, Owner)>,
    /// The extents of the next leaf. The next extent may continue the last one.
    items: Vec<Item>,
    /// End of the last extent.
    end: u64,
    /// The sums over all leaves.
    len: usize,
    data_sectors: u64,
    frames: u64,
    leaf_bytes: LeafBytes,
    max_seq: Seq,
}

impl IndexLoader {
    /// Adds `extent`, of at most `u32::MAX` sectors; `false`, and nothing is added, when `extent` starts before the end of the last
    /// one. `refs` is told of the extents of a leaf when the leaf is full, or by [`Self::close`].
    #[inline]
    pub fn push(&mut self, extent: &Extent, refs: &mut impl FnMut(Refs)) -> bool {
        let Ok(count) = u32::try_from(extent.range.count()) else { return false };
        let item = Item { start: extent.range.start(), seq: extent.seq, count, backing: extent.backing };
        self.push_item(item, refs)
    }

    #[inline]
    fn push_item(&mut self, item: Item, refs: &mut impl FnMut(Refs)) -> bool {
        if item.start < self.end {
            return false;
        }
        self.end = item.end();
        self.max_seq = self.max_seq.max(item.seq);
        if let Some(last) = self.items.last_mut() {
            if (last.end(), last.seq) == (item.start, item.seq)
                && last.backing.skip(last.count) == item.backing
                && let Some(count) = last.count.checked_add(item.count)
            {
                last.count = count;
                return true;
            }
            if self.items.len() >= LEAF_ITEMS_MAX {
                self.close(refs);
            }
        }
        self.items.push(item);
        true
    }

    /// Ends the last leaf, so that `refs` has been told of all extents. The next extent begins a leaf.
    pub fn close(&mut self, refs: &mut impl FnMut(Refs)) {
        let Some(first) = self.items.first() else { return };
        let key = first.start;
        for item in &self.items {
            refs(item.gained());
            self.data_sectors = self.data_sectors.saturating_add(item.data_sectors());
            self.frames = self.frames.saturating_add(item.frames());
        }
        let leaf = Leaf::of_items(&self.items);
        self.len += leaf.len();
        self.leaf_bytes += leaf.bytes();
        self.end_last_leaf_at(key);
        self.owners.push((key, Owner { leaf, next: u64::MAX }));
        self.items.clear();
    }

    fn end_last_leaf_at(&mut self, key: u64) {
        if let Some((_, last)) = self.owners.last_mut() {
            last.next = key;
        }
    }

    /// Adds the extents of `next`, of which `refs` has been told: whole leaves, as they are, behind the end of the last extent. The
    /// extents of other leaves are pushed one by one, and those that cannot be pushed go to `refused`: `refs` is told that `next`
    /// loses all of these.
    pub(in crate::cache::volume) fn append(
        &mut self,
        mut next: Self,
        refs: &mut impl FnMut(Refs),
        mut refused: impl FnMut(Extent),
    ) {
        debug_assert!(next.items.is_empty(), "all of the next index is in leaves");
        self.max_seq = self.max_seq.max(next.max_seq);
        let before = next.owners.iter().take_while(|(key, _)| *key < self.end).count();
        let mut owners = next.owners.into_iter();
        for (_, owner) in owners.by_ref().take(before) {
            next.len -= owner.leaf.len();
            next.leaf_bytes -= owner.leaf.bytes();
            for item in owner.leaf.iter_from(0) {
                next.data_sectors = next.data_sectors.saturating_sub(item.data_sectors());
                next.frames = next.frames.saturating_sub(item.frames());
                refs(item.lost(item.start, item.end()));
                if !self.push_item(item, refs) {
                    _ = whole(item).map(&mut refused);
                }
            }
        }
        self.close(refs);
        if let Some((key, _)) = owners.as_slice().first() {
            self.end_last_leaf_at(*key);
            self.end = next.end;
        }
        self.owners.extend(owners);
        self.len += next.len;
        self.data_sectors = self.data_sectors.saturating_add(next.data_sectors);
        self.frames = self.frames.saturating_add(next.frames);
        self.leaf_bytes += next.leaf_bytes;
    }

    /// The index of all extents added.
    pub fn finish(mut self, refs: &mut impl FnMut(Refs)) -> Index {
        self.close(refs);
        let Self { mut owners, len, data_sectors, frames, leaf_bytes, max_seq, .. } = self;
        if let Some((key, _)) = owners.first_mut() {
            *key = 0;
        }
        let owners = owners.into_iter().collect();
        Index { extents: ExtentMap { owners, len, data_sectors, frames, leaf_bytes }, max_seq }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use super::*;
    use crate::cache::volume::extent::Backing;

    fn item() -> impl Strategy<Value = (u64, u32, Seq, Backing)> {
        let backing = prop_oneof![
            (0..3_u32, 0..9_u32).prop_map(|(number, sector)| Backing::Data { number, sector: sector * 8 }),
            (0..3_u32).prop_map(|number| Backing::Zero { number })
        ];
        (0..3_u64, 1..20_u32, 1..9_u64, backing)
            .prop_map(|(gap, count, seq, backing)| (gap, count, Seq(seq), backing))
    }

    type Fields = (u64, u64, u32, Backing);

    fn fields(map: &ExtentMap) -> Vec<Fields> {
        map.iter().map(|item| (item.start, item.seq.0, item.count, item.backing)).collect()
    }

    fn sectors(map: &ExtentMap) -> Vec<Fields> {
        let each = |(start, seq, count, backing): Fields| {
            (0..count).map(move |skipped| (start + u64::from(skipped), seq, 1, backing.skip(skipped)))
        };
        fields(map).into_iter().flat_map(each).collect()
    }

    fn check_sums(map: &ExtentMap) -> Result<(), TestCaseError> {
        prop_assert_eq!(map.leaf_bytes, map.sum_of_leaf_bytes());
        prop_assert_eq!(map.len, map.iter().count());
        prop_assert_eq!(map.frames, map.iter().map(|item| item.frames()).sum::<u64>());
        prop_assert_eq!(map.data_sectors, map.iter().map(|item| item.data_sectors()).sum::<u64>());
        Ok(())
    }

    proptest! {
        /// The parts have none, some or many leaves, and begin behind the part before, or somewhere inside.
        #[test]
        fn a_map_of_parts_is_the_map_of_the_same_writes(
            parts in prop::collection::vec(
                (prop_oneof![3 => Just(0), 1 => 1..40_u64, 1 => 40..4_000_u64], prop::collection::vec(item(), 0..300)),
                0..8
            )
        ) {
            let (mut whole, mut written) = (IndexLoader::default(), ExtentMap::default());
            let (mut gained, mut at, mut refused) = (0, 0_u64, Vec::new());
            for (back, items) in parts {
                let mut part = IndexLoader::default();
                at = at.saturating_sub(back);
                for (gap, count, seq, backing) in items {
                    let item = Item { start: at + gap, seq, count, backing };
                    at = item.end();
                    prop_assert!(part.push_item(item, &mut |refs| gained += refs.extents));
                    written.write(item, &mut |_| {});
                }
                part.close(&mut |refs| gained += refs.extents);
                whole.append(part, &mut |refs| gained += refs.extents, |extent| refused.push(extent));
            }
            let mut built = whole.finish(&mut |refs| gained += refs.extents).extents;
            prop_assert_eq!(gained, i32::try_from(built.len).unwrap());
            check_sums(&built)?;
            for Extent { range, seq, backing } in refused {
                let count = u32::try_from(range.count()).unwrap();
                let item = Item { start: range.start(), seq, count, backing };
                built.write(item, &mut |_| {});
                written.write(item, &mut |_| {});
            }
            check_sums(&built)?;
            prop_assert_eq!(sectors(&built), sectors(&written));
            // The keys lead to every extent.
            for item in written.iter() {
                let mut found = Vec::new();
                let _: ControlFlow<()> = built.overlapping(item.start, item.end(), |item| {
                    found.push(item.start);
                    ControlFlow::Continue(())
                });
                prop_assert!(found.first().is_some_and(|first| *first <= item.start), "{item:?} {found:?}");
            }
        }

        #[test]
        fn a_map_built_in_order_is_the_map_of_the_same_writes(
            items in prop::collection::vec(item(), 0..600),
            changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), prop_oneof![1..200_u32, 1..4_000_u32]), 0..40)
        ) {
            let (mut bulk, mut written) = (IndexLoader::default(), ExtentMap::default());
            let (mut gained, mut at) = (0, 0);
            let mut pieces = Vec::new();
            for (gap, count, seq, backing) in items {
                let item = Item { start: at + gap, seq, count, backing };
                at = item.end();
                let is_added = bulk.push_item(item, &mut |refs| gained += refs.extents);
                prop_assert!(is_added);
                let is_overlap_added = bulk.push_item(Item { start: at - 1, ..item }, &mut |_| {});
                prop_assert!(!is_overlap_added);
                pieces.push(item);
            }
            let mut built = bulk.finish(&mut |refs| gained += refs.extents).extents;
            prop_assert_eq!(gained, i32::try_from(built.len).unwrap());
            check_sums(&built)?;
            // Every sector has the same content, and goes on having the same content after more writes.
            for item in &pieces {
                written.write(*item, &mut |_| {});
            }
            prop_assert_eq!(built.data_sectors, written.data_sectors);
            for (is_write, start, count) in changes {
                let start = start.index(usize::try_from(at).unwrap() + 1) as u64;
                let item = Item { start, seq: Seq(10), count, backing: Backing::Zero { number: 9 } };
                for map in [&mut built, &mut written] {
                    let len = map.len;
                    let mut change = 0;
                    let refs = &mut |refs: Refs| change += refs.extents as isize;
                    if is_write { map.write(item, refs) } else { map.carve(item.start, item.end(), refs) }
                    prop_assert_eq!(len.checked_add_signed(change), Some(map.len));
                    check_sums(map)?;
                }
                prop_assert_eq!(built.data_sectors, written.data_sectors);
            }
            prop_assert_eq!(sectors(&built), sectors(&written));
            prop_assert_eq!(built.leaf_bytes, built.sum_of_leaf_bytes());
        }
    }
}
