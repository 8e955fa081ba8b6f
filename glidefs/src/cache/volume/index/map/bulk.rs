//! A map of extents that come in ascending order, built leaf by leaf.
//!
//! Does not own extents out of order: the caller writes these to the finished map. Invariant: the finished map is one that writes of
//! the same extents could have made.

use super::{ExtentMap, Owner};
use crate::cache::log::table::Refs;
use crate::cache::volume::index::leaf::{Item, LEAF_ITEMS_MAX, Leaf, LeafBytes};

/// A map while extents are added at the end.
#[derive(Debug, Default)]
pub(in crate::cache::volume::index) struct Bulk {
    owners: Vec<(u64, Owner)>,
    /// The extents of the next leaf. The next extent may continue the last one. Empty before the first extent only.
    items: Vec<Item>,
    len: usize,
    data_sectors: u64,
    frames: u64,
    leaf_bytes: LeafBytes,
}

impl Bulk {
    /// Adds `item`; `false`, and nothing is added, when `item` starts before the end of the last extent. `refs` is told of the
    /// extents of a leaf when the leaf is full, or by [`Self::finish`].
    #[inline]
    pub fn push(&mut self, item: Item, refs: &mut impl FnMut(Refs)) -> bool {
        if let Some(last) = self.items.last_mut() {
            if item.start < last.end() {
                return false;
            }
            if (last.end(), last.seq) == (item.start, item.seq)
                && last.backing.skip(last.count) == item.backing
                && let Some(count) = last.count.checked_add(item.count)
            {
                last.count = count;
                return true;
            }
            if self.items.len() >= LEAF_ITEMS_MAX {
                self.close(item.start, refs);
            }
        }
        self.items.push(item);
        true
    }

    /// Ends a leaf; the next one begins at `next`.
    fn close(&mut self, next: u64, refs: &mut impl FnMut(Refs)) {
        for item in &self.items {
            refs(item.gained());
            self.data_sectors = self.data_sectors.saturating_add(item.data_sectors());
            self.frames = self.frames.saturating_add(item.frames());
        }
        let key = self.owners.last().map_or(0, |(_, owner)| owner.next);
        let leaf = Leaf::of_items(&self.items);
        self.len += leaf.len();
        self.leaf_bytes += leaf.bytes();
        self.owners.push((key, Owner { leaf, next }));
        self.items.clear();
    }

    /// The map of all extents added.
    pub fn finish(mut self, refs: &mut impl FnMut(Refs)) -> ExtentMap {
        if !self.items.is_empty() {
            self.close(u64::MAX, refs);
        }
        let Self { owners, len, data_sectors, frames, leaf_bytes, .. } = self;
        ExtentMap { owners: owners.into_iter().collect(), len, data_sectors, frames, leaf_bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::volume::extent::Backing;
    use crate::units::Seq;

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

    proptest! {
        #[test]
        fn a_map_built_in_order_is_the_map_of_the_same_writes(
            items in prop::collection::vec(item(), 0..600),
            changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), prop_oneof![1..200_u32, 1..4_000_u32]), 0..40)
        ) {
            let (mut bulk, mut written) = (Bulk::default(), ExtentMap::default());
            let (mut gained, mut at) = (0, 0);
            let mut pieces = Vec::new();
            for (gap, count, seq, backing) in items {
                let item = Item { start: at + gap, seq, count, backing };
                at = item.end();
                let is_added = bulk.push(item, &mut |refs| gained += refs.extents);
                prop_assert!(is_added);
                let is_overlap_added = bulk.push(Item { start: at - 1, ..item }, &mut |_| {});
                prop_assert!(!is_overlap_added);
                pieces.push(item);
            }
            let mut built = bulk.finish(&mut |refs| gained += refs.extents);
            prop_assert_eq!(gained, i32::try_from(built.len()).unwrap());
            prop_assert_eq!(built.leaf_bytes, built.sum_of_leaf_bytes());
            prop_assert_eq!(built.len(), built.iter().count());
            prop_assert_eq!(built.frames(), built.iter().map(|item| item.frames()).sum::<u64>());
            // Every sector has the same content, and goes on having the same content after more writes.
            for item in &pieces {
                written.write(*item, &mut |_| {});
            }
            prop_assert_eq!(built.data_sectors(), written.data_sectors());
            for (is_write, start, count) in changes {
                let start = start.index(usize::try_from(at).unwrap() + 1) as u64;
                let item = Item { start, seq: Seq(10), count, backing: Backing::Zero { number: 9 } };
                for map in [&mut built, &mut written] {
                    let len = map.len();
                    let mut change = 0;
                    let refs = &mut |refs: Refs| change += refs.extents as isize;
                    if is_write { map.write(item, refs) } else { map.carve(item.start, item.end(), refs) }
                    prop_assert_eq!(len.checked_add_signed(change), Some(map.len()));
                    prop_assert_eq!(map.len(), map.iter().count());
                    prop_assert_eq!(map.frames(), map.iter().map(|item| item.frames()).sum::<u64>());
                    prop_assert_eq!(map.leaf_bytes, map.sum_of_leaf_bytes());
                }
                prop_assert_eq!(built.data_sectors(), written.data_sectors());
            }
            let sectors = |map: &ExtentMap| -> Vec<Fields> {
                let each = |(start, seq, count, backing): Fields| {
                    (0..count).map(move |skipped| (start + u64::from(skipped), seq, 1, backing.skip(skipped)))
                };
                fields(map).into_iter().flat_map(each).collect()
            };
            prop_assert_eq!(sectors(&built), sectors(&written));
            prop_assert_eq!(built.leaf_bytes, built.sum_of_leaf_bytes());
        }
    }
}
