//! A start, and another one, after the disk lost what the log is read by.

mod again;
mod places;
mod syncs;

use std::sync::atomic::Ordering;

use crate::cache::driver::Driver;
use crate::cache::faulty::{Faulty, SEGMENT_BYTES};
use crate::cache::log::disk::Disk as _;
use crate::cache::{IoError, Known};
use crate::units::{ExportId, FRAME_BYTES, SectorRange};

const A: ExportId = ExportId(1);
const B: ExportId = ExportId(2);
const LAST: u64 = SEGMENT_BYTES / FRAME_BYTES as u64 - 1;

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn open(disk: &Faulty) -> Driver {
    Driver::new(disk.open(Known::local(&[A, B])).unwrap().0)
}

fn is_magic(frame: &[u8], magic: &[u8]) -> bool {
    frame.starts_with(magic)
}

/// Writes number `number` to export A; no two numbers share sectors.
fn write(driver: &mut Driver, number: u8) {
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(u64::from(number) * 64, 64), Some(&[number; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
}

/// Writes `numbers` in a life that ends without a FLUSH.
fn write_unflushed(disk: &Faulty, numbers: &[u8]) {
    let mut driver = open(disk);
    let volume = driver.cache.volume(A);
    for number in numbers {
        driver.write(&volume, range(u64::from(*number) * 64, 64), Some(&[*number; 32 << 10])).unwrap();
    }
    drop(volume);
    driver.kill();
}

/// What a read of number `number` says: `true` where the data is there.
fn is_there(driver: &mut Driver, number: u8) -> bool {
    let volume = driver.cache.volume(A);
    match driver.read(&volume, range(u64::from(number) * 64, 64)) {
        Ok(data) => {
            assert!(data == [number; 32 << 10], "{number} reads as something else");
            true
        }
        Err(IoError::Damaged | IoError::Read) => false,
        Err(error) => panic!("{number}: {error}"),
    }
}

/// A cache of two sealed segments and one that was being filled, all of it stored.
fn killed(path: &std::path::Path) -> Faulty {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.keep();
    driver.kill();
    disk
}

/// Segment and number of the first frame with `magic` whose segment is sealed, or is not.
fn structure(disk: &Faulty, magic: &[u8], sealed: bool) -> (u32, u64) {
    let table: Vec<u32> = (0..16)
        .filter(|info| {
            let mut frames = disk.frames(*info);
            let trailer = frames.next_back().is_some_and(|frame| is_magic(&frame, b"GLIDETRL"));
            let holds = frames.any(|frame| is_magic(&frame, b"GLIDEREC"));
            holds && trailer == sealed
        })
        .collect();
    table
        .into_iter()
        .find_map(|info| {
            let frame = disk.frames(info).position(|frame| is_magic(&frame, magic))?;
            Some((info, frame as u64))
        })
        .unwrap()
}

/// Name; whether the segment is sealed; what to look for in it; the frame, if not that of what was found; how many numbers
/// may be lost.
type Case = (&'static str, bool, &'static [u8], Option<u64>, usize);

#[test]
fn a_frame_that_stays_bad_never_keeps_the_cache_from_opening() {
    let cases: [Case; 9] = [
        ("front of a sealed segment", true, b"GLIDESEG", None, 0),
        ("record of a sealed segment", true, b"GLIDEREC", None, 0),
        ("footer", true, b"GLIDEFTR", None, 0),
        ("trailer", true, b"GLIDEREC", Some(LAST), 0),
        ("front of an open segment", false, b"GLIDESEG", None, 0),
        ("announcement of an open segment", false, b"GLIDEREC", None, 0),
        ("data of an open segment", false, b"GLIDEREC", Some(5), 1),
        ("copy of a header", false, b"GLIDEREC", Some(LAST), 0),
        ("end of an open segment", false, b"GLIDEREC", Some(LAST - 1), 0),
    ];
    for (name, sealed, magic, frame, lost_max) in cases {
        let directory = tempfile::tempdir().unwrap();
        let disk = killed(directory.path());
        let (segment, found) = structure(&disk, magic, sealed);
        disk.faults.stay.store(true, Ordering::SeqCst);
        disk.lose(segment, frame.unwrap_or(found));
        for life in 0..4_u8 {
            let opened = disk.open(Known::local(&[A, B]));
            let mut driver =
                Driver::new(opened.unwrap_or_else(|error| panic!("{name}, life {life}: {error}")).0);
            let lost = (1..=80).filter(|number| !is_there(&mut driver, *number)).count();
            assert!(lost <= lost_max, "{name}, life {life}: {lost} lost");
            (0..=life).for_each(|number| {
                if number < life {
                    assert!(is_there(&mut driver, 100 + number), "{name}, life {life}: {number}");
                }
            });
            driver.keep();
            write(&mut driver, 100 + life);
            driver.kill();
        }
    }
}

/// The last record of a segment that is sealed, or is not: segment and frame.
fn last_record(disk: &Faulty, sealed: bool) -> (u32, u64) {
    let (number, _) = structure(disk, b"GLIDEREC", sealed);
    let frames: Vec<_> = disk.frames(number).collect();
    let last = frames.iter().rposition(|frame| is_magic(frame, b"GLIDEREC")).unwrap();
    (number, last as u64)
}

/// Whether `segment` has a segment to which nothing was appended.
fn is_standby(disk: &Faulty, number: u32) -> bool {
    let frames: Vec<_> = disk.frames(number).collect();
    frames.first().is_some_and(|front| is_magic(front, b"GLIDESEG")) && !is_magic(&frames[1], b"GLIDEREC")
}

/// Frames of a record that [`write`] makes.
const RECORD_FRAMES: u64 = 9;

#[test]
fn a_hole_that_an_earlier_start_found_costs_nothing_that_was_written_since() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, false);
    disk.faults.stay.store(true, Ordering::SeqCst);
    disk.lose(segment, last + RECORD_FRAMES);
    let damaged: Vec<_> = disk.frames(segment).collect();
    for life in 0..4 {
        let mut driver = open(&disk);
        for number in 0..life {
            assert!(is_there(&mut driver, 100 + number), "life {life}: {number}");
        }
        write(&mut driver, 100 + life);
        driver.kill();
        // As if the end had come before the segment was erased.
        disk.restore(segment, &damaged);
    }
}

/// A cache of four segments with little in each that is not overwritten; segment and frame of the last record of the last one.
fn overwritten(path: &std::path::Path) -> (Faulty, u32, u64) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    for number in 0..100 {
        write(&mut driver, if number % 28 < 3 { number } else { 200 });
    }
    driver.kill();
    let (segment, last) = last_record(&disk, false);
    (disk, segment, last)
}

#[test]
fn a_hole_in_a_full_cache_costs_nothing_that_was_written_since() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment, last) = overwritten(directory.path());
    disk.lose(segment, last + RECORD_FRAMES);
    for life in 0..3 {
        let opened = disk.open_with(5, Known::local(&[A, B])).unwrap();
        assert!(life > 0 || opened.1.doubted > 0, "{:?}", opened.1);
        let mut driver = Driver::new(opened.0);
        for number in 0..life {
            assert!(is_there(&mut driver, 100 + number), "life {life}: {number}");
        }
        write(&mut driver, 100 + life);
        driver.keep();
        driver.kill();
    }
}

/// Wipes the segments with records of doubt, as if none of them had been stable when the power failed.
fn forget_doubts(disk: &Faulty) {
    for number in 0..16 {
        let mut frames: Vec<_> = disk.frames(number).collect();
        let kinds = |frame: &[u8]| (0..usize::from(frame[10])).any(|entry| frame[48 + 28 * entry + 26] == 4);
        if frames.iter().any(|frame| is_magic(frame, b"GLIDEREC") && kinds(frame)) {
            for frame in &mut frames {
                frame.fill(0);
            }
            disk.restore(number, &frames);
        }
    }
}

#[test]
fn a_hole_whose_finding_was_not_stable_costs_nothing_that_was_written_since() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment, last) = overwritten(directory.path());
    disk.faults.stay.store(true, Ordering::SeqCst);
    disk.lose(segment, last + RECORD_FRAMES);
    let damaged: Vec<_> = disk.frames(segment).collect();
    for life in 0..2 {
        let opened = disk.open_with(5, Known::local(&[A, B])).unwrap();
        assert!(opened.1.doubted > 0, "life {life}: {:?}", opened.1);
        let mut driver = Driver::new(opened.0);
        for number in 0..life {
            assert!(is_there(&mut driver, 100 + number), "life {life}: {number}");
        }
        write(&mut driver, 100 + life);
        driver.kill();
        disk.restore(segment, &damaged);
        forget_doubts(&disk);
    }
}

#[test]
fn reads_that_fail_for_a_second_and_a_half_at_start_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    *disk.faults.away.lock().unwrap() = std::time::Duration::from_millis(1500);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.unreadable, found.holes, found.doubted), (0, 0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}

#[test]
fn a_lost_record_before_a_footer_is_missed_although_the_trailer_is_lost_too() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let (segment, last) = last_record(&disk, true);
    disk.rot((segment, LAST));
    disk.rot((segment, last));
    for life in 0..2 {
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.holes, u64::from(life == 0), "{found:?}");
        let mut driver = Driver::new(cache);
        let lost: Vec<u8> = (1..=80).filter(|number| !is_there(&mut driver, *number)).collect();
        assert!(
            !lost.is_empty(),
            "a record that was flushed is gone, and its sectors read as something older"
        );
        driver.kill();
    }
}

#[test]
fn what_is_in_doubt_is_not_rescued_into_another_volume() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let driver = open(&disk);
    let kept = driver.cache.kept(&driver.cache.volume(A));
    assert!(!kept.extents().is_empty() && kept.damaged().is_empty());
    drop(kept);
    driver.kill();
    let (number, last) = last_record(&disk, true);
    disk.rot((number, LAST));
    disk.rot((number, last));
    let driver = open(&disk);
    let kept = driver.cache.kept(&driver.cache.volume(A));
    let damaged = |at: u64| kept.damaged().iter().any(|lost| lost.start() <= at && at < lost.end());
    assert!((0..81 * 64).all(|at| {
        damaged(at) != kept.extents().iter().any(|whole| whole.range.start() <= at && at < whole.range.end())
    }));
    assert!(damaged(80 * 64 + 64), "sectors that nobody is known to have written are in doubt as well");
    drop(kept);
    driver.kill();
}

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
    disk.restore(LAST_SLOT, &frames);
    (disk, frames.pop().unwrap())
}

const LAST_SLOT: u32 = 15;

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
            disk.lose(LAST_SLOT, 1);
        } else {
            let mut frames: Vec<_> = disk.frames(LAST_SLOT).collect();
            *frames.last_mut().unwrap() = end_of_file;
            disk.restore(LAST_SLOT, &frames);
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

#[test]
fn a_copy_in_memory_that_went_wrong_drops_no_record_at_start() {
    let is_data = |frame: &[u8]| frame == [1; FRAME_BYTES];
    for (stays, of_header) in [(false, false), (false, true), (true, false), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        let volumes = [driver.cache.volume(A), driver.cache.volume(B)];
        for (number, volume) in (1..).zip(&volumes) {
            driver.write(volume, range(0, 64), Some(&[number; 32 << 10])).unwrap();
        }
        for volume in &volumes {
            driver.flush(volume).unwrap();
        }
        drop(volumes);
        driver.kill();
        let place = if of_header { last_record(&disk, false) } else { disk.find(is_data).unwrap() };
        disk.faults.wrong_copies.lock().unwrap().insert(place);
        disk.faults.copies_stay.store(stays, Ordering::SeqCst);
        for life in 0..2 {
            let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
            assert_eq!((found.torn_tails, found.holes, found.unreadable), (0, 0, 0), "{place:?}");
            let mut driver = Driver::new(cache);
            for (number, export) in (1..).zip([A, B]) {
                let volume = driver.cache.volume(export);
                let data = driver.read(&volume, range(0, 64)).unwrap();
                assert!(
                    data == [number; 32 << 10],
                    "life {life}: {number}, stays: {stays}, header: {of_header}"
                );
            }
            driver.kill();
        }
    }
}
