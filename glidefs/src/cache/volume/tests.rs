//! A volume: figures, plans, FLUSHes, cuts and recovery.

use super::appends::WriteKind;
use super::cuts::{CUTS_MAX, CutState};
use super::*;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent};
use crate::units::{SECTOR_BYTES, SectorRange};

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn data(start: u64, count: u64, seq: u64, sector: u32) -> Extent {
    Extent { range: range(start, count), seq: Seq(seq), backing: Backing::Data { number: 0, sector } }
}

fn table() -> SegmentTable {
    let table = SegmentTable::new(2, 2, [0; 16], 64);
    table.get(0).begin_use(1, 1);
    table.get(1).begin_use(2, 1);
    table
}

impl Volume {
    /// Appends extents, and gives out the sequence numbers of the extents beforehand where the test has not.
    fn append<const N: usize>(
        &self,
        table: &SegmentTable,
        extents: [Extent; N],
        place: Place,
    ) -> Result<(), IoError> {
        let first = extents[0].seq;
        let given_out = self.figures().last_seq;
        if first > given_out {
            self.next_seqs(first.0 - given_out.0 + N as u64 - 1).unwrap();
        }
        self.appended(table, (first, N as u64), extents.into_iter(), place)
    }
}

const PLACE: Place = Place { number: 0, segment_id: 1, end: 9 };

#[test]
fn a_volume_counts_as_blank_only_with_nothing_but_its_position_in_the_store() {
    let marks = |stored, evicted| SeqMarks { stored: Seq(stored), evicted: Seq(evicted) };
    assert!(Volume::new(ExportId(1)).is_blank_at(Seq(0)));
    assert!(Volume::at(ExportId(1), marks(7, 7)).is_blank_at(Seq(7)));
    assert!(!Volume::at(ExportId(1), marks(7, 0)).is_blank_at(Seq(6)));
    // Numbers up to 9 may be on the disk, and must not be given out again.
    assert!(!Volume::at(ExportId(1), marks(7, 9)).is_blank_at(Seq(7)));
    let table = table();
    let written = Volume::at(ExportId(1), marks(7, 7));
    assert!(written.recovered(&table, data(0, 8, 9, 1)));
    assert!(!written.is_blank_at(Seq(7)));
    let seen = Volume::at(ExportId(1), marks(7, 7));
    assert!(!seen.recovered(&table, data(0, 8, 6, 1)), "newer data may have left the log");
    assert!(seen.is_blank_at(Seq(7)));
    let doubted = Volume::at(ExportId(1), marks(7, 7));
    let doubt = Extent { range: range(3, 1), seq: Seq(5), backing: Backing::Doubt { number: 0 } };
    doubted.recovered(&table, doubt);
    assert!(!doubted.is_blank_at(Seq(7)), "the log goes on saying which damage was found");
}

#[test]
fn a_segment_counts_the_sectors_and_extents_that_refer_to_it() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    volume.append(&table, [data(0, 16, 1, 16)], PLACE).unwrap();
    volume.append(&table, [data(4, 4, 2, 40)], PLACE).unwrap();
    assert_eq!((table.get(0).extents(), table.get(0).live_sectors()), (3, 16));
    let moved = Extent { backing: Backing::Data { number: 1, sector: 8 }, ..data(0, 16, 1, 0) };
    volume.relocated(&table, moved, 0);
    assert_eq!((table.get(0).live_sectors(), table.get(1).live_sectors()), (4, 12));
    volume.remove(&table).forget(&table);
    assert_eq!((table.get(0).extents(), table.get(0).live_sectors()), (0, 0));
    assert_eq!((table.get(1).extents(), table.get(1).live_sectors()), (0, 0));
}

#[test]
fn a_removed_volume_takes_no_data_back() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    volume.remove(&table).forget(&table);
    let appended = volume.appended(&table, (Seq(1), 1), [data(0, 8, 1, 16)].into_iter(), PLACE);
    assert_eq!(appended, Err(IoError::Removed(ExportId(1))));
    volume.relocated(&table, data(0, 8, 1, 16), 1);
    assert_eq!(volume.figures(), VolumeFigures::default());
}

#[test]
fn pieces_that_continue_each_other_are_read_as_one_with_one_pin() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    volume.append(&table, [data(0, 8, 1, 16), data(8, 8, 2, 24)], PLACE).unwrap();
    let mut plan = Vec::new();
    volume.plan(&table, range(0, 16), &mut plan);
    assert_eq!(plan.len(), 1);
    assert_eq!(plan[0].range, range(0, 16));
    table.get(0).unpin();
    assert!(!table.get(0).is_pinned());
}

#[test]
fn a_flush_needs_only_what_is_not_stable_and_fails_when_that_is_lost() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let mut needs = Vec::new();
    volume.append(&table, [data(0, 8, 1, 16)], PLACE).unwrap();
    volume.unsynced(&table, &mut needs).unwrap();
    assert_eq!(needs, [PLACE]);
    table.get(0).note_sync(9, true);
    needs.clear();
    volume.unsynced(&table, &mut needs).unwrap();
    assert_eq!(needs, []);
    volume.append(&table, [data(0, 8, 2, 16)], Place { end: 12, ..PLACE }).unwrap();
    table.get(0).poison();
    assert_eq!(volume.unsynced(&table, &mut needs), Err(IoError::Sync));
}

#[test]
fn numbers_end_without_a_panic() {
    for stored in [Seq::MAX, Seq(u64::MAX)] {
        let volume = Volume::at(ExportId(1), SeqMarks { stored, evicted: Seq(0) });
        assert_eq!(volume.next_seqs(1), Err(IoError::NoSequenceNumber));
        assert_eq!(volume.begin_zeroes(range(0, 8), true, 100), Err(IoError::NoSequenceNumber));
        assert_eq!(volume.figures().last_seq, stored);
    }
    let volume = Volume::at(ExportId(1), SeqMarks { stored: Seq(Seq::MAX.0 - 2), evicted: Seq(0) });
    assert_eq!(volume.next_seqs(3), Err(IoError::NoSequenceNumber));
    assert_eq!(volume.next_seqs(2), Ok(Seq(Seq::MAX.0 - 1)));
}

#[test]
fn a_cut_is_complete_when_every_write_that_began_before_it_has_landed() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let (first, second, third) =
        (volume.next_seqs(1).unwrap(), volume.next_seqs(1).unwrap(), volume.next_seqs(1).unwrap());
    let appended = |seq: Seq| {
        let extents = [data(seq.0 * 8, 8, seq.0, 16)];
        volume.appended(&table, (seq, 1), extents.into_iter(), PLACE).unwrap();
    };
    appended(third);
    volume.cut_at_flush();
    assert_eq!(volume.cut_state(), CutState::None);
    volume.flush(&table, &mut Vec::new()).unwrap();
    assert_eq!(volume.cut_state(), CutState::Landing);
    let later = volume.next_seqs(1).unwrap();
    appended(later);
    volume.failed(first, 1, WriteKind::Data);
    assert_eq!(volume.cut_state(), CutState::Landing);
    appended(second);
    assert_eq!(volume.cut_state(), CutState::Complete(third));
    let seqs: Vec<Seq> = volume.cut_extents().iter().map(|extent| extent.seq).collect();
    assert_eq!(seqs, [second, third], "what came later is not in it");
    assert!(volume.thaw_some(&table, 8).0);
    let figures = volume.figures();
    assert_eq!((figures.stored, figures.last_seq), (third, later));
    assert_eq!((figures.dirty_bytes, figures.clean_bytes), (4096, 8192));
}

#[test]
fn recovery_takes_for_clean_what_was_written_back_and_leaves_out_what_was_evicted() {
    let marks = SeqMarks { stored: Seq(20), evicted: Seq(10) };
    let (table, volume) = (table(), Volume::at(ExportId(1), marks));
    assert!(!volume.recovered(&table, data(0, 8, 10, 16)));
    assert!(volume.recovered(&table, data(8, 8, 11, 24)));
    assert!(volume.recovered(&table, data(16, 8, 21, 32)));
    let figures = volume.figures();
    assert_eq!((figures.dirty_bytes, figures.clean_bytes), (4096, 4096));
    assert_eq!(volume.missing(range(0, 32)), [range(0, 8), range(24, 8)]);
    assert_eq!(volume.next_seqs(1).unwrap(), Seq(22));
}

#[test]
fn cuts_that_wait_are_carried_in_order_each_with_what_was_written_before_the_next() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let write = |start| {
        let seq = volume.next_seqs(1).unwrap();
        volume.append(&table, [data(start, 8, seq.0, 16)], PLACE).unwrap();
        seq
    };
    let first = write(0);
    volume.cut_now();
    // One write began before the second cut, and ends after it.
    let (late, second) = (volume.next_seqs(1).unwrap(), write(0));
    volume.lock().freeze();
    let third = write(8);
    assert_eq!(volume.cut_state(), CutState::Complete(first));
    assert_eq!(volume.cut_extents().len(), 1);
    assert!(volume.thaw_some(&table, 8).0);
    assert_eq!((volume.cut_state(), volume.figures().stored), (CutState::Landing, first));
    volume.failed(late, 1, WriteKind::Data);
    assert_eq!(volume.cut_state(), CutState::Complete(second));
    assert_eq!(volume.failed_in_cuts(), late);
    let seqs = |volume: &Volume| volume.cut_extents().iter().map(|extent| extent.seq).collect::<Vec<_>>();
    assert_eq!(seqs(&volume), [second]);
    assert!(volume.thaw_some(&table, 8).0);
    assert_eq!((volume.cut_state(), volume.figures().stored), (CutState::None, second));
    volume.cut_now();
    assert_eq!((seqs(&volume), volume.failed_in_cuts()), (vec![third], late));
}

#[test]
fn what_is_written_again_and_again_gathers_in_one_cut_and_what_is_new_makes_another() {
    const SECTORS: u64 = 100_000;
    let table = table();
    let bytes = SECTORS * SECTOR_BYTES;
    // Long writes, and a short one after each: either kind may write again the content of the cut.
    for (long_again, short_again, another) in
        [(false, false, true), (true, true, false), (true, false, false), (false, true, true)]
    {
        let volume = Volume::new(ExportId(1));
        let write = |start, count| {
            let seq = volume.next_seqs(1).unwrap();
            volume.append(&table, [data(start, count, seq.0, 16)], PLACE).unwrap();
        };
        write(0, SECTORS * 2);
        volume.cut_now();
        let mut at = 0;
        while volume.lock().layers.active_bytes() < bytes {
            assert!(!volume.lock().has_enough_for_another_cut(bytes, u64::MAX));
            write(if long_again { at } else { SECTORS * 2 + at }, 99);
            write(if short_again { at + 99 } else { SECTORS * 2 + at + 99 }, 1);
            at += 100;
        }
        let is_enough = volume.lock().has_enough_for_another_cut(bytes, u64::MAX);
        assert_eq!(is_enough, another, "{long_again} {short_again}");
        assert!(!volume.lock().has_enough_for_another_cut(bytes, 2 * bytes), "a backlog of three");
    }
}

#[test]
fn a_cut_that_is_taken_back_is_a_part_of_the_next_one() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    let write = |start| {
        let seq = volume.next_seqs(1).unwrap();
        volume.append(&table, [data(start, 8, seq.0, 16)], PLACE).unwrap();
        seq
    };
    write(0);
    write(8);
    volume.lock().freeze();
    let (over, last) = (write(0), write(16));
    volume.lock().freeze();
    let active = write(24);
    while !volume.undo_some(&table, 1) {}
    assert_eq!((volume.figures().cuts, volume.cut_state()), (1, CutState::Complete(last)));
    let found: Vec<_> =
        volume.cut_extents().iter().map(|extent| (extent.range.start(), extent.seq)).collect();
    assert_eq!(found, [(0, over), (8, Seq(2)), (16, last)]);
    while !volume.undo_some(&table, 1) {}
    assert_eq!((volume.figures().cuts, volume.cut_state()), (0, CutState::None));
    volume.cut_now();
    assert_eq!((volume.cut_extents().len(), volume.cut_state()), (4, CutState::Complete(active)));
    assert_eq!(table.get(0).extents(), 4);
}

#[test]
fn there_is_a_bound_on_the_cuts_of_a_volume() {
    let (table, volume) = (table(), Volume::new(ExportId(1)));
    for at in 0..100 {
        let seq = volume.next_seqs(1).unwrap();
        volume.append(&table, [data(at, 1, seq.0, 16)], PLACE).unwrap();
        if at == 0 || volume.lock().has_enough_for_another_cut(1, u64::MAX) {
            volume.lock().freeze();
        }
    }
    assert_eq!(volume.figures().cuts, CUTS_MAX);
}
