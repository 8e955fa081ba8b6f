//! Which segments nobody needs any more, and what must be stable before one of them is used again.
//!
//! Owns the order in which the table is looked at. Does not own the syncs, nor what becomes of the segments (`keeper`). Invariant: what
//! replaced the last extent of a listed segment, or something newer, lies before one of the places, or is stable.

use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::table::{Place, SegmentTable};

/// Segments nobody needs, and the places to become stable before the segments may be used again.
#[derive(Debug)]
pub(super) struct Barrier {
    pub unneeded: Vec<u32>,
    pub needs: Vec<Place>,
}

impl Barrier {
    /// The barrier as of now. `None` if nothing is unneeded, and while a segment that cannot become stable has data.
    pub fn raise(table: &SegmentTable) -> Option<Self> {
        Self::raise_beside(table, |_| ())
    }

    /// As [`Self::raise`]; calls `looked` after each look at the end of a segment, with the segment's number: tests append then.
    fn raise_beside(table: &SegmentTable, mut looked: impl FnMut(u32)) -> Option<Self> {
        // In this order, as workers append meanwhile: first what is unneeded, then that poisoned segments have no data, and the ends of
        // the appends last. So what replaced the last extents of either lies before these ends.
        let unneeded = numbers(table, |info| is_done(info) && info.is_unneeded());
        if unneeded.is_empty() {
            return None;
        }
        let poisoned = numbers(table, SegmentInfo::is_poisoned);
        if poisoned.iter().any(|number| table.get(*number).extents() > 0) {
            return None;
        }
        let mut needs = Vec::new();
        for (number, info) in table.iter() {
            if info.is_poisoned() {
                // One poisoned since the first look may have had the data that replaced an extent, and may have lost this data to a
                // segment whose end was read before.
                if info.extents() > 0 || poisoned.binary_search(&number).is_err() {
                    return None;
                }
            } else if matches!(info.state(), State::Open | State::Closed) && info.synced() < info.appended() {
                needs.push(Place { number, segment_id: info.segment_id(), end: info.appended() });
            }
            looked(number);
        }
        Some(Self { unneeded, needs })
    }
}

/// The numbers of the segments that `is` is true for, in ascending order.
fn numbers(table: &SegmentTable, is: impl Fn(&SegmentInfo) -> bool) -> Vec<u32> {
    table.iter().filter(|(_, info)| is(info)).map(|(number, _)| number).collect()
}

/// Whether nobody appends to the segment any more.
fn is_done(info: &SegmentInfo) -> bool {
    match info.state() {
        State::Sealed => true,
        State::Closed => info.is_poisoned(),
        State::Free | State::Open | State::Quarantined => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::log::table::Refs;

    const OPEN: u32 = 0;
    const CLOSED: u32 = 1;
    const UNNEEDED: u32 = 2;

    /// A segment that is appended to, one that is closed and has an extent, and one that is sealed and nobody needs. All is stable.
    fn table() -> SegmentTable {
        let table = SegmentTable::new(3, 3, [0; 16], 64);
        let lives: [&[State]; 3] =
            [&[State::Open], &[State::Open, State::Closed], &[State::Open, State::Closed, State::Sealed]];
        for (number, life) in (0..).zip(lives) {
            table.get(number).begin_use(u64::from(number) + 10, 10);
            for state in life {
                table.get(number).enter(*state);
            }
        }
        table.count_refs(Refs { number: CLOSED, extents: 1, sectors: 8 });
        table
    }

    /// A write to the open segment takes the place of the extent in the closed one.
    fn replace(table: &SegmentTable) {
        table.get(OPEN).set_appended(12);
        table.count_refs(Refs { number: OPEN, extents: 1, sectors: 8 });
        table.count_refs(Refs { number: CLOSED, extents: -1, sectors: -8 });
    }

    #[test]
    fn an_unneeded_segment_waits_for_what_was_appended_before() {
        let table = table();
        let barrier = Barrier::raise(&table).unwrap();
        assert_eq!((&barrier.unneeded[..], &barrier.needs[..]), (&[UNNEEDED][..], &[][..]));
        replace(&table);
        let barrier = Barrier::raise(&table).unwrap();
        assert_eq!(barrier.needs, [Place { number: OPEN, segment_id: 10, end: 12 }]);
        assert_eq!(
            barrier.unneeded,
            [UNNEEDED],
            "the closed segment has no data, but is neither sealed nor poisoned"
        );
    }

    #[test]
    fn nothing_is_used_again_while_a_segment_that_cannot_become_stable_has_data() {
        let table = table();
        table.get(CLOSED).poison();
        assert!(Barrier::raise(&table).is_none());
        replace(&table);
        let barrier = Barrier::raise(&table).unwrap();
        assert_eq!(barrier.unneeded, [CLOSED, UNNEEDED]);
        assert_eq!(barrier.needs, [Place { number: OPEN, segment_id: 10, end: 12 }]);
    }

    /// The data of the closed segment is what replaced the flushed data in the unneeded one. Were the unneeded segment used again, a power
    /// cut would leave neither, nor what replaced the data in the closed segment.
    #[test]
    fn data_that_leaves_a_segment_that_cannot_become_stable_meanwhile_counts_as_there() {
        let needs_if = |is_poisoned_before: bool| {
            let table = table();
            if is_poisoned_before {
                table.get(CLOSED).poison();
            }
            let raised = Barrier::raise_beside(&table, |number| {
                if number == OPEN {
                    table.get(CLOSED).poison();
                    replace(&table);
                }
            });
            raised.map(|barrier| barrier.needs)
        };
        assert_eq!(needs_if(true), None);
        assert_eq!(needs_if(false), None);
    }
}
