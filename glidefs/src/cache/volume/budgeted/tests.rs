//! The index of a volume at its bound: requests that the volume lets go on leave the index within the bound, in any order.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use proptest::prelude::*;

use super::super::budget::Budgets;
use super::*;
use crate::cache::log::table::Place;
use crate::cache::volume::extent::{Backing, Extent};
use crate::units::ExportId;

const PLACE: Place = Place { number: 0, segment_id: 1, end: 9 };
const MAX: u64 = 16 << 10;

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

struct Full {
    volume: Volume,
    table: SegmentTable,
}

impl Full {
    /// A volume without a store, with an extent in every second sector, and no memory for more.
    fn new(fails: bool) -> Self {
        let table = SegmentTable::new(2, 2, [0; 16], 64);
        table.get(0).begin_use(1, 1);
        let budgets = Budgets { index_bytes_max_per_export: MAX, ..Budgets::default() };
        let full = Self { volume: Volume::new(ExportId(1)), table };
        full.volume.join(&Arc::new(Budget::new(budgets, u64::MAX, fails)));
        for sector in (0..32_000).step_by(2) {
            match full.volume.index_pace(range(sector, 1), Content::Data, true) {
                (Pace::Go, kept) => full.land(range(sector, 1), kept),
                _ => return full,
            }
        }
        panic!("the index takes everything");
    }

    fn land(&self, range: SectorRange, kept: Option<SectorRange>) {
        let seq = self.volume.next_seqs(1).unwrap();
        let sector = u32::try_from(seq.0 % (1 << 20)).unwrap() * 1024;
        let extent = Extent { range, seq, backing: Backing::Data { number: 0, sector } };
        self.volume.appended(&self.table, (seq, 1), [extent].into_iter(), PLACE).unwrap();
        if let Some(kept) = kept {
            self.volume.give_back(kept);
        }
    }

    fn extents(&self) -> u64 {
        self.volume.figures().extents
    }
}

#[test]
fn two_writes_at_once_never_count_on_the_same_extent_to_replace() {
    let full = Full::new(false);
    let before = full.extents();
    for at in (0..200).step_by(2) {
        let writes = [range(at, 2), range(at, 1)];
        let answers = writes.map(|range| full.volume.index_pace(range, Content::Data, true));
        assert_eq!(answers.map(|(pace, _)| pace), [Pace::Go, Pace::Wait]);
        for (range, (pace, kept)) in writes.into_iter().zip(answers) {
            if pace == Pace::Go {
                full.land(range, kept);
            }
        }
    }
    assert_eq!(full.extents(), before);
}

#[test]
fn a_write_that_meets_one_under_way_waits_for_the_other_also_where_a_full_index_fails_writes() {
    let full = Full::new(true);
    assert_eq!(full.volume.index_pace(range(1, 1), Content::Data, true), (Pace::Full, None));
    let (pace, kept) = full.volume.index_pace(range(0, 1), Content::Data, true);
    assert_eq!(pace, Pace::Go);
    assert_eq!(full.volume.index_pace(range(0, 3), Content::Data, true), (Pace::Wait, None));
    assert_eq!(
        full.volume.index_pace(range(2, 1), Content::Data, true).0,
        Pace::Go,
        "the sectors are others"
    );
    full.land(range(0, 1), kept);
    assert_eq!(full.volume.index_pace(range(0, 1), Content::Data, true).0, Pace::Go);
}

proptest! {
    #[test]
    fn rounds_of_writes_at_once_leave_a_full_index_no_larger(
        rounds in prop::collection::vec(prop::collection::vec((0..60_u64, 1..6_u64, any::<bool>()), 1..6), 1..200),
    ) {
        let full = Full::new(false);
        let before = full.extents();
        for round in rounds {
            let mut going = Vec::new();
            for (start, count, is_first) in round {
                if let (Pace::Go, kept) = full.volume.index_pace(range(start, count), Content::Data, true) {
                    going.insert(if is_first { 0 } else { going.len() }, (range(start, count), kept));
                }
            }
            for (range, kept) in going {
                full.land(range, kept);
            }
            // Fewer extents make room, which writes at once may each take.
            prop_assert!(full.volume.usage(Resource::Index).bytes <= MAX + 5 * 1024, "{} extents of {before}", full.extents());
        }
    }
}
