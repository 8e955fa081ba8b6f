//! Zeroes: what is recorded, what a replay of the records finds, and how long the lock is held.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests panic, and their numbers are small"
)]

use proptest::prelude::*;

use super::*;
use crate::cache::volume::hold::{self, EXTENTS_MAX};
use crate::units::ExportId;

const PLACE: Place = Place { number: 0, segment_id: 1, end: 9 };

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn table() -> SegmentTable {
    let table = SegmentTable::new(2, 2, [0; 16], 64);
    table.get(0).begin_use(1, 1);
    table
}

fn data(range: SectorRange, seq: Seq) -> Extent {
    Extent { range, seq, backing: Backing::Data { number: 0, sector: (seq.0 % (1 << 20)) as u32 * 1024 } }
}

fn write(table: &SegmentTable, volume: &Volume, range: SectorRange) {
    let seq = volume.next_seqs(1).unwrap();
    volume.appended(table, (seq, 1), [data(range, seq)].into_iter(), PLACE).unwrap();
}

/// Returns whether a record was needed.
fn zero(table: &SegmentTable, volume: &Volume, range: SectorRange) -> bool {
    let Zeroing::Record(first, range) = volume.begin_zeroes(range, false, EXTENTS_MAX).unwrap().0 else {
        return false;
    };
    let mut carving = Carving::new(first, range, PLACE);
    while !volume.carve_some(table, &mut carving, EXTENTS_MAX).unwrap().1 {}
    true
}

#[test]
fn a_guest_that_discards_alternate_sectors_of_an_unwritten_volume_does_not_grow_the_index() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    for at in 0..10_000 {
        assert!(!zero(&table, &volume, range(at * 2, 1)));
    }
    assert_eq!((volume.figures().extents, volume.figures().last_seq), (0, Seq(0)));
}

#[test]
fn discards_of_alternate_sectors_of_data_leave_an_extent_for_each_piece_of_data_and_one_between() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let blocks = 500;
    (0..blocks).for_each(|block| write(&table, &volume, range(block * 8, 8)));
    for at in 0..blocks * 4 {
        assert!(zero(&table, &volume, range(at * 2, 1)));
        assert!(!zero(&table, &volume, range(at * 2, 1)), "the same sector again costs nothing");
    }
    assert_eq!(volume.figures().extents, blocks * 8);
    for at in 0..blocks * 4 {
        assert!(zero(&table, &volume, range(at * 2 + 1, 1)));
    }
    assert_eq!(volume.figures().extents, 1, "zeroes grow together");
}

#[test]
fn discards_one_after_another_leave_one_extent_wherever_they_begin() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let blocks = 5_000;
    (0..blocks).for_each(|block| write(&table, &volume, range(block * 8, 8)));
    (0..blocks / 2).for_each(|block| assert!(zero(&table, &volume, range(block * 8, 8))));
    assert_eq!(volume.figures().extents, 1 + blocks / 2);
    (blocks / 2..blocks).rev().for_each(|block| assert!(zero(&table, &volume, range(block * 8, 8))));
    assert_eq!(volume.figures().extents, 1);
}

#[test]
fn zeroes_do_not_grow_over_sectors_that_a_write_under_way_may_have() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    write(&table, &volume, range(0, 16));
    assert!(zero(&table, &volume, range(0, 8)));
    let late = volume.next_seqs(1).unwrap();
    assert!(zero(&table, &volume, range(8, 8)));
    volume.appended(&table, (late, 1), [data(range(0, 8), late)].into_iter(), PLACE).unwrap();
    let mut plan = Vec::new();
    volume.plan(&table, range(0, 8), &mut plan);
    assert_eq!(plan[0].seq, late);
}

#[test]
fn where_a_failed_record_may_be_on_disk_zeroes_are_recorded() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let seq = volume.next_seqs(1).unwrap();
    volume.failed(seq, 1, WriteKind::Data);
    assert!(zero(&table, &volume, range(0, 8)));
    assert_eq!(volume.figures().extents, 1);
}

#[test]
fn a_removed_volume_takes_no_zeroes() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    volume.remove(&table).forget(&table);
    assert_eq!(volume.begin_zeroes(range(0, 8), false, EXTENTS_MAX), Err(IoError::Removed(ExportId(1))));
}

/// Makes the first cut clean, as if the store had the cut.
fn thaw(table: &SegmentTable, volume: &Volume) {
    loop {
        let (is_last, dead) = volume.thaw_some(table, EXTENTS_MAX);
        dead.forget(table);
        if is_last {
            break;
        }
    }
}

#[test]
fn no_hold_of_the_lock_touches_more_than_a_bounded_number_of_extents() {
    // A search touches an extent once or twice before the change does.
    const BOUND: usize = 4 * EXTENTS_MAX;
    let blocks = 40_000;
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let fill = || (0..blocks).for_each(|block| write(&table, &volume, range(block * 8, 8)));
    let check = |kind: &str| {
        let most = hold::take_most();
        assert!((1..=BOUND).contains(&most), "{kind}: {most}");
    };
    fill();
    check("write");
    volume.cut_now();
    assert_eq!(volume.cut_extents().len() as u64, blocks);
    check("cut");
    fill();
    while !volume.undo_some(&table, EXTENTS_MAX) {}
    check("undo");
    volume.cut_now();
    thaw(&table, &volume);
    check("thaw");
    assert_eq!(volume.extents_in(0).len() as u64, blocks);
    check("the extents of a segment");
    fill();
    assert_eq!(volume.dirty().1.len() as u64, blocks);
    check("all dirty data");
    assert!(zero(&table, &volume, range(0, blocks * 8)));
    check("discard of everything");
    volume.cut_now();
    thaw(&table, &volume);
    check("thaw of one extent over many");
    let stored = volume.figures().stored;
    volume.dirty_parts(range(0, blocks * 8), stored, 0, |part| panic!("{part:?} is in the store"));
    volume.evict(&table, range(0, blocks * 8), stored, 0);
    check("evict");
    fill();
    volume.remove(&table).forget(&table);
    check("delete");
    assert_eq!((table.get(0).extents(), table.get(0).live_sectors()), (0, 0));
}

#[test]
fn dirty_data_above_many_cuts_is_looked_for_a_bounded_number_of_searches_at_a_time() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let (cuts, blocks) = (32, 4_000);
    for cut in 0..cuts {
        write(&table, &volume, range((1 << 30) + cut * 8, 8));
        volume.cut_once_more();
    }
    (0..blocks).for_each(|block| write(&table, &volume, range(block * 16, 8)));
    hold::take_most();
    assert_eq!(volume.dirty().1.len() as u64, cuts + blocks);
    let most = hold::take_most();
    assert!((1..=4 * EXTENTS_MAX).contains(&most), "{most}");
}

const SECTORS: usize = 48;

#[derive(Clone, Debug)]
enum Step {
    /// A write, or zeroes with so many extents to look at.
    Begin {
        start: u64,
        count: u64,
        looks: Option<usize>,
    },
    Land(usize),
    Fail(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40u64, 1..8u64, prop::option::of(prop_oneof![0..12usize, Just(EXTENTS_MAX)]))
            .prop_map(|(start, count, looks)| Step::Begin { start, count, looks }),
        5 => any::<usize>().prop_map(Step::Land),
        1 => any::<usize>().prop_map(Step::Fail),
    ]
}

/// A request under way: the sectors asked for, and the record.
#[derive(Clone, Debug)]
struct Request {
    asked: SectorRange,
    recorded: Extent,
}

/// The content of a sector as far as a guest knows: unknown where requests for the sector were under way at the same time, or one
/// failed.
type Known = Option<u64>;

fn content(table: &SegmentTable, volume: &Volume) -> Vec<u64> {
    let mut plan = Vec::new();
    volume.plan(table, range(0, SECTORS as u64), &mut plan);
    let seq_of = |piece: &Piece| match piece.backing {
        Some(Backing::Data { .. }) => piece.seq.0,
        _ => 0,
    };
    plan.iter().flat_map(|piece| vec![seq_of(piece); piece.range.count() as usize]).collect()
}

proptest! {
    #[test]
    fn readers_and_a_replay_of_the_records_find_what_was_acknowledged_last(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let (table, volume) = (table(), Volume::new(ExportId(1)));
        let mut known: Vec<Known> = vec![Some(0); SECTORS];
        let mut under_way: Vec<Request> = Vec::new();
        let mut log: Vec<Extent> = Vec::new();
        let sectors = |range: SectorRange| range.start() as usize..range.end() as usize;
        for step in steps {
            match step {
                Step::Begin { start, count, looks } => {
                    let asked = range(start, count);
                    let overlaps = |other: &Request| {
                        other.asked.start() < asked.end() && asked.start() < other.asked.end()
                    };
                    // Requests for the same sectors at the same time have no order.
                    if under_way.iter().any(overlaps) {
                        continue;
                    }
                    let recorded = if let Some(looks) = looks {
                        match volume.begin_zeroes(asked, false, looks).unwrap().0 {
                            Zeroing::Nothing => {
                                known[sectors(asked)].fill(Some(0));
                                None
                            }
                            Zeroing::Record(seq, range) => {
                                Some(Extent { range, seq, backing: Backing::Zero { number: 0 } })
                            }
                        }
                    } else {
                        Some(data(asked, volume.next_seqs(1).unwrap()))
                    };
                    under_way.extend(recorded.map(|recorded| Request { asked, recorded }));
                }
                Step::Land(at) if !under_way.is_empty() => {
                    let Request { asked, recorded } = under_way.swap_remove(at % under_way.len());
                    log.push(recorded);
                    let content = if let Backing::Zero { .. } = recorded.backing {
                        let mut carving = Carving::new(recorded.seq, recorded.range, PLACE);
                        while !volume.carve_some(&table, &mut carving, 1).unwrap().1 {}
                        0
                    } else {
                        let extents = [recorded].into_iter();
                        volume.appended(&table, (recorded.seq, 1), extents, PLACE).unwrap();
                        recorded.seq.0
                    };
                    known[sectors(asked)].fill(Some(content));
                }
                Step::Fail(at) if !under_way.is_empty() => {
                    let Request { asked, recorded } = under_way.swap_remove(at % under_way.len());
                    let kind = match recorded.backing {
                        Backing::Zero { .. } => WriteKind::Zeroes,
                        _ => WriteKind::Data,
                    };
                    volume.failed(recorded.seq, 1, kind);
                    // The record is on disk, and recovery finds the record.
                    log.push(recorded);
                    known[sectors(asked)].fill(None);
                }
                Step::Land(_) | Step::Fail(_) => {}
            }
            let replayed = Volume::new(ExportId(1));
            for extent in &log {
                replayed.recovered(&table, *extent);
            }
            let (here, there) = (content(&table, &volume), content(&table, &replayed));
            for (at, known) in known.iter().enumerate() {
                if let Some(known) = known {
                    prop_assert_eq!((at, here[at], there[at]), (at, *known, *known));
                }
            }
        }
    }
}
