//! Records that a start drops: they do not come back, and what they describe stays.

use super::*;

#[test]
fn a_record_that_only_a_dropped_one_describes_outlives_a_trailer_that_was_not_stable() {
    // Records behind the one that is dropped, of which the first has no header any more.
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
/// segment of both, and the frame of that header, which a footer follows.
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

/// A footer that was written before the record was dropped may still be behind that record.
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

#[test]
fn a_footer_that_is_lost_costs_nothing_where_a_dropped_record_describes_the_last_one() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, number, dropped) = described_by_a_dropped_one(directory.path());
    disk.lose(number, dropped + 1);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.holes, found.doubted), (0, 0), "{found:?}");
    assert!(is_there(&mut Driver::new(cache), 81));
}

/// A record that failed is behind the footer that took the place of its announcement, though the disk has all of it.
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

/// A cache that was killed with two records that were not stored, of numbers 81 and 82, in a segment in the last segment; of the
/// announcement and of the first record's header the disk has something else. Returns the last frame of that segment, too.
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

/// Overwrites number 82 in a life that drops the records of [`left_by_a_power_cut`].
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

#[test]
fn a_segment_of_which_nothing_is_left_and_that_cannot_be_closed_is_not_used_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = left_by_a_power_cut(directory.path());
    disk.faults.footers.store(true, Ordering::SeqCst);
    overwrite(&disk);
    disk.faults.footers.store(false, Ordering::SeqCst);
    require_overwritten(&disk);
}
