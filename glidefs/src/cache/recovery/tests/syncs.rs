//! Starts with failing syncs: frames in the page cache alone may be gone afterwards.

use super::*;
use crate::cache::log::format::{SegmentHeader, Trailer, frame_crc};

/// Makes the next sync of segment number `number` fail, and `frame` empty afterwards.
fn make_unstable(disk: &Faulty, number: u32, frame: u64) {
    disk.faults.unstable.lock().unwrap().insert((number, frame), vec![0; FRAME_BYTES]);
}

/// Puts `end` in the place of the trailer of segment number `number`, as if the trailer had not been stable when the power
/// failed.
fn lose_trailer(disk: &Faulty, number: u32, end: &[u8]) {
    let mut frames: Vec<_> = disk.frames(number).collect();
    assert!(is_magic(frames.last().unwrap(), b"GLIDETRL"));
    *frames.last_mut().unwrap() = end.to_vec();
    disk.restore(number, &frames);
}

/// A start read a record of which only the page cache had one frame. A sync failed, the kernel dropped the page, and the start
/// went on to serve the record. The next start did not find the record.
#[test]
fn what_a_sync_that_failed_at_start_has_cost_is_not_taken_for_stable() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    write_unflushed(&disk, &[82]);
    let (number, frame) = disk.find(|frame| frame == [82; FRAME_BYTES]).unwrap();
    let end = disk.frames(number).next_back().unwrap();
    make_unstable(&disk, number, frame + 3);
    let first_frame = |driver: &mut Driver| {
        let volume = driver.cache.volume(A);
        driver.read(&volume, range(82 * 64, 8)).unwrap()
    };
    let mut driver = open(&disk);
    let before = first_frame(&mut driver);
    driver.kill();
    lose_trailer(&disk, number, &end);
    assert!(first_frame(&mut open(&disk)) == before, "what a start has served is gone after the next one");
}

/// A start closes a damaged segment, and the entry of doubt is only in the page cache. The sync of the entry's segment fails and
/// costs the entry. The loss must be known to this start and to the next.
#[test]
fn a_doubt_that_only_the_page_cache_has_outlives_a_sync_that_fails_while_the_damage_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, true);
    disk.rot((segment, LAST));
    disk.rot((segment, last));
    let damaged: Vec<_> = disk.frames(segment).collect();
    let is_lost = |driver: &mut Driver| (1..=80).any(|number| !is_there(driver, number));
    let mut driver = open(&disk);
    assert!(is_lost(&mut driver));
    driver.kill();
    // As if the start had been killed before the entry of doubt was stable.
    disk.restore(segment, &damaged);
    let says_doubt = |frame: &[u8]| is_magic(frame, b"GLIDEREC") && frame[48 + 26] == 4;
    let (doubt, frame) = disk.find(says_doubt).unwrap();
    lose_trailer(&disk, doubt, &[0xEE; FRAME_BYTES]);
    let mut frames: Vec<_> = disk.frames(doubt).collect();
    let footer = frames.iter().position(|frame| is_magic(frame, b"GLIDEFTR")).unwrap();
    frames[footer].fill(0);
    *frames.last_mut().unwrap() = frames[0].clone();
    disk.restore(doubt, &frames);
    make_unstable(&disk, doubt, frame);
    // The sync of the front passes, and the sync before the trailer fails.
    disk.faults.unstable_after.store(1, Ordering::SeqCst);
    for life in 0..2 {
        let mut driver = open(&disk);
        assert!(is_lost(&mut driver), "life {life}");
        driver.kill();
    }
}

/// A start closes a segment and writes to a sector that takes no writes: the sync fails, and the page cache has the new content.
/// Before, the sector can be read, or cannot. The cache must open.
#[test]
fn a_sector_that_takes_no_write_though_the_page_cache_has_it_does_not_keep_the_cache_from_opening() {
    for is_read in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let disk = killed(directory.path());
        let (segment, last) = last_record(&disk, false);
        disk.faults.stay.store(true, Ordering::SeqCst);
        disk.faults.copies_of_bad.store(true, Ordering::SeqCst);
        disk.lose(segment, last + RECORD_FRAMES);
        if is_read {
            disk.faults.copied.lock().unwrap().insert((segment, last + RECORD_FRAMES));
        }
        let mut driver = open(&disk);
        // Where the sector cannot be read, a record may have been there.
        assert_eq!(driver.cache.stats().doubted_exports > 0, !is_read);
        write(&mut driver, 100);
        assert!(is_there(&mut driver, 100));
        assert_eq!((1..=80).filter(|number| !is_there(&mut driver, *number)).count() == 0, is_read);
        driver.kill();
    }
}

/// A sealed segment has lost its last record, and an empty file cannot be read at either end, so a start makes up an id for the
/// file. The entry of doubt went into the same file. Then the header with the made-up id was written over the header of the
/// doubt's segment, and the next start read older data.
#[test]
fn an_id_that_is_made_up_is_not_written_over_the_segment_that_says_what_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, true);
    let standby = (0..16).find(|segment| is_standby(&disk, *segment)).unwrap();
    disk.rot((segment, LAST));
    disk.rot((segment, last));
    disk.lose(standby, 0);
    disk.lose(standby, LAST);
    for life in 0..2 {
        let mut driver = open(&disk);
        let lost = (1..=80).filter(|number| !is_there(&mut driver, *number)).count();
        assert!(
            lost > 0,
            "life {life}: a record covered by a FLUSH is gone, and its sectors read as something older"
        );
        driver.kill();
    }
}

/// The last segment: 82, then 83 and 84 under one FLUSH, then 85, which is torn. A bit of 83 is rotten. Returns the segment
/// number, and the first frame of the data of 85.
fn torn_behind_rot(disk: &Faulty) -> (u32, u64) {
    let mut driver = open(disk);
    write(&mut driver, 82);
    let volume = driver.cache.volume(A);
    for number in [83, 84] {
        driver.write(&volume, range(number * 64, 64), Some(&[number as u8; 32 << 10])).unwrap();
    }
    driver.flush(&volume).unwrap();
    driver.write(&volume, range(85 * 64, 64), Some(&[85; 32 << 10])).unwrap();
    drop(volume);
    driver.kill();
    let (segment, torn) = disk.find(|frame| frame == [85; FRAME_BYTES]).unwrap();
    let mut frames: Vec<_> = disk.frames(segment).collect();
    frames[usize::try_from(torn).unwrap()].fill(0);
    disk.restore(segment, &frames);
    disk.rot(disk.find(|frame| frame == [83; FRAME_BYTES]).unwrap());
    (segment, torn)
}

/// Puts the header of 85 behind the data of 85, as the header of another record, and removes the original.
fn move_header_behind(disk: &Faulty, (number, torn): (u32, u64)) {
    let mut frames: Vec<_> = disk.frames(number).collect();
    let header = usize::try_from(torn).unwrap() - 1;
    let behind = header + usize::try_from(RECORD_FRAMES).unwrap();
    frames[behind] = frames[header].clone();
    frames[behind][40..44].copy_from_slice(&u32::try_from(behind).unwrap().to_le_bytes());
    let crc = frame_crc(&frames[behind][..FRAME_BYTES - 4]);
    frames[behind][FRAME_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    frames[header].fill(0);
    disk.restore(number, &frames);
}

/// Fails unless 82 and 84 are there and 83, whose data is rotten, cannot be read.
fn assert_only_rot_is_lost(disk: &Faulty, when: &str) {
    let mut driver = open(disk);
    assert!(
        is_there(&mut driver, 82) && is_there(&mut driver, 84),
        "{when}: a write covered by a FLUSH is gone"
    );
    let volume = driver.cache.volume(A);
    assert_eq!(driver.read(&volume, range(83 * 64, 64)), Err(IoError::Corrupt), "{when}");
    drop(volume);
    driver.kill();
}

/// Only the header of a dropped record says that the records before were stable, so that 83 is damaged and not torn. A start
/// wrote the footer over that header and ended before the trailer. The next start took 83 for torn, and dropped 83 and 84.
#[test]
fn what_says_that_records_are_stable_outlives_a_start_that_ends_at_any_write() {
    for is_behind in [false, true] {
        let mut is_done = false;
        for writes in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let disk = killed(directory.path());
            let place = torn_behind_rot(&disk);
            if is_behind {
                move_header_behind(&disk, place);
            }
            *disk.faults.writes_left.lock().unwrap() = Some(writes);
            drop(disk.open(Known::local(&[A, B])));
            let left = disk.faults.writes_left.lock().unwrap().take();
            assert_only_rot_is_lost(&disk, &format!("header behind: {is_behind}, after {writes} writes"));
            is_done |= left > Some(0);
            if is_done {
                break;
            }
        }
    }
}

/// A sync failed while a start closed a torn segment, and the start walked the segment once more. The second walk met the footer
/// of the failed closing, in the place of the header that proves 83 and 84 stable.
#[test]
fn a_sync_that_fails_while_a_torn_segment_is_closed_costs_nothing_that_was_stable() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (number, torn) = torn_behind_rot(&disk);
    make_unstable(&disk, number, torn + 4);
    // The sync of the front passes, and the sync before the trailer fails.
    disk.faults.unstable_after.store(1, Ordering::SeqCst);
    for life in ["the start whose sync failed", "the next one"] {
        assert_only_rot_is_lost(&disk, life);
    }
}

/// The header of torn record 83 is lost, and only the header of 84 describes 83. When a start drops both, no header is left to be
/// kept. The next start must not find a hole, even if the trailer is torn.
#[test]
fn a_torn_record_whose_header_is_lost_leaves_no_hole_behind() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    write_unflushed(&disk, &[82, 83, 84]);
    let (number, torn) = disk.find(|frame| frame == [83; FRAME_BYTES]).unwrap();
    let mut frames: Vec<_> = disk.frames(number).collect();
    let torn = usize::try_from(torn).unwrap();
    assert!(is_magic(&frames[torn - 1], b"GLIDEREC"));
    frames[torn - 1..=torn].iter_mut().for_each(|frame| frame.fill(0));
    disk.restore(number, &frames);
    for life in 0..2 {
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!((found.holes, found.doubted), (0, 0), "life {life}: {found:?}");
        let mut driver = Driver::new(cache);
        assert!(is_there(&mut driver, 82));
        driver.kill();
        // The power failed while the trailer was written.
        lose_trailer(&disk, number, &[0xEE; FRAME_BYTES]);
    }
}

/// After a failed sync the rest of a segment was made stable, without a frame of the last record; the daemon was killed before
/// the trailer was stable. The first sync of the next start fails. Without the trailer, a later start would take the lost frame
/// for a torn end.
#[test]
fn the_trailer_of_a_segment_of_which_some_is_lost_is_stable_after_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, true);
    let mut frames: Vec<_> = disk.frames(segment).collect();
    let (last, end) = (usize::try_from(last).unwrap(), usize::try_from(LAST).unwrap());
    let number = frames[last + 1][0];
    frames[last + 1].fill(0);
    let key = SegmentHeader::decode(&frames[0]).unwrap().key();
    let trailer = Trailer::decode(&frames[end], &key, SEGMENT_BYTES).unwrap();
    frames[end] = Trailer { vital: true, ..trailer }.encode().to_vec();
    disk.restore(segment, &frames);
    disk.faults.unstable.lock().unwrap().insert((segment, LAST), frames[0].clone());
    for life in 0..2 {
        let mut driver = open(&disk);
        let volume = driver.cache.volume(A);
        let lost = driver.read(&volume, range(u64::from(number) * 64, 8));
        assert_eq!(lost, Err(IoError::Corrupt), "life {life}");
        drop(volume);
        driver.kill();
        // A power cut: each frame not reached by a sync is as the disk has it.
        for ((segment, frame), bytes) in std::mem::take(&mut *disk.faults.unstable.lock().unwrap()) {
            let mut frames: Vec<_> = disk.frames(segment).collect();
            frames[usize::try_from(frame).unwrap()] = bytes;
            disk.restore(segment, &frames);
        }
    }
}

/// A power cut tears the frame that announces an export; the header behind describes the announcement. A start finds both and
/// counts the record as stable. Then the disk loses the header, and the next start must not take the record for a torn end.
#[test]
fn a_record_whose_announcement_was_torn_is_not_taken_for_a_torn_end_after_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    write_unflushed(&disk, &[82]);
    let (number, data) = disk.find(|frame| frame == [82; FRAME_BYTES]).unwrap();
    let mut frames: Vec<_> = disk.frames(number).collect();
    let announcement = usize::try_from(data).unwrap() - 2;
    assert!(is_magic(&frames[announcement], b"GLIDEREC"));
    frames[announcement].fill(0xEE);
    disk.restore(number, &frames);
    let mut driver = open(&disk);
    assert!(is_there(&mut driver, 82));
    driver.kill();
    // A power cut now would cost everything not reached by a sync.
    let trailer = disk.frames(number).next_back().unwrap();
    assert_eq!(trailer[10], 1, "the trailer was not made stable");
    disk.lose(number, data - 1);
    let mut driver = open(&disk);
    assert!(is_there(&mut driver, 82));
    driver.kill();
}

/// A footer was on the disk before a power cut tore 83. The next start died while writing the vital trailer, and only a part of
/// the trailer is on the disk. The footer then proves nothing: 83 is torn, not damaged.
#[test]
fn a_footer_proves_nothing_while_a_vital_trailer_is_half_written() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    write_unflushed(&disk, &[82, 83]);
    let (number, data) = disk.find(|frame| frame == [83; FRAME_BYTES]).unwrap();
    let copy = disk.frames(number).next_back().unwrap();
    open(&disk).kill();
    let mut frames: Vec<_> = disk.frames(number).collect();
    assert!(frames.iter().any(|frame| is_magic(frame, b"GLIDEFTR")));
    frames[usize::try_from(data).unwrap()].fill(0);
    let end = frames.last_mut().unwrap();
    end[10] = 1;
    end[FRAME_BYTES / 2..].copy_from_slice(&copy[FRAME_BYTES / 2..]);
    disk.restore(number, &frames);
    let mut driver = open(&disk);
    assert!(is_there(&mut driver, 82));
    let volume = driver.cache.volume(A);
    assert!(
        driver.read(&volume, range(83 * 64, 8)) == Ok(vec![0; FRAME_BYTES]),
        "what no FLUSH covered fails"
    );
    drop(volume);
    driver.kill();
}
