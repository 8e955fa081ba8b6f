//! The making of a checkpoint, step by step, while workers and the cleaner go on.

use super::*;
use crate::cache::Known;
use crate::cache::driver::Driver;
use crate::cache::faulty::Faulty;
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::layers::SeqMarks;
use crate::units::{ExportId, SectorRange, Seq};

const FILLER: ExportId = ExportId(1);
const VICTIM: ExportId = ExportId(2);
const ONE_AT_A_TIME: CheckpointPace = CheckpointPace { segments: 1, slices: 1, extents: 1 };

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn write(driver: &mut Driver, export: ExportId, start: u64, count: u64, byte: u8) {
    let volume = driver.cache.volume(export);
    let data = vec![byte; usize::try_from(count * 512).unwrap()];
    driver.write(&volume, range(start, count), Some(&data)).unwrap();
}

/// Writes most of a segment, at `start` of the filler.
fn fill(driver: &mut Driver, start: u64, byte: u8) {
    (0..7).for_each(|piece| write(driver, FILLER, start + piece * 256, 256, byte));
}

/// The number of the segment with sector `start` of `export`.
fn home(driver: &Driver, export: ExportId, start: u64) -> u32 {
    let slice = driver.cache.volume(export).slice(start, 1 << 11, |_| true);
    slice.extents.iter().find(|extent| extent.range.start() == start).unwrap().number
}

/// Advances until the extents of the filler are being gathered.
fn begin(checkpointer: &mut Checkpointer, shared: &Shared) {
    for _ in 0..100 {
        checkpointer.step(shared);
        if checkpointer.work.as_ref().is_some_and(|work| work.is_gathering()) {
            return;
        }
    }
    panic!("no extent is gathered");
}

/// A covered segment is freed during the gathering, and the number goes to a segment with a write that nobody has flushed. The write
/// replaces a covered extent: the checkpoint must not leave out both.
#[test]
fn a_number_that_goes_to_another_segment_while_extents_are_gathered_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let known = || Known::local(&[FILLER, VICTIM]);
    let mut driver = Driver::new(disk.open_with(10, known()).unwrap().0);
    driver.without_checkpoints();
    write(&mut driver, VICTIM, 0, 8, 1);
    (0..6).for_each(|piece| write(&mut driver, FILLER, 50_000 + piece * 256, 256, 1));
    let start = 10_000;
    fill(&mut driver, start, 2);
    fill(&mut driver, 20_000, 3);
    driver.flush(&driver.cache.volume(FILLER)).unwrap();
    driver.flush(&driver.cache.volume(VICTIM)).unwrap();
    driver.keep();
    let shared = std::sync::Arc::clone(&driver.cache.shared);
    let reused = home(&driver, FILLER, start + 1024);
    let covered = home(&driver, VICTIM, 0);
    let old_id = shared.table.get(reused).segment_id();
    assert!([reused, covered].iter().all(|number| shared.table.get(*number).state() == State::Sealed));
    assert_ne!(reused, covered);

    let mut checkpointer = Checkpointer { pace: ONE_AT_A_TIME, ..Checkpointer::new(1) };
    begin(&mut checkpointer, &shared);
    let is_reused = || {
        let info = shared.table.get(reused);
        info.segment_id() != old_id && info.state() == State::Open && info.appended() > 1
    };
    for round in 0..100 {
        if is_reused() {
            break;
        }
        let part = [start, 20_000][usize::from(round % 14 >= 7)];
        write(&mut driver, FILLER, part + round % 7 * 256, 256, 4);
        driver.flush(&driver.cache.volume(FILLER)).unwrap();
        driver.keep();
    }
    assert!(is_reused(), "the number never went to another segment: {:?}", driver.cache.stats());
    let before: Vec<_> = disk.frames(reused).collect();
    write(&mut driver, VICTIM, 0, 8, 9);
    assert_eq!(home(&driver, VICTIM, 0), reused, "the write is elsewhere");
    while checkpointer.work.is_some() {
        checkpointer.step(&shared);
    }
    let info = shared.table.get(reused);
    let is_stable = info.synced() >= info.appended();
    drop((shared, checkpointer));
    driver.kill();
    if !is_stable {
        // The power fails, and takes the write.
        disk.restore(reused, &before);
    }
    let (cache, found) = disk.open_with(10, known()).unwrap();
    assert!(found.covered > 0 && found.checkpoints_refused == 0, "{found:?}");
    let mut driver = Driver::new(cache);
    let data = driver.read(&driver.cache.volume(VICTIM), range(0, 8)).unwrap();
    assert!(data == [9; 4096] || (!is_stable && data == [1; 4096]), "flushed data is gone");
    driver.kill();
}

/// A stop must not keep devices waiting, however slow the disk and however large the index.
#[test]
fn a_stop_gives_a_checkpoint_up_after_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = Driver::new(disk.open(Known::local(&[FILLER])).unwrap().0);
    driver.without_checkpoints();
    (0..40).for_each(|part| fill(&mut driver, part * 500, 3));
    driver.keep();
    let shared = std::sync::Arc::clone(&driver.cache.shared);
    let mut checkpointer = Checkpointer { pace: ONE_AT_A_TIME, ..Checkpointer::new(1) };
    // Each look at the clock takes 100 ms.
    *disk.faults.tick.lock().unwrap() = Duration::from_millis(100);
    let before = shared.clock.now();
    checkpointer.complete(&shared);
    assert!(shared.clock.now().saturating_sub(before) < STOP_TIME + Duration::from_millis(500));
    assert!(checkpointer.work.is_some() && shared.figures.checkpoints_written.load(Ordering::Relaxed) == 0);
    *disk.faults.tick.lock().unwrap() = Duration::ZERO;
    checkpointer.complete(&shared);
    assert_eq!(shared.figures.checkpoints_written.load(Ordering::Relaxed), 1);
    drop(shared);
    driver.kill();
}

/// A worker's sync takes a while. The stop waits for the end of the sync, but not for ever.
#[test]
fn a_stop_waits_for_a_sync_of_a_worker_until_the_time_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = Driver::new(disk.open(Known::local(&[FILLER])).unwrap().0);
    driver.without_checkpoints();
    write(&mut driver, FILLER, 0, 8, 1);
    let shared = std::sync::Arc::clone(&driver.cache.shared);
    let number = home(&driver, FILLER, 0);
    for (looks, written) in [(50, 1), (5_000, 0)] {
        let written_before = shared.figures.checkpoints_written.load(Ordering::Relaxed);
        write(&mut driver, FILLER, 0, 8, 2);
        assert!(shared.table.get(number).hold_file());
        let table = std::sync::Arc::clone(&shared);
        disk.faults.after_sleeps(looks, move || table.table.get(number).let_file_go());
        Checkpointer::new(1).complete(&shared);
        let after = shared.figures.checkpoints_written.load(Ordering::Relaxed);
        assert_eq!(after - written_before, written, "a sync of {looks} ms");
        disk.faults.after_sleeps(0, || ());
        if written == 0 {
            shared.table.get(number).let_file_go();
        }
    }
    drop(shared);
    driver.kill();
}

/// A checkpoint that was given up counts as not begun: the next one is due.
#[test]
fn segments_of_a_checkpoint_that_was_given_up_stay_due() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = Driver::new(disk.open(Known::local(&[FILLER])).unwrap().0);
    driver.without_checkpoints();
    fill(&mut driver, 0, 3);
    let shared = std::sync::Arc::clone(&driver.cache.shared);
    let info = shared.table.get(home(&driver, FILLER, 0));
    let mut checkpointer = Checkpointer::new(7);
    info.retire();
    checkpointer.complete(&shared);
    assert!(checkpointer.work.is_none() && checkpointer.sealed == 7);
    assert!(!checkpointer.step(&shared), "the next try comes at once");
    drop(shared);
    driver.kill();
}

/// The entry of a doubt is read from the log at each start, so the segment with the entry is not covered. A doubt ended by the store costs
/// nothing else; in the time of a doubt in force a checkpoint covers nothing.
#[test]
fn an_ended_doubt_costs_one_segment_and_a_doubt_in_force_all() {
    const STORED: Seq = Seq(1000);
    for (doubt, covers) in [(None, 1), (Some(Seq(500)), 1), (Some(Seq(1 << 20)), 0)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = Driver::new(disk.open(Known::local(&[FILLER])).unwrap().0);
        (0..3).for_each(|part| fill(&mut driver, part * 2000, 3));
        driver.flush(&driver.cache.volume(FILLER)).unwrap();
        driver.kill();
        let marks = SeqMarks { stored: STORED, evicted: Seq(0) };
        let known = || Known { exports: vec![(FILLER, marks)], ..Known::local(&[]) };
        let driver = Driver::new(disk.open(known()).unwrap().0);
        let _ = std::fs::remove_file(directory.path().join("index.ckpt"));
        let shared = std::sync::Arc::clone(&driver.cache.shared);
        let number = home(&driver, FILLER, 0);
        assert_eq!(shared.table.get(number).state(), State::Sealed);
        if let Some(seq) = doubt {
            let extent = Extent { range: range(9, 1), seq, backing: Backing::Doubt { number } };
            assert!(driver.cache.volume(FILLER).recovered(&shared.table, extent));
        }
        let before = shared.figures.checkpoints_written.load(Ordering::Relaxed);
        let mut checkpointer = Checkpointer::new(1);
        checkpointer.complete(&shared);
        while checkpointer.is_busy() {
            checkpointer.complete(&shared);
        }
        let after = shared.figures.checkpoints_written.load(Ordering::Relaxed);
        assert_eq!(after - before, 1, "{doubt:?}");
        let is_sealed = |(_, info): &(u32, &SegmentInfo)| info.state() == State::Sealed;
        let sealed = shared.table.iter().filter(is_sealed).count() as u64;
        drop(shared);
        driver.kill();
        let found = disk.open(known()).unwrap().1;
        let not_covered = u64::from(doubt.is_some());
        assert_eq!(found.covered, (sealed - not_covered) * covers, "{doubt:?}: {found:?}");
    }
}

/// A sync may write a whole segment, and the keeper has other work between two; a stop looks at the clock between two.
#[test]
fn a_step_of_a_checkpoint_syncs_one_segment_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = Driver::new(disk.open(Known::local(&[FILLER])).unwrap().0);
    driver.without_checkpoints();
    let shared = std::sync::Arc::clone(&driver.cache.shared);
    // The keeper seals no segment whose file somebody else holds.
    let hold = |part: u64| {
        fill(&mut driver, part * 2000, 3);
        let number = home(&driver, FILLER, part * 2000 + 6 * 256);
        assert!(shared.table.get(number).hold_file());
        number
    };
    let held: Vec<u32> = (0..4).map(hold).collect();
    for number in &held {
        shared.table.get(*number).let_file_go();
    }
    let unsynced = || shared.table.iter().filter(|(_, info)| info.synced() < info.appended()).count();
    assert_eq!(unsynced(), held.len());
    let written = || shared.figures.checkpoints_written.load(Ordering::Relaxed);
    let mut checkpointer = Checkpointer::new(100);
    while written() == 0 {
        let before = unsynced();
        assert!(checkpointer.step(&shared) || written() > 0, "{before} segments stay unsynced");
        assert!(unsynced() + 1 >= before, "{before} segments were unsynced, {} are", unsynced());
    }
    assert_eq!(unsynced(), 0);
    drop(shared);
    driver.kill();
}
