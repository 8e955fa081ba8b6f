//! A packed leaf differs from an open one in nothing but time and memory.

use proptest::prelude::*;

use super::*;

fn backing() -> impl Strategy<Value = Backing> {
    let number = prop_oneof![0..4_u32, any::<u32>()];
    let sector = prop_oneof![0..400_u32, any::<u32>()];
    (0..6_u8, number, sector).prop_map(|(kind, number, sector)| match kind {
        0 => Backing::Zero { number },
        1 => Backing::Damaged { number },
        2 => Backing::Doubt { number },
        _ => Backing::Data { number, sector },
    })
}

/// Fields of an extent: how far the start is behind the start before, sequence number, count, place.
fn fields() -> impl Strategy<Value = (u64, u64, u32, Backing)> {
    // Leaves of near neighbours, and leaves whose numbers take all bytes.
    let gap = prop_oneof![1..40_u64, 1..1_u64 << 58];
    let seq = prop_oneof![1..200_u64, any::<u64>()];
    let count = prop_oneof![Just(32_u32), 1..9_u32, 1..=u32::MAX];
    (gap, seq, count, backing())
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let list = prop::collection::vec(fields(), 0..=LEAF_ITEMS_MAX);
    (prop_oneof![Just(0_u64), any::<u64>().prop_map(|start| start >> 1)], list).prop_map(|(first, list)| {
        let mut at = first;
        let item = |(gap, seq, count, backing)| {
            at = at.saturating_add(gap);
            Item { start: at, seq: Seq(seq), count, backing }
        };
        let mut items: Vec<Item> = list.into_iter().map(item).collect();
        items.dedup_by_key(|item| item.start);
        items
    })
}

fn opened(items: &[Item]) -> Leaf {
    Leaf::Open(Open::of(items.len(), items.iter().copied()))
}

/// The memory that `leaf` takes.
fn taken_bytes(leaf: &Leaf) -> usize {
    leaf.bytes().counted - leaf.bytes().saved
}

fn content(leaf: &Leaf) -> Vec<(u64, u64, u32, Backing)> {
    leaf.iter_from(0).map(|item| (item.start, item.seq.0, item.count, item.backing)).collect()
}

proptest! {
    #[test]
    fn a_packed_leaf_answers_as_an_open_one(items in items(), sectors in prop::collection::vec(any::<u64>(), 0..20)) {
        let (packed, open) = (Leaf::of_items(&items), opened(&items));
        prop_assert_eq!(items.len() < packed::ITEMS_MIN, matches!(packed, Leaf::Open(_)));
        prop_assert_eq!(content(&packed), content(&open));
        prop_assert_eq!((packed.len(), packed.is_full()), (open.len(), open.is_full()));
        prop_assert!(packed.get(items.len()).is_none());
        prop_assert_eq!(packed.bytes().counted, open.bytes().counted);
        match &packed {
            Leaf::Open(_) => prop_assert_eq!(packed.bytes().saved, 0),
            Leaf::Packed(block) => prop_assert!(block.bytes() <= open.bytes().counted),
        }
        prop_assert_eq!(open.bytes().saved, 0);
        let near = items.iter().flat_map(|item| [item.start.saturating_sub(1), item.start, item.start.saturating_add(1)]);
        for sector in near.chain(sectors).chain([0, u64::MAX]) {
            prop_assert_eq!(packed.count_before(sector), open.count_before(sector), "{}", sector);
        }
    }

    #[test]
    fn a_packed_leaf_changes_as_an_open_one(
        items in items(),
        changes in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6)
    ) {
        let (mut packed, mut open) = (Leaf::of_items(&items), opened(&items));
        for (kind, one, other) in changes {
            let len = open.len();
            let (from, to) = (one.index(len + 1), other.index(len + 1));
            let (from, to) = (from.min(to), from.max(to));
            match kind {
                0 => {
                    let counted = packed.bytes().counted;
                    packed.remove(from, to);
                    open.remove(from, to);
                    prop_assert!(packed.bytes().counted <= counted, "{:?} {}", packed.bytes(), counted);
                }
                1 if len > 0 => {
                    let at = one.index(len);
                    let Some(item) = open.get(at) else { continue };
                    let item = Item { count: 7, seq: Seq(5), backing: Backing::Zero { number: 3 }, ..item };
                    let counted = packed.bytes().counted;
                    let (of_packed, of_open) = (packed.replace(at, item), open.replace(at, item));
                    prop_assert_eq!(packed.bytes().counted, counted);
                    prop_assert_eq!(format!("{of_packed:?}"), format!("{of_open:?}"));
                }
                2 if len > 0 && len < LEAF_ITEMS_MAX => {
                    let at = one.index(len);
                    let before = at.checked_sub(1).and_then(|at| open.get(at)).map_or(0, |item| item.start + 1);
                    let Some(next) = open.get(at).filter(|next| before < next.start) else { continue };
                    let item = Item { start: before, count: 1, ..next };
                    packed.insert(at, item);
                    open.insert(at, item);
                }
                3 => {
                    let (upper, of_open) = (packed.split_off(from), open.split_off(from));
                    prop_assert_eq!(content(&upper), content(&of_open));
                }
                4 => {
                    let rest: Vec<Item> = open.iter_from(from).collect();
                    packed.remove(from, len);
                    open.remove(from, len);
                    packed.append(&Leaf::of_items(&rest));
                    open.append(&opened(&rest));
                }
                _ => {}
            }
            prop_assert_eq!(content(&packed), content(&open));
        }
    }
}

#[test]
fn neighbours_of_one_writer_take_few_bytes_in_a_packed_leaf() {
    let of_bytes = |item: &dyn Fn(u32) -> Item| {
        let items: Vec<Item> = (0..64).map(item).collect();
        taken_bytes(&Leaf::of_items(&items)) / items.len()
    };
    let in_order = |write| Item {
        start: u64::from(write) * 32,
        seq: Seq(1 << 40 | u64::from(write)),
        count: 32,
        backing: Backing::Data { number: 1 << 14, sector: write * 32 },
    };
    assert_eq!(of_bytes(&in_order), 6);
    let scattered = |write: u32| Item {
        seq: Seq(1 << 40 | u64::from(write.wrapping_mul(0x9e37_79b9))),
        backing: Backing::Data { number: write * 255, sector: write * 2000 },
        ..in_order(write)
    };
    assert_eq!(of_bytes(&scattered), 12);
}
