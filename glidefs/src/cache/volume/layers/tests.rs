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
                self.layers.insert(&self.table, extent);
                self.log.push(extent);
                self.newest[start as usize..(start + count) as usize].fill(self.last_seq);
            }
            Step::Freeze => {
                if Seq(self.last_seq) > self.layers.cut() {
                    self.layers.freeze(Frozen::at(Seq(self.last_seq)));
                    self.cuts.push_back(self.newest);
                }
            }
            Step::Thaw(count) => {
                // The store has the cut from the first move on.
                if let Some(cut) = self.cuts.front() {
                    self.stored = *cut;
                    if self.layers.thaw_some(&self.table, count) {
                        self.cuts.pop_front();
                    }
                }
            }
            Step::Undo => {
                if self.cuts.front().is_some_and(|cut| self.stored != *cut) {
                    self.layers.undo(&self.table);
                    self.cuts.pop_front();
                }
            }
            Step::Look(from) => {
                self.seen = (Vec::new(), from);
                for extent in &self.log {
                    let mut parts: Vec<SectorRange> = Vec::new();
                    self.layers.dirty_parts(extent.range, extent.seq, from, |part| parts.push(part));
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
                    self.layers.relocate(&self.table, Extent { backing, ..extent }, from);
                    self.layers
                        .dirty_parts(extent.range, extent.seq, from, |part| panic!("{part:?} has not moved"));
                }
            }
            Step::Evict(number) => {
                // The cleaner forgets after moving.
                self.seen.0.clear();
                for extent in &self.log {
                    if !self.layers.is_clean(extent.seq) {
                        continue;
                    }
                    self.layers.evict(&self.table, extent.range, extent.seq, number);
                }
                let number = self.table.get(number);
                // While the extents of a cut become clean, some clean extents may not be forgotten yet.
                let forgotten = number.extents() == number.dirty_extents();
                assert!(forgotten || !self.cuts.is_empty(), "all that is clean is forgotten");
            }
        }
    }

    fn check(&self) {
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
        pair.layers.clear(&pair.table);
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
    layers.insert(&table, extent(8, 1, 1));
    layers.insert(&table, extent(4, 2, 2));
    layers.freeze(Frozen::at(Seq(2)));
    assert!(!layers.thaw_some(&table, 1), "half of the cut is left");
    layers.relocate(&table, extent(8, 1, 3), 1);
    let mut found = Vec::new();
    layers.lookup(SectorRange::new(0, 8).unwrap(), |piece| {
        found.push((piece.range.count(), piece.seq.0, piece.backing.map(Backing::number)));
    });
    assert_eq!(found, [(4, 2, Some(2)), (4, 1, Some(3))]);
}
