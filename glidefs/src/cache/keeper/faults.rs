//! The keeper when the disk loses data: the lost data is lost, and nothing else.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::cache::driver::{Driver, PATIENCE};
use crate::cache::faulty::Faulty;
use crate::cache::{IoError, Known};
use crate::units::{ExportId, SectorRange};

const A: ExportId = ExportId(1);
const B: ExportId = ExportId(2);

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn open(disk: &Faulty) -> Driver {
    Driver::new(disk.open(Known::local(&[A, B])).unwrap().0)
}

/// Overwrites 1 MiB of export B so often that every segment of the cache is used several times.
fn use_every_segment(driver: &mut Driver) {
    let volume = driver.cache.volume(B);
    for round in 0..400_u64 {
        let data = vec![u8::try_from(round % 100).unwrap(); 128 << 10];
        driver.write(&volume, range(round % 8 * 256, 256), Some(&data)).unwrap();
    }
    for round in 392..400_u64 {
        let data = vec![u8::try_from(round % 100).unwrap(); 128 << 10];
        assert_eq!(driver.read(&volume, range(round % 8 * 256, 256)), Ok(data));
    }
}

/// How a frame is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The kernel dropped the page after the write-back that failed.
    Changed,
    /// The disk does not read the frame.
    Unreadable,
}

fn lose(disk: &Faulty, data: u8, loss: Loss) {
    let place = disk.find(|frame| frame.iter().all(|byte| *byte == data)).unwrap();
    match loss {
        Loss::Changed => disk.rot(place),
        Loss::Unreadable => disk.lose(place.0, place.1),
    }
}

/// A sync fails, so the data of the segment must move, and one frame of the data is lost. A segment that could not be emptied
/// would keep all others from being freed. A frame that was left out would read as older data.
#[test]
fn a_failed_sync_and_a_lost_frame_do_not_stop_the_host_and_the_frame_never_reads_as_older_data() {
    for loss in [Loss::Changed, Loss::Unreadable] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        let a = driver.cache.volume(A);
        driver.write(&a, range(0, 24), Some(&[0xA0; 12288])).unwrap();
        driver.flush(&a).unwrap();
        use_every_segment(&mut driver);
        let newer = [[0xA1; 4096], [0xA2; 4096], [0xA3; 4096]].concat();
        disk.faults.syncs.store(true, Ordering::SeqCst);
        driver.write(&a, range(0, 24), Some(&newer)).unwrap();
        lose(&disk, 0xA2, loss);
        assert_eq!(driver.flush(&a), Err(IoError::Sync), "{loss:?}");
        disk.faults.syncs.store(false, Ordering::SeqCst);
        use_every_segment(&mut driver);
        let judge = |driver: &mut Driver| {
            let a = driver.cache.volume(A);
            assert_eq!(driver.read(&a, range(0, 8)).unwrap(), [0xA1; 4096], "{loss:?}");
            assert_eq!(driver.read(&a, range(16, 8)).unwrap(), [0xA3; 4096], "{loss:?}");
            assert_eq!(driver.read(&a, range(8, 1)), Err(IoError::Damaged), "{loss:?}");
            assert_eq!(driver.read(&a, range(0, 24)), Err(IoError::Damaged), "{loss:?}");
            driver.flush(&a).unwrap();
        };
        judge(&mut driver);
        let stats = driver.cache.stats();
        assert_eq!((stats.lost_frames, stats.segments_poisoned), (1, 0), "{loss:?}");
        assert_eq!(stats.segments_quarantined, u64::from(matches!(loss, Loss::Unreadable)));
        drop(a);
        driver.kill();
        let mut driver = open(&disk);
        judge(&mut driver);
        use_every_segment(&mut driver);
        judge(&mut driver);
        let a = driver.cache.volume(A);
        driver.write(&a, range(8, 4), Some(&[0xA4; 2048])).unwrap();
        driver.write(&a, range(12, 4), None).unwrap();
        drop(a);
        driver.kill();
        let mut driver = open(&disk);
        let a = driver.cache.volume(A);
        let healed = [vec![0xA1; 4096], vec![0xA4; 2048], vec![0; 2048], vec![0xA3; 4096]].concat();
        assert_eq!(driver.read(&a, range(0, 24)), Ok(healed), "{loss:?}");
    }
}

/// The page cache has a wrong copy of a frame that must move, and the disk has the right one. The right one moves, and the frame
/// does not count as lost.
#[test]
fn a_copy_in_memory_that_went_wrong_is_not_what_moves() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    let a = driver.cache.volume(A);
    let data = [[0xA1; 4096], [0xA2; 4096], [0xA3; 4096]].concat();
    driver.write(&a, range(0, 24), Some(&data)).unwrap();
    let place = disk.find(|frame| frame == [0xA2; 4096]).unwrap();
    disk.faults.wrong_copies.lock().unwrap().insert(place);
    // Data that could not be made stable moves.
    disk.faults.syncs.store(true, Ordering::SeqCst);
    assert_eq!(driver.flush(&a), Err(IoError::Sync));
    disk.faults.syncs.store(false, Ordering::SeqCst);
    use_every_segment(&mut driver);
    driver.flush(&a).unwrap();
    assert_eq!(driver.read(&a, range(0, 24)), Ok(data));
    assert_eq!((driver.cache.stats().lost_frames, driver.cache.stats().corrupt_frames), (0, 0));
}

/// Record headers are lost in a segment whose data must move, so a walk does not find all records. The indexes still know the
/// data, and all of the data moves.
#[test]
fn a_lost_record_header_of_a_segment_that_must_move_loses_nothing() {
    for loss in [Loss::Changed, Loss::Unreadable] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        let a = driver.cache.volume(A);
        for number in 0..6 {
            driver
                .write(&a, range(number * 10, 12), Some(&[0x10 + u8::try_from(number).unwrap(); 6144]))
                .unwrap();
        }
        let (segment, _) = disk.find(|frame| frame == [0x12; 4096]).unwrap();
        let mut headers = Vec::new();
        while let Some(place) = disk.find(|frame| {
            frame.starts_with(b"GLIDEREC") && !headers.contains(&frame[40..48].to_vec()) && {
                headers.push(frame[40..48].to_vec());
                headers.len() % 2 == 0
            }
        }) {
            assert_eq!(place.0, segment);
            match loss {
                Loss::Changed => disk.rot(place),
                Loss::Unreadable => disk.lose(place.0, place.1),
            }
        }
        disk.faults.syncs.store(true, Ordering::SeqCst);
        assert_eq!(driver.flush(&a), Err(IoError::Sync));
        disk.faults.syncs.store(false, Ordering::SeqCst);
        use_every_segment(&mut driver);
        driver.flush(&a).unwrap();
        drop(a);
        driver.kill();
        let mut driver = open(&disk);
        let a = driver.cache.volume(A);
        for sector in 0..62_u64 {
            let number = u8::try_from((sector / 10).min(5)).unwrap();
            assert_eq!(driver.read(&a, range(sector, 1)).unwrap(), [0x10 + number; 512], "{loss:?} {sector}");
        }
    }
}

/// The disk does not take footers for a while. Without another try the next start would have to scan each of these segments.
#[test]
fn a_footer_that_the_disk_did_not_take_is_written_once_the_disk_takes_it() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    let a = driver.cache.volume(A);
    disk.faults.footers.store(true, Ordering::SeqCst);
    // More data than one segment holds.
    for number in 0..12 {
        driver.write(&a, range(number * 256, 256), Some(&[0xA0; 128 << 10])).unwrap();
    }
    driver.flush(&a).unwrap();
    driver.keep();
    let is_closed = || disk.find(|frame| frame.starts_with(b"GLIDETRL")).is_some();
    assert!(!is_closed());
    disk.faults.footers.store(false, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while !is_closed() {
        assert!(Instant::now() < deadline, "nobody writes the footer");
        driver.keep();
        std::thread::sleep(Duration::from_millis(10));
    }
}
