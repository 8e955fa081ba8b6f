//! Which files a start writes to, and which a start removes.

use super::*;

/// Makes the first segment file number `to`, and leaves no file in its place.
fn move_first_segment(disk: &Faulty, to: u32) {
    let frames: Vec<_> = disk.frames(0).collect();
    assert!(frames.iter().any(|frame| is_magic(frame, b"GLIDEREC")));
    disk.restore(to, &frames);
    disk.remove_segment(0).unwrap();
}

/// A cache is opened with a smaller size, and all data of a file beyond that size was replaced by a segment that is not stable. A
/// power cut after the file is removed would leave neither the old data nor the new.
#[test]
fn a_segment_beyond_a_smaller_cache_stays_until_all_that_replaces_its_data_is_stable() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let first: Vec<u8> = (1..=80)
        .filter(|number| disk.find(|frame| frame == [*number; FRAME_BYTES]).unwrap().0 == 0)
        .collect();
    move_first_segment(&disk, 12);
    write_unflushed(&disk, &first);
    let last = *first.last().unwrap();
    let is_newer = |frame: &[u8]| frame == [last; FRAME_BYTES];
    let (segment, frame) = disk.find(is_newer).unwrap();
    assert!(segment < 8, "the new segment is in segment {segment}");
    // The page cache has a frame that the disk does not take.
    disk.faults.stay.store(true, Ordering::SeqCst);
    disk.faults.copies_of_bad.store(true, Ordering::SeqCst);
    disk.lose(segment, frame);
    disk.faults.copied.lock().unwrap().insert((segment, frame));
    let open_smaller = || Driver::new(disk.open_with(8, Known::local(&[A, B])).unwrap().0);
    let mut driver = open_smaller();
    assert_ne!(disk.frames(12).count(), 0, "a power cut now leaves neither the old data nor the new");
    driver.keep();
    assert!(is_there(&mut driver, last));
    driver.kill();
    let mut driver = open_smaller();
    assert_eq!(disk.frames(12).count(), 0);
    assert!(first.iter().all(|number| is_there(&mut driver, *number)));
    driver.kill();
}

/// A start has to note a doubt while the file system is full, or while the free files take no writes. The start must find a place
/// for the entry, and not fail.
#[test]
fn a_doubt_is_written_where_the_disk_takes_it() {
    for (is_full, is_bad) in [(true, false), (false, true), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = killed(directory.path());
        move_first_segment(&disk, 12);
        let (segment, last) = last_record(&disk, true);
        disk.rot((segment, LAST));
        disk.rot((segment, last));
        disk.faults.full.store(is_full, Ordering::SeqCst);
        if is_bad {
            disk.faults.stay.store(true, Ordering::SeqCst);
            (0..16).filter(|segment| is_standby(&disk, *segment)).for_each(|segment| disk.lose(segment, 1));
        }
        for life in 0..2 {
            let opened = disk.open(Known::local(&[A, B]));
            let mut driver = Driver::new(
                opened.unwrap_or_else(|error| panic!("full {is_full}, bad {is_bad}, life {life}: {error}")).0,
            );
            assert!(
                (1..=80).any(|number| !is_there(&mut driver, number)),
                "full {is_full}, bad {is_bad}, life {life}"
            );
            driver.kill();
        }
    }
}
