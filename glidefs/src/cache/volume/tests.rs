//! A volume: what it counts, plans, flushes and recovers.

use super::*;
use crate::units::SECTOR_BYTES;

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn data(start: u64, count: u64, seq: u64, sector: u32) -> Extent {
    Extent { range: range(start, count), seq: Seq(seq), backing: Backing::Data { slot: 0, sector } }
}

fn slots() -> Slots {
    let slots = Slots::new(2, 2, [0; 16], 64);
    slots.get(0).begin_use(1, 1);
    slots.get(1).begin_use(2, 1);
    slots
}

impl Volume {
    /// Appends extents whose numbers were not given out.
    fn append<const N: usize>(
        &self,
        slots: &Slots,
        extents: [Extent; N],
        place: Place,
    ) -> Result<(), IoError> {
        let first = extents[0].seq;
        self.appended(slots, (first, N as u64), extents.into_iter(), place)
    }
}

const PLACE: Place = Place { slot: 0, segment_id: 1, end: 9 };

#[test]
fn a_slot_counts_the_sectors_and_extents_that_refer_to_it() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    volume.append(&slots, [data(0, 16, 1, 16)], PLACE).unwrap();
    volume.append(&slots, [data(4, 4, 2, 40)], PLACE).unwrap();
    assert_eq!((slots.get(0).extents(), slots.get(0).live_sectors()), (3, 16));
    let moved = Extent { backing: Backing::Data { slot: 1, sector: 8 }, ..data(0, 16, 1, 0) };
    volume.relocated(&slots, moved, 0);
    assert_eq!((slots.get(0).live_sectors(), slots.get(1).live_sectors()), (4, 12));
    volume.remove(&slots);
    assert_eq!((slots.get(0).extents(), slots.get(0).live_sectors()), (0, 0));
    assert_eq!((slots.get(1).extents(), slots.get(1).live_sectors()), (0, 0));
}

#[test]
fn a_removed_volume_takes_no_data_back() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    volume.remove(&slots);
    let appended = volume.append(&slots, [data(0, 8, 1, 16)], PLACE);
    assert_eq!(appended, Err(IoError::Removed(ExportId(1))));
    volume.relocated(&slots, data(0, 8, 1, 16), 1);
    assert_eq!(volume.figures(), VolumeFigures::default());
}

#[test]
fn pieces_that_continue_each_other_are_read_as_one_with_one_pin() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    volume.append(&slots, [data(0, 8, 1, 16), data(8, 8, 2, 24)], PLACE).unwrap();
    let mut plan = Vec::new();
    volume.plan(&slots, range(0, 16), &mut plan);
    assert_eq!(plan.len(), 1);
    assert_eq!(plan[0].range, range(0, 16));
    slots.get(0).unpin();
    assert!(!slots.get(0).is_pinned());
}

#[test]
fn a_flush_needs_only_what_is_not_stable_and_fails_when_that_is_lost() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    let mut needs = Vec::new();
    volume.append(&slots, [data(0, 8, 1, 16)], PLACE).unwrap();
    volume.unsynced(&slots, &mut needs).unwrap();
    assert_eq!(needs, [PLACE]);
    assert!(slots.get(0).begin_sync());
    slots.get(0).end_sync(9, true);
    needs.clear();
    volume.unsynced(&slots, &mut needs).unwrap();
    assert_eq!(needs, []);
    volume.append(&slots, [data(0, 8, 2, 16)], Place { end: 12, ..PLACE }).unwrap();
    slots.get(0).poison();
    assert_eq!(volume.unsynced(&slots, &mut needs), Err(IoError::Sync));
}

#[test]
fn a_cut_is_complete_when_every_write_that_began_before_it_has_landed() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    let (first, second, third) = (volume.next_seqs(1), volume.next_seqs(1), volume.next_seqs(1));
    let appended = |seq: Seq| {
        let extents = [data(seq.0 * 8, 8, seq.0, 16)];
        volume.appended(&slots, (seq, 1), extents.into_iter(), PLACE).unwrap();
    };
    appended(third);
    volume.cut_at_flush();
    assert_eq!(volume.cut_state(), CutState::None);
    volume.flush(&slots, &mut Vec::new()).unwrap();
    assert_eq!(volume.cut_state(), CutState::Landing);
    let later = volume.next_seqs(1);
    appended(later);
    volume.failed(first, 1);
    assert_eq!(volume.cut_state(), CutState::Landing);
    appended(second);
    assert_eq!(volume.cut_state(), CutState::Complete(third));
    let seqs: Vec<Seq> = volume.cut_extents().iter().map(|extent| extent.seq).collect();
    assert_eq!(seqs, [second, third], "what came later is not in it");
    assert!(volume.thaw_some(&slots, 8));
    let figures = volume.figures();
    assert_eq!((figures.flushed, figures.last_seq), (third, later));
    assert_eq!((figures.dirty_bytes, figures.clean_bytes), (4096, 8192));
}

#[test]
fn recovery_takes_for_clean_what_was_flushed_and_leaves_out_what_was_evicted() {
    let marks = Marks { flushed: Seq(20), evicted: Seq(10) };
    let (slots, volume) = (slots(), Volume::at(ExportId(1), marks));
    assert!(!volume.recovered(&slots, data(0, 8, 10, 16)));
    assert!(volume.recovered(&slots, data(8, 8, 11, 24)));
    assert!(volume.recovered(&slots, data(16, 8, 21, 32)));
    let figures = volume.figures();
    assert_eq!((figures.dirty_bytes, figures.clean_bytes), (4096, 4096));
    assert_eq!(volume.missing(range(0, 32)), [range(0, 8), range(24, 8)]);
    assert_eq!(volume.next_seqs(1), Seq(22));
}

#[test]
fn cuts_that_wait_are_carried_in_order_each_with_what_was_written_before_the_next() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    let write = |start| {
        let seq = volume.next_seqs(1);
        volume.append(&slots, [data(start, 8, seq.0, 16)], PLACE).unwrap();
        seq
    };
    let first = write(0);
    volume.cut_now();
    // One write began before the second cut, and ends after it.
    let (late, second) = (volume.next_seqs(1), write(0));
    volume.lock().freeze();
    let third = write(8);
    assert_eq!(volume.cut_state(), CutState::Complete(first));
    assert_eq!(volume.cut_extents().len(), 1);
    assert!(volume.thaw_some(&slots, 8));
    assert_eq!((volume.cut_state(), volume.figures().flushed), (CutState::Landing, first));
    volume.failed(late, 1);
    assert_eq!(volume.cut_state(), CutState::Complete(second));
    assert_eq!(volume.failed_in_cuts(), late);
    let seqs = |volume: &Volume| volume.cut_extents().iter().map(|extent| extent.seq).collect::<Vec<_>>();
    assert_eq!(seqs(&volume), [second]);
    assert!(volume.thaw_some(&slots, 8));
    assert_eq!((volume.cut_state(), volume.figures().flushed), (CutState::None, second));
    volume.cut_now();
    assert_eq!((seqs(&volume), volume.failed_in_cuts()), (vec![third], late));
}

#[test]
fn what_is_written_again_and_again_gathers_in_one_cut_and_what_is_new_makes_another() {
    let slots = slots();
    // New sectors, or the sectors of the cut.
    for (start, again) in [(1000, false), (0, true)] {
        let volume = Volume::new(ExportId(1));
        let write = |start| {
            let seq = volume.next_seqs(1);
            volume.append(&slots, [data(start, 1, seq.0, 16)], PLACE).unwrap();
        };
        (0..100).for_each(write);
        volume.cut_now();
        let bytes = 99 * SECTOR_BYTES;
        assert!(!volume.lock().has_enough_for_another_cut(bytes));
        (start..start + 100).for_each(write);
        assert_eq!(volume.lock().has_enough_for_another_cut(bytes), !again);
        assert!(!volume.lock().has_enough_for_another_cut(101 * SECTOR_BYTES), "{again}");
    }
}

#[test]
fn there_is_a_bound_on_the_cuts_of_a_volume() {
    let (slots, volume) = (slots(), Volume::new(ExportId(1)));
    for at in 0..100 {
        let seq = volume.next_seqs(1);
        volume.append(&slots, [data(at, 1, seq.0, 16)], PLACE).unwrap();
        if at == 0 || volume.lock().has_enough_for_another_cut(1) {
            volume.lock().freeze();
        }
    }
    assert_eq!(volume.figures().cuts, CUTS_MAX);
}
