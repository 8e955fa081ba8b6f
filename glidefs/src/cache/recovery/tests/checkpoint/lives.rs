//! Lives with a checkpoint and lives without, one after the other, on one log.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

/// The newest content of each place of A: places of 64 sectors, filled with one byte.
type Places = BTreeMap<u64, u8>;

fn put(driver: &mut Driver, places: &mut Places, place: u64, byte: u8) {
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(place * 64, 64), Some(&[byte; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
    places.insert(place, byte);
}

/// Writes to a cache that is too small for the originals and the copies of the cleaner: some data is written once, and the rest again and
/// again. Calls `visit` between two writes.
fn clean_much(driver: &mut Driver, mut visit: impl FnMut(u64, &mut Driver, &Places)) {
    let mut places = Places::new();
    for number in 0..400_u64 {
        let place = if number % 28 < 3 { number } else { number % 25 };
        put(driver, &mut places, place, u8::try_from(number % 251).unwrap());
        visit(number, driver, &places);
    }
}

/// The cleaner copies E from S to C, and S is free, with all records still there. A daemon starts from a checkpoint that covers C and
/// not S, and its own checkpoint covers both, maybe. The next daemon starts without a checkpoint, puts other segments into the free
/// files, and is killed. Somebody puts the last checkpoint back: E must be found at C, whatever S is now.
#[test]
fn moved_data_outlives_starts_from_a_checkpoint_and_starts_without_in_turn() {
    let history = History {
        directory: tempfile::tempdir().unwrap(),
        segments: 9,
        exports: vec![(A, SeqMarks::default())],
    };
    let mut driver = Driver::new(history.open(history.directory.path()).0);
    driver.pace_checkpoints(CheckpointPace { segments: 2, slices: 1, extents: 4 });
    let original = history.directory.path().to_owned();
    let mut covered = [0; 2];
    clean_much(&mut driver, |number, _, places| {
        if number < 150 || number % 7 != 0 {
            return;
        }
        let other = tempfile::tempdir().unwrap();
        copy(&original, other.path(), true);
        let checkpoint = other.path().join("index.ckpt");
        let mut places = places.clone();
        // With the checkpoint of the copy.
        let (cache, found) = history.open(other.path());
        covered[0] += found.covered;
        let mut driver = Driver::new(cache);
        driver.rest();
        driver.kill();
        let last = std::fs::read(&checkpoint).ok();
        // Without a checkpoint.
        let _ = std::fs::remove_file(&checkpoint);
        let mut driver = Driver::new(history.open(other.path()).0);
        driver.without_checkpoints();
        (0..50).for_each(|place| put(&mut driver, &mut places, place % 25, 252));
        driver.kill();
        let _ = std::fs::remove_file(&checkpoint);
        // With the checkpoint of the life before the last one.
        if let Some(last) = last {
            std::fs::write(&checkpoint, last).unwrap();
        }
        let (cache, found) = history.open(other.path());
        covered[1] += found.covered;
        let mut driver = Driver::new(cache);
        let volume = driver.cache.volume(A);
        for (place, byte) in places {
            let data = driver.read(&volume, range(place * 64, 64)).unwrap();
            assert!(data == [byte; 32 << 10], "{number}: {byte} at {place}: {found:?}");
        }
        drop(volume);
        driver.kill();
    });
    assert!(
        driver.cache.stats().segments_cleaned > 0 && covered.iter().all(|covered| *covered > 0),
        "{covered:?}"
    );
    driver.kill();
}

/// A damaged frame costs all the patience of the start from the checkpoint. While the log is read again, without the checkpoint, the disk
/// is away for a second: the second reading waits as long as a start without checkpoint does.
#[test]
fn a_start_that_reads_the_log_again_without_the_checkpoint_waits_for_the_disk_again() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    let (segment, frame) = structure(&disk, b"GLIDESEG", true);
    disk.faults.stay.store(true, Ordering::SeqCst);
    disk.lose(segment, frame);
    // The first reading sleeps six times, two seconds in all, and the last sleep takes 700 ms.
    let faults = std::sync::Arc::clone(&disk.faults);
    disk.faults.after_sleeps(5, move || *faults.away.lock().unwrap() = Duration::from_millis(1700));
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.covered, found.checkpoints_refused), (0, 1), "{found:?}");
    assert_eq!((found.holes, found.doubted), (0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}
