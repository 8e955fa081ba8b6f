//! The index against a model: the newest write of every sector in a plain array.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests panic, and their numbers are small"
)]

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const SECTORS: u64 = 4096;

/// Per sector: sequence number, segment, and the sector in the segment unless it is zero.
type Sector = Option<(u64, u32, Option<u32>)>;

fn extent(start: u64, count: u64, seq: u64, backing: Backing) -> Extent {
    Extent { range: SectorRange::new(start, count).unwrap(), seq: Seq(seq), backing }
}

/// An index with the model, and the references counted from the index's reports.
struct Pair {
    base: u64,
    index: Index,
    model: Vec<Sector>,
    refs: HashMap<u32, i64>,
    sectors: HashMap<u32, i64>,
}

impl Pair {
    fn new(base: u64) -> Self {
        Self {
            base,
            index: Index::default(),
            model: vec![None; SECTORS as usize],
            refs: HashMap::new(),
            sectors: HashMap::new(),
        }
    }

    fn insert(&mut self, extent: Extent) {
        let referred = |index: &Index, number| index.iter().any(|found| found.backing.number() == number);
        let table: Vec<u32> = (0..8).filter(|number| referred(&self.index, *number)).collect();
        let mut touched_zero = Vec::new();
        self.index.insert(extent, &mut |Refs { number, extents, sectors }| {
            *self.sectors.entry(number).or_default() += sectors;
            let count = self.refs.entry(number).or_default();
            *count += i64::from(extents);
            assert!(*count >= 0, "segment {number} has {count} references");
            if *count == 0 {
                touched_zero.push(number);
            }
        });
        for number in table.iter().filter(|number| referred(&self.index, **number)) {
            assert!(!touched_zero.contains(number), "segment {number} seemed unused for a moment");
        }
        for at in extent.range.start()..extent.range.end() {
            let sector = &mut self.model[(at - self.base) as usize];
            if sector.is_none_or(|(seq, ..)| seq <= extent.seq.0) {
                let place = match extent.backing {
                    Backing::Data { sector, .. } => Some(sector + (at - extent.range.start()) as u32),
                    _ => None,
                };
                *sector = Some((extent.seq.0, extent.backing.number(), place));
            }
        }
    }

    /// Makes the index anew from its extents, as a start from a checkpoint does.
    fn reload(&mut self) {
        let mut loader = IndexLoader::default();
        self.refs.clear();
        self.sectors.clear();
        let refs = &mut |told: Refs| {
            *self.refs.entry(told.number).or_default() += i64::from(told.extents);
            *self.sectors.entry(told.number).or_default() += told.sectors;
        };
        for extent in self.index.iter() {
            assert!(loader.push(&extent, refs), "extents ascend");
        }
        self.index = loader.finish(refs);
    }

    fn lookup(&self, from: u64, to: u64) -> Vec<Sector> {
        let mut found = Vec::new();
        let mut next = self.base + from;
        self.index.lookup(SectorRange::new(next, to - from).unwrap(), |piece| {
            assert_eq!(piece.range.start(), next, "pieces leave no gap");
            assert!(!piece.range.is_empty());
            next = piece.range.end();
            found.extend((0..piece.range.count()).map(|skipped| {
                piece.backing.map(|backing| match backing {
                    Backing::Data { number, sector } => (piece.seq.0, number, Some(sector + skipped as u32)),
                    other => (piece.seq.0, other.number(), None),
                })
            }));
        });
        assert_eq!(next, self.base + to, "pieces end with the range");
        found
    }

    fn check(&self) {
        assert_eq!(self.lookup(0, SECTORS), self.model);
        let (mut refs, mut sectors) = (HashMap::<u32, i64>::new(), HashMap::<u32, i64>::new());
        let mut data_sectors = 0;
        let mut end = 0;
        for extent in self.index.iter() {
            assert!(
                extent.range.start() >= end && !extent.range.is_empty(),
                "extents ascend and do not overlap"
            );
            end = extent.range.end();
            *refs.entry(extent.backing.number()).or_default() += 1;
            if let Backing::Data { .. } = extent.backing {
                data_sectors += extent.range.count();
                *sectors.entry(extent.backing.number()).or_default() +=
                    i64::try_from(extent.range.count()).unwrap();
            }
        }
        let counted = |told: &HashMap<u32, i64>| -> HashMap<u32, i64> {
            told.iter().filter(|(_, n)| **n != 0).map(|(s, n)| (*s, *n)).collect()
        };
        assert_eq!(counted(&self.refs), refs, "reported references are those that exist");
        assert_eq!(counted(&self.sectors), sectors, "and so are the sectors they refer to");
        assert_eq!(self.index.len(), self.index.iter().count());
        assert_eq!(self.index.live_bytes(), data_sectors * SECTOR_BYTES);
    }
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        5 => (0..8u32, 0..1_000_000u32).prop_map(|(number, sector)| Backing::Data { number, sector }),
        1 => (0..8u32).prop_map(|number| Backing::Zero { number }),
    ]
}

/// Ranges of all lengths, short ones more often, so there are enough extents for several leaves.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let count = prop_oneof![8 => 1..5u64, 4 => 1..33u64, 1 => 1..SECTORS];
    (0..SECTORS, count).prop_map(|(start, count)| (start, count.min(SECTORS - start)))
}

fn base() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1 << 40), Just(u64::MAX - SECTORS)]
}

/// Inserts with sequence numbers 1, 2, 3…
fn history(inserts_max: usize) -> impl Strategy<Value = (u64, Vec<Extent>)> {
    (base(), prop::collection::vec((range(), backing()), 1..inserts_max)).prop_map(|(base, inserts)| {
        let numbered = inserts.into_iter().zip(1..);
        let extents =
            numbered.map(|(((start, count), backing), seq)| extent(base + start, count, seq, backing));
        (base, extents.collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn inserts_in_order_agree_with_the_model((base, extents) in history(600)) {
        let mut pair = Pair::new(base);
        for (number, extent) in extents.iter().enumerate() {
            pair.insert(*extent);
            if number % 64 == 0 {
                pair.check();
            }
        }
        pair.check();
        prop_assert_eq!(pair.index.max_seq(), Seq(extents.len() as u64));
    }

    #[test]
    fn inserts_in_any_order_give_the_same_extents(
        ((base, extents), shuffled) in history(600).prop_flat_map(|(base, extents)| {
            (Just((base, extents.clone())), Just(extents).prop_shuffle())
        })
    ) {
        let (mut ordered, mut pair) = (Pair::new(base), Pair::new(base));
        for extent in extents {
            ordered.insert(extent);
        }
        for (number, extent) in shuffled.into_iter().enumerate() {
            pair.insert(extent);
            if number % 64 == 0 {
                pair.check();
            }
        }
        pair.check();
        prop_assert_eq!(ordered.index.max_seq(), pair.index.max_seq());
        let extents: Vec<Extent> = ordered.index.iter().collect();
        prop_assert_eq!(extents, pair.index.iter().collect::<Vec<_>>());
    }

    #[test]
    fn inserts_in_any_order_into_a_loaded_index_agree_with_the_model(
        (base, shuffled) in history(600).prop_flat_map(|(base, extents)| (Just(base), Just(extents).prop_shuffle())),
        loads in prop::collection::vec(0..600_usize, 1..6)
    ) {
        let mut pair = Pair::new(base);
        for (number, extent) in shuffled.into_iter().enumerate() {
            if loads.contains(&number) {
                pair.reload();
                pair.check();
            }
            pair.insert(extent);
        }
        pair.check();
    }

    #[test]
    fn moved_extents_are_found_at_their_last_place_unless_overwritten(
        (base, extents) in history(400),
        moves in prop::collection::vec((any::<prop::sample::Index>(), backing()), 1..100),
    ) {
        let mut pair = Pair::new(base);
        for extent in &extents {
            pair.insert(*extent);
        }
        for (which, backing) in moves {
            let extent = which.get(&extents);
            pair.insert(Extent { backing, ..*extent });
        }
        pair.check();
    }

    #[test]
    fn a_lookup_covers_exactly_what_was_asked_for(
        (base, extents) in history(400),
        ranges in prop::collection::vec((range(), any::<bool>()), 1..50),
    ) {
        let mut pair = Pair::new(base);
        for extent in extents {
            pair.insert(extent);
        }
        for ((start, count), empty) in ranges {
            let end = if empty { start } else { start + count };
            prop_assert_eq!(&pair.lookup(start, end)[..], &pair.model[start as usize..end as usize]);
        }
    }

    #[test]
    fn clearing_gives_back_every_reference((base, extents) in history(400)) {
        let mut pair = Pair::new(base);
        for extent in extents {
            pair.insert(extent);
        }
        let Pair { index, refs, sectors, .. } = &mut pair;
        while index.forget_some(&mut |told| {
            *refs.entry(told.number).or_default() += i64::from(told.extents);
            *sectors.entry(told.number).or_default() += told.sectors;
        }) {}
        prop_assert!(refs.values().chain(sectors.values()).all(|count| *count == 0));
        prop_assert!(index.is_empty());
    }
}

#[test]
fn an_index_that_was_filled_and_discarded_again_and_again_stays_right() {
    let mut pair = Pair::new(0);
    let mut seq = 0;
    for step in [1, 2, 3, 7] {
        for at in (0..SECTORS - step).step_by(step as usize) {
            seq += 1;
            pair.insert(extent(at, 1, seq, Backing::Data { number: seq as u32 % 8, sector: at as u32 }));
        }
        pair.check();
        // From the top down, so that leaves empty and join in every position.
        for at in (0..SECTORS).rev().step_by(500) {
            seq += 1;
            pair.insert(extent(at, (SECTORS - at).min(700), seq, Backing::Zero { number: 0 }));
            pair.check();
        }
    }
    pair.insert(extent(0, SECTORS, seq + 1, Backing::Zero { number: 3 }));
    pair.check();
    assert_eq!(pair.index.len(), 1);
}

#[test]
fn a_range_longer_than_an_extent_can_be_is_covered_by_several() {
    let mut index = Index::default();
    let mut refs = 0;
    let range = SectorRange::new(5, 3 * u64::from(u32::MAX)).unwrap();
    index.insert(Extent { range, seq: Seq(1), backing: Backing::Zero { number: 1 } }, &mut |told| {
        refs += told.extents;
    });
    assert_eq!((index.len(), refs), (3, 3));
    let mut end = 5;
    index.lookup(range, |piece| {
        assert_eq!(piece.backing, Some(Backing::Zero { number: 1 }));
        end = piece.range.end();
    });
    assert_eq!(end, range.end());
}

#[test]
fn a_place_beyond_any_segment_neither_panics_nor_wraps() {
    let mut index = Index::default();
    let backing = Backing::Data { number: 0, sector: u32::MAX - 1 };
    index.insert(extent(0, 1000, 1, backing), &mut |_| ());
    index.insert(extent(10, 10, 2, Backing::Zero { number: 0 }), &mut |_| ());
    let tail = index.iter().last().unwrap();
    assert_eq!(tail.backing, Backing::Data { number: 0, sector: u32::MAX });
}

#[test]
fn nothing_happens_for_an_empty_range() {
    let mut index = Index::default();
    index.insert(extent(7, 0, 1, Backing::Zero { number: 0 }), &mut |_| panic!("no extent, no reference"));
    index.lookup(SectorRange::new(7, 0).unwrap(), |_| panic!("no sectors, no piece"));
    assert!(index.is_empty());
}
