//! Writes whose FLUSH is expected: what is acknowledged is stable, and nobody else waits for it.

use std::sync::atomic::Ordering;

use super::*;
use crate::cache::faulty::Faulty;

/// More pairs of a WRITE and a FLUSH than make a habit.
const PAIRS: u64 = 6;
/// Sectors of 512 bytes in a frame.
const FRAME_SECTORS: u64 = 8;

fn open_through(directory: &tempfile::TempDir) -> Bed {
    let mut bed = open(directory, 16);
    bed.rig.write_through(2);
    bed
}

impl Bed {
    /// Has `export` write frames from sector `at` on, each with a FLUSH behind.
    fn make_a_habit(&mut self, export: ExportId, at: u64) {
        for pair in 0..PAIRS {
            assert!(self.write(export, at + pair * FRAME_SECTORS, &[9; FRAME_BYTES], false));
            self.settle();
            self.flush(export).unwrap();
            while self.keeper.step() {}
        }
    }

    /// Syncs so far, and appends that were stable when written.
    fn syncs_and_stable_appends(&self) -> (u64, u64) {
        (self.stats.syncs.get(), self.stats.stable_appends.get())
    }
}

#[test]
fn behind_a_write_with_an_expected_flush_the_flush_has_nothing_to_sync() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let (syncs, stable) = bed.syncs_and_stable_appends();
    for at in 0..4_u8 {
        assert!(bed.write(A, u64::from(at) * FRAME_SECTORS, &[at; FRAME_BYTES], false));
        bed.settle();
        bed.flush(A).unwrap();
    }
    assert_eq!(bed.syncs_and_stable_appends(), (syncs, stable + 4));
    drop(bed);
    let mut bed = open(&directory, 16);
    let expected: Vec<u8> = (0..4_u8).flat_map(|at| [at; FRAME_BYTES]).collect();
    assert!(bed.read(A, 0, 4 * FRAME_SECTORS).unwrap() == expected);
}

#[test]
fn without_the_habit_a_write_is_acknowledged_before_any_disk_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    // The second write without a FLUSH between ends the habit.
    for at in 0..3 {
        assert!(bed.write(A, at * FRAME_SECTORS, &[1; FRAME_BYTES], false));
        bed.settle();
    }
    let before = bed.stats.stable_appends.get();
    assert!(bed.write(A, 0, &[2; FRAME_BYTES], false));
    bed.rig.turn();
    assert_eq!(bed.completed(), [Ok(())]);
    assert_eq!(bed.stats.stable_appends.get(), before);
}

#[test]
fn a_fua_write_takes_one_trip() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    // Asks for a segment.
    assert!(bed.write(A, 0, &[1; FRAME_BYTES], true));
    bed.settle();
    while bed.keeper.step() {}
    let (syncs, stable) = bed.syncs_and_stable_appends();
    assert!(bed.write(A, FRAME_SECTORS, &[2; FRAME_BYTES], true));
    bed.rig.turn();
    assert_eq!(bed.rig.duties().len(), 1);
    assert_eq!(bed.completed(), [], "not stable yet");
    bed.settle();
    assert_eq!(bed.syncs_and_stable_appends(), (syncs, stable + 1));
}

#[test]
fn no_other_write_waits_for_one_that_is_written_through() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let held = bed.hand_out(0, 1);
    assert!(bed.write(B, 0, &[7; FRAME_BYTES], false));
    bed.rig.turn();
    assert_eq!(bed.completed(), [Ok(())]);
    let volume = bed.cache.volume(B);
    bed.rig.shard.flush(&volume, MemoryToken::without_data(FLUSH));
    bed.rig.work();
    assert_eq!(bed.completed(), [Ok(())]);
    let volume = bed.cache.volume(A);
    let token = MemoryToken::reading(READ, FRAME_BYTES);
    bed.rig.shard.read(&volume, range(0, FRAME_SECTORS), None, token);
    let read = bed.rig.completed().next().unwrap();
    assert!(read.token.data(FRAME_BYTES) == [9; FRAME_BYTES], "not acknowledged yet");
    bed.land(held);
    assert_eq!(bed.completed(), [Ok(())]);
    assert_eq!(bed.read(A, 0, FRAME_SECTORS).unwrap(), [1; FRAME_BYTES]);
}

#[test]
fn of_two_writes_in_both_lanes_at_once_the_later_one_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let held = bed.hand_out(0, 1);
    // No FLUSH has come since: the common way.
    assert!(bed.write(A, 0, &[2; FRAME_BYTES], false));
    bed.rig.turn();
    assert_eq!(bed.completed(), [Ok(())]);
    bed.land(held);
    assert_eq!(bed.completed(), [Ok(())]);
    for reopened in [false, true] {
        if reopened {
            bed.flush(A).unwrap();
            drop(bed);
            bed = open(&directory, 16);
        }
        assert_eq!(bed.read(A, 0, FRAME_SECTORS).unwrap(), [2; FRAME_BYTES], "reopened: {reopened}");
    }
}

#[test]
fn writes_gather_behind_those_under_way_and_go_the_common_way_when_the_batch_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let held = [bed.hand_out_fua(0), bed.hand_out_fua(1)];
    let mut gathered = 0;
    while bed.rig.shard.log.common.open.joined.is_empty() {
        assert!(bed.write(A, gathered * FRAME_SECTORS, &[3; FRAME_BYTES], true));
        gathered += 1;
        assert!(gathered < 1000, "the batch is never full");
    }
    assert_eq!(gathered, 33, "a record of 32 frames is open");
    bed.rig.turn();
    let [first, second] = held;
    bed.land(second);
    assert_eq!(bed.completed(), []);
    bed.land(first);
    assert_eq!(bed.settle().len() as u64, gathered + 2);
    assert!(bed.read(A, 0, (gathered - 1) * FRAME_SECTORS).unwrap().iter().all(|byte| *byte == 3));
}

impl Bed {
    /// As [`Self::hand_out`], for a FUA write of frame `at`.
    fn hand_out_fua(&mut self, at: u64) -> Handed {
        let before = self.rig.duties().len();
        assert!(self.write(A, at * FRAME_SECTORS, &[1; FRAME_BYTES], true));
        self.rig.turn();
        match self.rig.take(before) {
            Duty::Wanted(Want::Append { op, file, offset, parts }) => Handed { op, file, offset, parts },
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_write_through_that_fails_takes_those_behind_it_along_and_the_next_ones_go_on_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let (first, second) = (bed.hand_out_fua(0), bed.hand_out_fua(1));
    // Gathers behind the two.
    assert!(bed.write(A, 20 * FRAME_SECTORS, &[6; FRAME_BYTES], true));
    bed.rig.turn();
    bed.fail(first);
    assert_eq!(bed.completed(), [Err(IoError::Write)]);
    bed.land(second);
    assert_eq!(bed.completed(), [Err(IoError::Write)], "recovery would end before the hole");
    let done: Vec<_> = bed.settle().into_iter().map(|completion| completion.result).collect();
    assert_eq!(done, [Ok(())], "the one behind goes the common way");
    assert_eq!(bed.read(A, 20 * FRAME_SECTORS, FRAME_SECTORS).unwrap(), [6; FRAME_BYTES]);
    for at in 2..6 {
        assert!(bed.write(A, at * FRAME_SECTORS, &[5; FRAME_BYTES], true));
        let done: Vec<_> = bed.settle().into_iter().map(|completion| completion.result).collect();
        assert_eq!(done, [Ok(())]);
    }
    assert!(bed.stats.stable_appends.get() > 0);
    drop(bed);
    let mut bed = open(&directory, 16);
    assert_eq!(bed.read(A, 0, FRAME_SECTORS).unwrap(), [9; FRAME_BYTES]);
    assert_eq!(bed.read(A, 2 * FRAME_SECTORS, 4 * FRAME_SECTORS).unwrap(), [5; 4 * FRAME_BYTES]);
}

#[test]
fn while_segments_are_scarce_nothing_is_written_through_and_no_segment_is_kept_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    assert!(bed.rig.shard.log.through.active.is_some());
    bed.cache.shared.pressure.set_scarce(true);
    let before = bed.stats.stable_appends.get();
    assert!(bed.write(A, 0, &[1; FRAME_BYTES], true));
    bed.rig.turn();
    assert!(bed.rig.shard.log.through.active.is_none());
    bed.settle();
    assert_eq!(bed.stats.stable_appends.get(), before);
    assert_eq!(bed.cache.shared.ports[0].owned(Way::Through), 0);
}

#[test]
fn large_writes_count_with_the_memory_of_their_slots() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let held = [bed.hand_out_fua(0), bed.hand_out_fua(1)];
    for at in 0..3 {
        assert!(bed.write(A, at * 64, &[3; 5 * FRAME_BYTES], true));
    }
    let log = &bed.rig.shard.log;
    assert_eq!((log.through.open.joined.len(), log.common.open.joined.len()), (2, 1));
    for handed in held {
        bed.land(handed);
    }
    assert_eq!(bed.settle().len(), 5);
}

#[test]
fn writes_behind_a_failed_one_that_fill_a_segment_with_those_of_the_common_lane_all_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    let held = [bed.hand_out_fua(0), bed.hand_out_fua(1)];
    for at in 0..32 {
        assert!(bed.write(A, at * FRAME_SECTORS, &[6; FRAME_BYTES], true));
    }
    // The common lane has as many writes as an empty segment takes, and then none.
    let mut written = 0;
    while let Admission::Accept(reservation) = bed.rig.shard.admit(8 * FRAME_BYTES) {
        let volume = bed.cache.volume(B);
        let token = MemoryToken::writing(WRITE, &[7; 8 * FRAME_BYTES]);
        let at = range(written * 8 * FRAME_SECTORS, 8 * FRAME_SECTORS);
        bed.rig.shard.write(&volume, at, false, reservation, token);
        written += 1;
    }
    assert!(written > 10, "{written}");
    let active = bed.rig.shard.log.common.active.as_ref().unwrap().number;
    bed.cache.shared.table.get(active).poison();
    let mut spare: Vec<_> = bed.rig.shard.log.standby.take().into_iter().collect();
    spare
        .extend(std::iter::from_fn(|| bed.cache.shared.ports[0].take(Way::Common, &bed.cache.shared.signal)));
    bed.rig.shard.turn();
    for handed in held {
        bed.fail(handed);
    }
    bed.rig.shard.turn();
    assert_eq!(bed.rig.shard.log.backlog.len() as u64, 32 + written);
    for segment in spare {
        bed.cache.shared.ports[0].offer(Way::Common, segment);
    }
    let done: Vec<_> = bed.settle().into_iter().map(|completion| completion.result).collect();
    assert_eq!(done.len() as u64, 34 + written);
    assert!(done.iter().filter(|result| result.is_err()).count() == 2);
    assert!(bed.read(A, 0, 32 * FRAME_SECTORS).unwrap() == [6; 32 * FRAME_BYTES]);
    assert!(bed.read(B, 0, 8 * FRAME_SECTORS).unwrap() == [7; 8 * FRAME_BYTES]);
}

#[test]
fn a_segment_that_no_write_has_come_for_is_taken_back_when_segments_are_scarce() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    assert!(bed.write(A, 0, &[1; FRAME_BYTES], true));
    bed.settle();
    while bed.keeper.step() {}
    assert_eq!(bed.cache.shared.ports[0].owned(Way::Through), 1);
    // Fills the log with data that is needed.
    let mut at = 0;
    while bed.cache.stats().segments_free >= u64::from(bed.cache.shared.watermarks.scarce_below()) {
        assert!(bed.write(B, at, &[1; 32 * FRAME_BYTES], false));
        at += 32 * FRAME_SECTORS;
        bed.settle();
        while bed.keeper.step() {}
    }
    assert_eq!(bed.cache.shared.ports[0].owned(Way::Through), 0);
}

#[test]
fn a_disk_without_such_writes_or_that_refuses_each_is_asked_once_and_a_flush_syncs_as_ever() {
    for refuses in [false, true] {
        syncs_as_ever(refuses);
    }
}

fn syncs_as_ever(refuses: bool) {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    disk.faults.stable_appends.store(refuses, Ordering::SeqCst);
    disk.faults.refuses_stable.store(refuses, Ordering::SeqCst);
    let (cache, recovered) = disk.open(Known::local(&[A])).unwrap();
    let stats = Arc::new(ShardStats::default());
    let rig = Rig::new(cache.shard(0, Arc::clone(&stats)));
    let mut bed = Bed { keeper: cache.keeper(), cache, rig, stats, recovered };
    bed.rig.write_through(2);
    while bed.keeper.step() {}
    let free = bed.cache.stats().segments_free;
    bed.make_a_habit(A, 0);
    assert_eq!(bed.syncs_and_stable_appends(), (PAIRS, 0));
    assert_eq!(bed.cache.stats().segments_free, free, "no segment is lost to the attempt");
}

#[test]
fn segments_of_both_lanes_are_filled_sealed_and_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_through(&directory);
    bed.make_a_habit(A, 0);
    // Three times the log, in both lanes.
    for round in 0..3 * 16 * 256_u64 / 32 {
        let fill = round.to_le_bytes()[0];
        for (export, fua) in [(A, true), (B, false)] {
            assert!(bed.write(export, 0, &[fill; 16 * FRAME_BYTES], fua));
        }
        assert_eq!(bed.settle().len(), 2);
        while bed.keeper.step() {}
        for export in [A, B] {
            assert!(bed.read(export, 0, 16 * FRAME_SECTORS).unwrap().iter().all(|byte| *byte == fill));
        }
    }
    assert!(bed.stats.stable_appends.get() > 200, "{}", bed.stats.stable_appends.get());
}
