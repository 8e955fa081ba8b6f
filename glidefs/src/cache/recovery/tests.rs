//! A start, and a second one, after the disk lost frames needed to read the log.

mod again;
mod anyones;
mod checkpoint;
mod dropped;
mod hands;
mod lanes;
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

/// Writes 32 KiB of bytes `number` to export A, at a place of their own, and FLUSHes.
fn write(driver: &mut Driver, number: u8) {
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(u64::from(number) * 64, 64), Some(&[number; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
}

/// Writes `numbers` in a run that ends without a FLUSH.
fn write_unflushed(disk: &Faulty, numbers: &[u8]) {
    let mut driver = open(disk);
    let volume = driver.cache.volume(A);
    for number in numbers {
        driver.write(&volume, range(u64::from(*number) * 64, 64), Some(&[*number; 32 << 10])).unwrap();
    }
    drop(volume);
    driver.kill();
}

/// Whether the data of number `number` can be read. Panics when a read gives other data.
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

/// A cache of a killed daemon: two sealed segments and one that was being filled, everything FLUSHed.
fn killed(path: &std::path::Path) -> Faulty {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.keep();
    driver.kill();
    disk
}

/// Segment number, and number of the first frame with `magic`, in a segment with records that is sealed, or is not.
fn structure(disk: &Faulty, magic: &[u8], sealed: bool) -> (u32, u64) {
    let numbers: Vec<u32> = (0..16)
        .filter(|number| {
            let mut frames = disk.frames(*number);
            let trailer = frames.next_back().is_some_and(|frame| is_magic(&frame, b"GLIDETRL"));
            let holds = frames.any(|frame| is_magic(&frame, b"GLIDEREC"));
            holds && trailer == sealed
        })
        .collect();
    numbers
        .into_iter()
        .find_map(|number| {
            let frame = disk.frames(number).position(|frame| is_magic(&frame, magic))?;
            Some((number, frame as u64))
        })
        .unwrap()
}

/// Name; whether the segment is sealed; the magic to look for; the frame to lose, if not the frame found; how many numbers may be
/// lost.
type Case = (&'static str, bool, &'static [u8], Option<u64>, usize);

/// A sector goes bad for good under each structure of a segment: reads fail, writes are taken, and the next sync fails. Each
/// start must open the cache, lose no more than the data of the sector, and keep what was written since.
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

/// Segment number and frame of the last record of a segment that is sealed, or is not.
fn last_record(disk: &Faulty, sealed: bool) -> (u32, u64) {
    let (number, _) = structure(disk, b"GLIDEREC", sealed);
    let frames: Vec<_> = disk.frames(number).collect();
    let last = frames.iter().rposition(|frame| is_magic(frame, b"GLIDEREC")).unwrap();
    (number, last as u64)
}

/// Whether segment number `number` is prepared and nothing was appended.
fn is_standby(disk: &Faulty, number: u32) -> bool {
    let frames: Vec<_> = disk.frames(number).collect();
    frames.first().is_some_and(|front| is_magic(front, b"GLIDESEG")) && !is_magic(&frames[1], b"GLIDEREC")
}

/// Frames of a record that [`write`] makes.
const RECORD_FRAMES: u64 = 9;

/// The frame behind the last record of a segment cannot be read, so a start cannot tell whether a record was there, and doubts
/// the export. The next start finds the same damage, and must not doubt the writes in between.
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
        // As if the daemon had ended before the segment was erased.
        disk.restore(segment, &damaged);
    }
}

/// A cache of four segments, most of each overwritten; also segment number and frame of the last record.
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

/// As above, in a cache without a segment to spare for the entry of doubt: the damaged segment itself stands for the entry.
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

/// Wipes the segments with entries of doubt, as if none of these had been stable when the power failed.
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

/// A start finds a hole, a write follows, and a power cut takes the entry of doubt. The next start finds the hole as if for the
/// first time, and must not doubt the write in between.
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
        // A checkpoint that lists a segment waits until the segment is stable.
        std::fs::remove_file(directory.path().join("index.ckpt")).unwrap();
    }
}

/// The path to the disk fails over during a start, and reads fail for a while. The start must wait, and not take the frames for
/// damaged.
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

/// The trailer of a sealed segment rots, and the header of the last record. The footer behind the record proves that there was
/// one, so the start must find a hole and not a torn end.
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
            "a record covered by a FLUSH is gone, and its sectors read as something older"
        );
        driver.kill();
    }
}

/// After the loss of a record, older content of the export is in doubt. A copy of the export's data to another volume must list
/// all doubted sectors as damaged, and take none of their content.
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

/// The page cache has a wrong copy of a record header or of data, and the disk has the right frame. A start that believed the
/// copy dropped the record as torn.
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
