//! A start with a checkpoint that was read ahead finds what any other start finds.

use super::*;
use crate::cache::CacheError;

/// Writes that fill several segments.
fn fill(of_a: bool, count: u64) -> impl Iterator<Item = Step> {
    (0..count).map(move |_| Step::Fill(of_a, 9))
}

/// Lives through `before`, has the log read ahead, lives through `after`, and dies.
fn hand_over(before: impl IntoIterator<Item = Step>, after: impl IntoIterator<Item = Step>) -> Lived {
    let read = Step::LookAhead { ready: true };
    let steps = before.into_iter().chain([read]).chain(after).chain([Step::Restart { in_order: false }]);
    live(&steps.collect::<Vec<Step>>(), CheckpointPace::default())
}

#[test]
fn what_was_read_ahead_counts_while_the_other_process_goes_on_writing() {
    let writes = |of_a: bool| (0..40).map(move |number| Step::Write(of_a, number * 70, 30));
    let lived = hand_over(fill(true, 8).chain(fill(false, 3)), writes(true).chain(writes(false)));
    assert_eq!((lived.ahead, lived.in_vain), (1, 0), "{lived:?}");
}

#[test]
fn marks_that_grow_after_the_reading_count() {
    let lived = hand_over(fill(true, 8), [Step::Write(true, 5, 9), Step::Store, Step::Store]);
    assert_eq!((lived.ahead, lived.in_vain), (1, 0), "{lived:?}");
}

#[test]
fn an_export_deleted_after_the_reading_is_gone() {
    let lived = hand_over(fill(true, 3).chain(fill(false, 5)), [Step::Remove]);
    assert_eq!((lived.ahead, lived.in_vain), (1, 0), "{lived:?}");
}

#[test]
fn a_newer_checkpoint_makes_the_reading_vain() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, mut driver) = held(directory.path());
    let ahead = disk.look_ahead(16, &EXPORTS).unwrap();
    assert!(ahead.is_some());
    driver.cache.expect_no_successor();
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.expect_successor();
    driver.kill();
    let (cache, found) = disk.open_ahead(16, Known::local(&[A, B]), ahead).unwrap();
    assert!(!found.was_ahead && found.covered > 0, "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}

#[test]
fn an_orderly_stop_leaves_the_checkpoint_that_was_read() {
    let lived = {
        let steps = fill(true, 8).chain([Step::LookAhead { ready: true }]).chain(fill(true, 2));
        let steps = steps.chain([Step::Restart { in_order: true }]);
        live(&steps.collect::<Vec<Step>>(), CheckpointPace::default())
    };
    assert_eq!((lived.ahead, lived.in_vain), (1, 0), "{lived:?}");
}

#[test]
fn segments_used_again_after_the_reading_are_left_out() {
    // So much that every segment is used again.
    let lived = hand_over(fill(true, 4).chain(fill(false, 1)), fill(true, 60));
    assert_eq!((lived.ahead, lived.in_vain), (1, 0), "{lived:?}");
}

/// The next export may write, and its records get into the checkpoint, after the catalog was asked which exports there are.
#[test]
fn an_export_that_the_reading_was_not_told_of_keeps_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    let other = driver.cache.volume(B);
    driver.write(&other, range(7, 64), Some(&[9; 32 << 10])).unwrap();
    driver.flush(&other).unwrap();
    drop(other);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.expect_successor();
    let ahead = disk.look_ahead(16, &EXPORTS[..1]).unwrap();
    assert!(ahead.is_some());
    driver.kill();
    let (cache, found) = disk.open_ahead(16, Known::local(&[A, B]), ahead).unwrap();
    assert!(!found.was_ahead, "{found:?}");
    let mut driver = Driver::new(cache);
    let other = driver.cache.volume(B);
    assert!(driver.read(&other, range(7, 64)).unwrap() == [9; 32 << 10]);
    drop(other);
    driver.kill();
}

#[test]
fn segments_are_cleaned_and_used_again_while_a_successor_is_expected() {
    let directory = tempfile::tempdir().unwrap();
    let (_, mut driver) = held(directory.path());
    (0..20).for_each(|_| (1..=80).for_each(|number| write(&mut driver, number)));
    driver.keep();
    let stats = driver.cache.stats();
    assert!(stats.segments_free > 3, "{stats:?}");
    driver.kill();
}

#[test]
fn a_disk_without_room_for_a_checkpoint_does_not_keep_a_successor_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    *disk.faults.free_bytes.lock().unwrap() = Some(SEGMENT_BYTES);
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.expect_successor();
    assert!(disk.look_ahead(16, &EXPORTS).unwrap().is_none());
    driver.kill();
}

/// A cache with a checkpoint, which a live process has open.
fn held(path: &Path) -> (Faulty, Driver) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.expect_successor();
    (disk, driver)
}

const EXPORTS: [(ExportId, SeqMarks); 2] =
    [(A, SeqMarks { stored: Seq(0), evicted: Seq(0) }), (B, SeqMarks { stored: Seq(0), evicted: Seq(0) })];

fn names(path: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files =
        |path: &Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut all: Vec<_> =
        files(path).into_iter().chain(files(&path.join("segments"))).filter(|path| path.is_file()).collect();
    all.sort();
    all.into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn reading_ahead_changes_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, driver) = held(directory.path());
    let before = names(directory.path());
    let ahead = disk.look_ahead(16, &EXPORTS).unwrap().expect("there is a checkpoint");
    assert!(ahead.extents() > 0, "{ahead:?}");
    assert!(names(directory.path()) == before, "a file was changed");
    driver.kill();
}

#[test]
fn nothing_is_read_ahead_without_a_checkpoint_or_of_an_empty_directory() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Faulty::new(directory.path()).look_ahead(16, &EXPORTS).unwrap().is_none());
    let (disk, driver) = held(directory.path());
    std::fs::remove_file(directory.path().join("index.ckpt")).unwrap();
    assert!(disk.look_ahead(16, &EXPORTS).unwrap().is_none());
    driver.kill();
}

#[test]
fn a_log_of_a_newer_format_is_refused_before_anything_is_handed_over() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, driver) = held(directory.path());
    let meta = directory.path().join("cache.meta");
    let mut bytes = std::fs::read(&meta).unwrap();
    let at = bytes.len() - 4;
    bytes[8] = 0x7f;
    let crc = crate::cache::log::format::frame_crc(&bytes[..at]).to_le_bytes();
    bytes[at..].copy_from_slice(&crc);
    std::fs::write(&meta, &bytes).unwrap();
    let refused = disk.look_ahead(16, &EXPORTS);
    assert!(matches!(refused, Err(CacheError::TooNew { .. })), "{refused:?}");
    driver.kill();
}

#[test]
fn a_missing_segment_is_left_to_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, driver) = held(directory.path());
    let (sealed, _) = structure(&disk, b"GLIDESEG", true);
    std::fs::remove_file(directory.path().join(format!("segments/{sealed:08}.seg"))).unwrap();
    assert!(disk.look_ahead(16, &EXPORTS).unwrap().is_none());
    driver.kill();
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert!(found.doubted > 0 || found.checkpoints_refused > 0, "{found:?}");
}

#[test]
fn a_process_without_a_successor_after_all_goes_on_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, mut driver) = held(directory.path());
    driver.cache.expect_no_successor();
    let before = driver.cache.stats().checkpoints_written;
    (0..8).for_each(|_| (1..=80).for_each(|number| write(&mut driver, number)));
    driver.keep();
    let stats = driver.cache.stats();
    assert!(stats.checkpoints_written > before, "{stats:?}");
    assert!(stats.segments_free > 3, "{stats:?}");
    // And may expect another one.
    driver.expect_successor();
    assert!(disk.look_ahead(16, &EXPORTS).unwrap().is_some());
    driver.kill();
}

#[test]
fn records_of_the_segment_being_filled_are_in_the_checkpoint_that_a_successor_reads() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, driver) = held(directory.path());
    let ahead = disk.look_ahead(16, &EXPORTS).unwrap();
    driver.kill();
    let (cache, found) = disk.open_ahead(16, Known::local(&[A, B]), ahead).unwrap();
    assert!(found.was_ahead, "{found:?}");
    assert_eq!((found.records, found.footers, found.scans), (0, 0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}
