//! Records dropped by a start: they do not come back, and the records described by their headers stay.

use super::*;

/// The header of record 81 is lost, and only the header of record 82, which is torn, describes record 81. A start drops record 82
/// and closes the segment, and a power cut takes the trailer. The next start must still find record 81.
#[test]
fn a_record_that_only_a_dropped_one_describes_outlives_a_trailer_that_was_not_stable() {
    // How many records follow the dropped one; the first of these has no header any more.
    for dropped_behind in [0, 2] {
        let directory = tempfile::tempdir().unwrap();
        let disk = killed(directory.path());
        let mut driver = open(&disk);
        let volume = driver.cache.volume(A);
        for number in 81..=82 + dropped_behind {
            driver.write(&volume, range(u64::from(number) * 64, 64), Some(&[number; 32 << 10])).unwrap();
        }
        driver.kill();
        let (segment, last) = last_record(&disk, false);
        let mut frames: Vec<_> = disk.frames(segment).collect();
        let headers: Vec<_> = (0..=usize::try_from(last).unwrap())
            .filter(|at| is_magic(&frames[*at], b"GLIDEREC"))
            .rev()
            .take(2 + usize::from(dropped_behind))
            .collect();
        let [.., torn, described] = headers[..] else { unreachable!("two records at least") };
        frames[described].fill(0xEE);
        frames[torn + 1][100] ^= 1;
        if let [_, second, _, _] = headers[..] {
            frames[second].fill(0xEE);
        }
        let end_of_file = frames.pop().unwrap();
        frames.push(end_of_file.clone());
        disk.restore(segment, &frames);
        let mut driver = open(&disk);
        assert!(is_there(&mut driver, 81));
        driver.kill();
        let mut frames: Vec<_> = disk.frames(segment).collect();
        assert!(is_magic(frames.last().unwrap(), b"GLIDETRL"));
        *frames.last_mut().unwrap() = end_of_file;
        disk.restore(segment, &frames);
        assert!(is_there(&mut open(&disk), 81), "with {dropped_behind} records behind");
    }
}

/// A cache after a start that dropped the record of number 82, whose header alone describes the record of number 81. Returns the
/// segment number of both, and the frame of the header, which a footer follows.
fn described_by_a_dropped_one(path: &std::path::Path) -> (Faulty, u32, u64) {
    let disk = killed(path);
    write_unflushed(&disk, &[81, 82]);
    let (number, dropped) = last_record(&disk, false);
    let mut frames: Vec<_> = disk.frames(number).collect();
    let at = usize::try_from(dropped).unwrap();
    let described = frames[..at].iter().rposition(|frame| is_magic(frame, b"GLIDEREC")).unwrap();
    frames[described].fill(0xEE);
    frames[at + 2][100] ^= 1;
    disk.restore(number, &frames);
    open(&disk).kill();
    let frames: Vec<_> = disk.frames(number).collect();
    assert!(is_magic(&frames[at], b"GLIDEREC") && is_magic(&frames[at + 1], b"GLIDEFTR"));
    (disk, number, dropped)
}

/// Record 82 was dropped, and its header was kept for the sake of record 81. An older footer is still behind record 82, and the
/// trailer is torn. A start that took the older footer for proof would bring record 82 back.
#[test]
fn a_record_that_was_dropped_does_not_come_back_when_the_trailer_is_torn() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, number, dropped) = described_by_a_dropped_one(directory.path());
    let mut frames: Vec<_> = disk.frames(number).collect();
    let [footer, end] = [dropped + 1, dropped + RECORD_FRAMES].map(|at| usize::try_from(at).unwrap());
    frames[end] = frames[footer].clone();
    frames.last_mut().unwrap()[..512].fill(0xEE);
    disk.restore(number, &frames);
    let mut driver = open(&disk);
    let volume = driver.cache.volume(A);
    assert!(driver.read(&volume, range(82 * 64, 64)).unwrap() == [0; 32 << 10], "what was dropped came back");
    assert!(is_there(&mut driver, 81));
}

/// The footer behind the kept header of the dropped record cannot be read. The header still describes record 81, so nothing is
/// lost and nothing in doubt.
#[test]
fn a_footer_that_is_lost_costs_nothing_where_a_dropped_record_describes_the_last_one() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, number, dropped) = described_by_a_dropped_one(directory.path());
    disk.lose(number, dropped + 1);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.holes, found.doubted), (0, 0), "{found:?}");
    assert!(is_there(&mut Driver::new(cache), 81));
}

/// The write of a record failed, though the disk has all of the record; when the segment was closed, the footer took the place of
/// a header before. Then the trailer was lost. A start that walked on behind the footer would bring the failed record back.
#[test]
fn nothing_behind_a_footer_comes_back_when_the_trailer_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, false);
    let mut frames: Vec<_> = disk.frames(segment).collect();
    open(&disk).kill();
    let footer = disk.frames(segment).find(|frame| is_magic(frame, b"GLIDEFTR")).unwrap();
    let last = usize::try_from(last).unwrap();
    let before = frames[..last].iter().rposition(|frame| is_magic(frame, b"GLIDEREC")).unwrap();
    frames[before] = footer;
    disk.restore(segment, &frames);
    let mut driver = open(&disk);
    let volume = driver.cache.volume(A);
    for number in [79_u64, 80] {
        assert!(driver.read(&volume, range(number * 64, 64)).unwrap() == [0; 32 << 10], "{number}");
    }
    assert!(is_there(&mut driver, 78));
}

/// A cache of a killed daemon with two records not covered by a FLUSH, of numbers 81 and 82, in segment number [`LAST_SEGMENT`];
/// the disk has garbage instead of the announcement and of the first record's header. Returns the last frame of the segment, too.
fn left_by_a_power_cut(path: &std::path::Path) -> (Faulty, Vec<u8>) {
    let disk = killed(path);
    write_unflushed(&disk, &[81, 82]);
    let (number, _) = disk.find(|frame| frame == [81; FRAME_BYTES]).unwrap();
    let mut frames: Vec<_> = disk.frames(number).collect();
    disk.restore(number, &vec![vec![0; FRAME_BYTES]; frames.len()]);
    frames[1].fill(0xEE);
    frames[2].fill(0xEE);
    disk.restore(LAST_SEGMENT, &frames);
    (disk, frames.pop().unwrap())
}

const LAST_SEGMENT: u32 = 15;

/// Overwrites number 82 in a run that drops the records of [`left_by_a_power_cut`].
fn overwrite(disk: &Faulty) {
    let mut driver = open(disk);
    let volume = driver.cache.volume(A);
    assert!(driver.read(&volume, range(82 * 64, 64)).unwrap() == [0; 32 << 10], "the record was not dropped");
    driver.write(&volume, range(82 * 64, 64), Some(&[200; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
    assert_eq!(driver.cache.stats().segments_quarantined > 0, disk.faults.footers.load(Ordering::SeqCst));
    drop(volume);
    driver.kill();
}

fn require_overwritten(disk: &Faulty) {
    let mut driver = open(disk);
    let volume = driver.cache.volume(A);
    assert!(
        driver.read(&volume, range(82 * 64, 64)).unwrap() == [200; 32 << 10],
        "what was dropped came back"
    );
    drop(volume);
    driver.kill();
}

/// A start drops all records that a power cut left in a segment, and a later write takes the place of one. Then the frame behind
/// the segment's header is lost, or the trailer was not stable. If the segment had not been closed because nothing was left, the
/// dropped record would come back over the later write.
#[test]
fn a_record_that_was_dropped_does_not_come_back_though_none_was_left_in_its_segment() {
    // The trailer may not have been stable yet.
    for has_trailer in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (disk, end_of_file) = left_by_a_power_cut(directory.path());
        overwrite(&disk);
        if has_trailer {
            disk.lose(LAST_SEGMENT, 1);
        } else {
            let mut frames: Vec<_> = disk.frames(LAST_SEGMENT).collect();
            *frames.last_mut().unwrap() = end_of_file;
            disk.restore(LAST_SEGMENT, &frames);
        }
        require_overwritten(&disk);
        require_overwritten(&disk);
    }
}

/// A start drops all records of a segment, and the disk does not take the footer that closes the segment. The file must go out of
/// use, and the dropped record must not come back.
#[test]
fn a_segment_of_which_nothing_is_left_and_that_cannot_be_closed_is_not_used_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = left_by_a_power_cut(directory.path());
    disk.faults.footers.store(true, Ordering::SeqCst);
    overwrite(&disk);
    disk.faults.footers.store(false, Ordering::SeqCst);
    require_overwritten(&disk);
}
