//! The layers against a model: the newest write of every sector, of the log and of the store.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests panic, and their numbers are small"
)]

use proptest::prelude::*;

use super::*;

const SECTORS: usize = 64;
const SEGMENTS: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    Write {
        start: u64,
        count: u64,
        zero: bool,
    },
    Freeze,
    Thaw(usize),
    Undo,
    /// The cleaner looks at the extents of a segment, and moves the extents seen to another segment later.
    Look(u32),
    Move,
    /// Clean extents of a segment are forgotten.
    Evict(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..60u64, 1..5u64, prop::bool::weighted(0.2))
            .prop_map(|(start, count, zero)| Step::Write { start, count, zero }),
        2 => Just(Step::Freeze),
        3 => (1..6usize).prop_map(Step::Thaw),
        1 => Just(Step::Undo),
        2 => (0..SEGMENTS).prop_map(Step::Look),
        2 => Just(Step::Move),
        2 => (0..SEGMENTS).prop_map(Step::Evict),
    ]
}

/// Layers with a model of the content that a reader must see.
struct Pair {
    table: SegmentTable,
    layers: Layers,
    last_seq: u64,
    /// The write of each sector's content, 0 for none: newest, in each cut, in the store.
    newest: [u64; SECTORS],
    cuts: VecDeque<[u64; SECTORS]>,
    stored: [u64; SECTORS],
    /// Extents written, each in the first place; the log never forgets an extent.
    log: Vec<Extent>,
    /// The extents seen by the cleaner, and their segment.
    seen: (Vec<Extent>, u32),
}

impl Pair {
    fn new() -> Self {
        let table = SegmentTable::new(SEGMENTS, SEGMENTS, [0; 16], 64);
        for number in 0..SEGMENTS {
            table.get(number).begin_use(u64::from(number) + 1, 1);
        }
        Self {
            table,
            layers: Layers::default(),
            last_seq: 0,
            newest: [0; SECTORS],
            cuts: VecDeque::new(),
            stored: [0; SECTORS],
            log: Vec::new(),
            seen: (Vec::new(), 0),
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Write { start, count, zero } => {
                self.last_seq += 1;
                let number = (self.last_seq % u64::from(SEGMENTS)) as u32;
                let backing = if zero {
                    Backing::Zero { number }
                } else {
                    Backing::Data { number, sector: start as u32 }
                };
                let range = SectorRange::new(start, count).unwrap();
                let extent = Extent { range, seq: Seq(self.last_seq), backing };
                self.layers.insert(&self.table, None, extent);
                self.log.push(extent);
                self.newest[start as usize..(start + count) as usize].fill(self.last_seq);
            }
            Step::Freeze => {
                if Seq(self.last_seq) > self.layers.cut() {
                    self.layers.freeze(Frozen { last: Seq(self.last_seq), ..Frozen::default() });
                    self.cuts.push_back(self.newest);
                }
            }
            Step::Thaw(count) => {
                // The store has the cut from the first move on.
                if let Some(cut) = self.cuts.front() {
                    self.stored = *cut;
                    if self.layers.thaw_some(&self.table, count).0 {
                        self.cuts.pop_front();
                    }
                }
            }
            Step::Undo => {
                if self.cuts.front().is_some_and(|cut| self.stored != *cut) {
                    // All the way, because only readers and the cleaner come between.
                    while !self.layers.undo_some(&self.table, 1) {
                        self.check_newest();
                    }
                    self.cuts.pop_front();
                }
            }
            Step::Look(from) => {
                self.seen = (Vec::new(), from);
                for extent in &self.log {
                    let parts = self.dirty_parts(extent, from);
                    // Whole frames move, with newer sectors inside.
                    if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
                        let hull = SectorRange::new(first.start(), last.end() - first.start()).unwrap();
                        self.seen.0.push(extent.part(hull).unwrap());
                    }
                }
            }
            Step::Move => {
                let (seen, from) = std::mem::take(&mut self.seen);
                let to = (from + 1) % SEGMENTS;
                for extent in seen {
                    let backing = match extent.backing {
                        Backing::Data { sector, .. } => Backing::Data { number: to, sector },
                        _ => Backing::Zero { number: to },
                    };
                    let mut copy = Some(Extent { backing, ..extent });
                    while let Some(rest) = copy {
                        let next = self.layers.relocate(&self.table, rest, from, 1);
                        copy = next.and_then(|next| {
                            rest.part(SectorRange::new(next, rest.range.end() - next).unwrap())
                        });
                    }
                    assert_eq!(self.dirty_parts(&extent, from), [], "all has moved");
                }
            }
            Step::Evict(number) => {
                // The cleaner forgets after moving.
                self.seen.0.clear();
                for extent in &self.log {
                    if !self.layers.is_clean(extent.seq) {
                        continue;
                    }
                    let mut rest = Some(extent.range);
                    while let Some(range) = rest {
                        let next = self.layers.evict(&self.table, range, 1, |backing, seq| {
                            (seq, backing.number()) == (extent.seq, number)
                        });
                        rest = next.and_then(|next| SectorRange::new(next, range.end() - next));
                    }
                }
                let number = self.table.get(number);
                // While the extents of a cut become clean, some clean extents may not be forgotten yet.
                let forgotten = number.extents() == number.dirty_extents();
                assert!(forgotten || !self.cuts.is_empty(), "all that is clean is forgotten");
            }
        }
    }

    /// The parts of `extent` to be moved out of segment `from`, looked for one extent at a time.
    fn dirty_parts(&self, extent: &Extent, from: u32) -> Vec<SectorRange> {
        let (mut found, mut rest) = (Vec::new(), Some(extent.range));
        while let Some(range) = rest {
            let (parts, next) = self.layers.dirty_parts(range, (extent.seq, from), 1);
            found.extend(parts);
            rest = next.and_then(|next| SectorRange::new(next, range.end() - next));
        }
        found
    }

    fn check(&self) {
        self.check_newest();
        self.check_walks();
        let everything = SectorRange::new(0, SECTORS as u64).unwrap();
        if let Some(cut) = self.cuts.front().copied().filter(|cut| *cut != self.stored) {
            self.layers.lookup_frozen(everything, |piece| {
                let sectors = piece.range.start() as usize..piece.range.end() as usize;
                if piece.backing.is_some() {
                    assert!(cut[sectors].iter().all(|seq| *seq == piece.seq.0), "{piece:?}");
                } else {
                    assert_eq!(self.stored[sectors.clone()], cut[sectors], "{piece:?}");
                }
            });
        }
        let counted: u32 = self.table.iter().map(|(_, number)| number.extents()).sum();
        assert_eq!(counted as usize, self.layers.len());
    }

    /// Walks a few extents at a time find the same sectors as look-ups of everything.
    fn check_walks(&self) {
        let (mut dirty, mut cut, mut placed) = (Vec::new(), Vec::new(), 0);
        let walk = |look: &mut dyn FnMut(u64) -> Option<u64>| {
            let mut next = Some(0);
            while let Some(from) = next {
                next = look(from);
                assert!(next.is_none_or(|next| next > from), "a walk goes on");
            }
        };
        walk(&mut |from| {
            let (found, next) = self.layers.dirty_from(from, 2);
            dirty.extend(found.iter().flat_map(|extent| extent.range.start()..extent.range.end()));
            next
        });
        walk(&mut |from| {
            let (found, next) = self.layers.frozen_from(from, 2);
            cut.extend(found.iter().flat_map(|extent| extent.range.start()..extent.range.end()));
            next
        });
        for number in 0..SEGMENTS {
            walk(&mut |from| {
                let (found, next) = self.layers.extents_in(|place| place == number, from, 2);
                placed += found.iter().map(|extent| extent.range.count()).sum::<u64>();
                next
            });
        }
        let everything = SectorRange::new(0, SECTORS as u64).unwrap();
        let mut expected = Vec::new();
        self.layers.lookup(everything, |piece| {
            if piece.backing.is_some() && piece.seq > self.layers.stored() {
                expected.extend(piece.range.start()..piece.range.end());
            }
        });
        // While a cut is thawed, some extents newer than what is stored are clean already.
        let is_thawing = self.cuts.front().is_some_and(|cut| *cut == self.stored);
        assert!(is_thawing || dirty == expected, "{dirty:?} {expected:?}");
        let mut expected = Vec::new();
        self.layers.lookup_frozen(everything, |piece| {
            if piece.backing.is_some() {
                expected.extend(piece.range.start()..piece.range.end());
            }
        });
        assert_eq!(cut, expected);
        let layers = [&self.layers.active, &self.layers.clean].into_iter();
        let all = layers.chain(self.layers.frozen.iter().map(|cut| &cut.index));
        let expected: u64 = all.flat_map(|layer| layer.iter()).map(|extent| extent.range.count()).sum();
        assert_eq!(placed, expected);
    }

    fn check_newest(&self) {
        let everything = SectorRange::new(0, SECTORS as u64).unwrap();
        let mut next = 0;
        self.layers.lookup(everything, |piece| {
            assert_eq!(piece.range.start(), next, "pieces leave no gap");
            next = piece.range.end();
            for at in piece.range.start() as usize..piece.range.end() as usize {
                match piece.backing {
                    Some(_) => assert_eq!(piece.seq.0, self.newest[at], "sector {at}"),
                    None => assert_eq!(self.stored[at], self.newest[at], "sector {at} is only in the store"),
                }
            }
        });
        assert_eq!(next, SECTORS as u64);
    }
}

proptest! {
    #[test]
    fn whatever_is_cut_written_back_moved_and_forgotten_a_reader_finds_the_newest_write(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.apply(step);
            pair.check();
        }
        pair.layers.clear(&pair.table).forget(&pair.table);
        for (number, info) in pair.table.iter() {
            prop_assert_eq!((info.extents(), info.dirty_extents(), info.live_sectors()), (0, 0, 0), "segment {}", number);
        }
    }
}

#[test]
fn what_moves_while_a_cut_is_thawed_does_not_hide_what_is_newer() {
    let table = SegmentTable::new(SEGMENTS, SEGMENTS, [0; 16], 64);
    (0..SEGMENTS).for_each(|number| table.get(number).begin_use(u64::from(number) + 1, 1));
    let mut layers = Layers::default();
    let extent = |count, seq, number| Extent {
        range: SectorRange::new(0, count).unwrap(),
        seq: Seq(seq),
        backing: Backing::Data { number, sector: 8 },
    };
    layers.insert(&table, None, extent(8, 1, 1));
    layers.insert(&table, None, extent(4, 2, 2));
    layers.freeze(Frozen { last: Seq(2), ..Frozen::default() });
    assert!(!layers.thaw_some(&table, 1).0, "half of the cut is left");
    layers.relocate(&table, extent(8, 1, 3), 1, 8);
    let mut found = Vec::new();
    layers.lookup(SectorRange::new(0, 8).unwrap(), |piece| {
        found.push((piece.range.count(), piece.seq.0, piece.backing.map(Backing::number)));
    });
    assert_eq!(found, [(4, 2, Some(2)), (4, 1, Some(3))]);
}
