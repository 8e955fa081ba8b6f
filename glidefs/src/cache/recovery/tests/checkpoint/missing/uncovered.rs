//! A segment that the checkpoint does not cover is gone: nobody knows the content.

use super::*;

/// The segment with records that is not sealed.
fn open_segment(disk: &Faulty) -> u32 {
    structure(disk, b"GLIDEREC", false).0
}

fn is_prepared(disk: &Faulty, number: u32) -> bool {
    let has = |magic: &[u8]| disk.frames(number).any(|frame| is_magic(&frame, magic));
    has(b"GLIDESEG") && !has(b"GLIDEREC")
}

#[test]
fn a_segment_that_is_not_covered_puts_all_exports_in_doubt() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    lose(&disk, open_segment(&disk), Loss::File);
    for life in 0..3_u8 {
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, if life == 0 { 2 } else { 0 }, "life {life}: {found:?}");
        let mut driver = Driver::new(cache);
        assert_eq!(failing(&mut driver).len(), 100);
        (0..life).for_each(|number| assert!(is_there(&mut driver, 200 + number), "life {life}"));
        write(&mut driver, 200 + life);
        driver.kill();
    }
}

/// Segments that were only prepared when the checkpoint was written.
#[test]
fn a_segment_that_had_no_records_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    let prepared: Vec<u32> = (0..16).filter(|number| is_prepared(&disk, *number)).collect();
    assert!(!prepared.is_empty());
    for number in prepared {
        let frames: Vec<_> = disk.frames(number).collect();
        lose(&disk, number, Loss::File);
        let checkpoint = directory.path().join("index.ckpt");
        let bytes = std::fs::read(&checkpoint).unwrap();
        let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, 0, "{found:?}");
        std::fs::write(&checkpoint, bytes).unwrap();
        disk.restore(number, &frames);
    }
}

/// The first start ended when the note of another loss was stable, and before the checkpoint was gone: no write went to the segment of the
/// note.
#[test]
fn a_segment_that_had_no_records_is_not_missed_for_a_note() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let prepared: Vec<u32> = (0..16).filter(|number| is_prepared(&disk, *number)).collect();
    assert!(!prepared.is_empty());
    for number in prepared.into_iter().chain([segment]) {
        lose(&disk, number, Loss::File);
    }
    // The file for the note.
    disk.restore(15, &vec![vec![0; FRAME_BYTES]; usize::try_from(LAST).unwrap() + 1]);
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    for _ in 0..2 {
        std::fs::write(&checkpoint, &bytes).unwrap();
        let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!((found.doubted, found.holes), (0, 1), "{found:?}");
    }
}

/// The checkpoint lists the segment without records; the newest content of a place came later.
#[test]
fn a_segment_that_was_filled_since_the_checkpoint_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    write_at(&mut driver, OLDER);
    (1..=60).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.without_checkpoints();
    let prepared: Vec<u32> = (0..16).filter(|number| is_prepared(&disk, *number)).collect();
    let is_filled =
        || prepared.iter().any(|number| disk.frames(*number).any(|frame| is_magic(&frame, b"GLIDEREC")));
    while !is_filled() {
        write(&mut driver, 61);
    }
    write_at(&mut driver, NEWEST);
    (62..=120).for_each(|number| write(&mut driver, number));
    driver.kill();
    let (segment, _) = disk.find(|frame| frame == [NEWEST; FRAME_BYTES]).unwrap();
    assert!(prepared.contains(&segment), "{segment} of {prepared:?}");
    lose(&disk, segment, Loss::File);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (2, 1), "{found:?}");
    let mut driver = Driver::new(cache);
    let volume = driver.cache.volume(A);
    assert_eq!(driver.read(&volume, range(PLACE, 64)), Err(IoError::Damaged));
    drop(volume);
    driver.kill();
}

/// While the doubt about a first loss is in force, a second segment is lost.
#[test]
fn a_second_loss_is_missed_while_a_doubt_is_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    lose(&disk, open_segment(&disk), Loss::File);
    let mut driver = open(&disk);
    write_at(&mut driver, 243);
    (1..=30).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    write_at(&mut driver, 244);
    (31..=70).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.kill();
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.checkpoints_refused, found.covered, found.doubted), (0, 0, 0), "{found:?}");
    std::fs::write(&checkpoint, bytes).unwrap();
    let (segment, _) = disk.find(|frame| frame == [244; FRAME_BYTES]).unwrap();
    assert!(
        !disk.frames(segment).any(|frame| frame == [243; FRAME_BYTES]),
        "both contents are in one segment"
    );
    lose(&disk, segment, Loss::File);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (2, 1), "{found:?}");
    let mut driver = Driver::new(cache);
    let volume = driver.cache.volume(A);
    assert_eq!(driver.read(&volume, range(PLACE, 64)), Err(IoError::Damaged));
    drop(volume);
    driver.kill();
}

/// The first start ended when the note of the loss was stable, and before the checkpoint was gone.
#[test]
fn segments_that_are_gone_cost_an_entry_an_export_and_a_second_start_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    for number in [open_segment(&disk), segment] {
        lose(&disk, number, Loss::File);
    }
    let exports: Vec<ExportId> = (1..=600).map(ExportId).collect();
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    for doubted in [600, 0] {
        std::fs::write(&checkpoint, &bytes).unwrap();
        let (_, found) = disk.open(Known::local(&exports)).unwrap();
        assert_eq!((found.doubted, found.holes), (doubted, 2), "{found:?}");
        assert!(!checkpoint.exists());
    }
}
