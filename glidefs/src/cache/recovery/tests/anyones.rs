//! Damage that may have hidden an export which no record of the segment names any more.

use super::*;

/// A cache of a killed daemon with a record of B, and with `records` records of A in a later segment. Returns the number of that
/// segment.
fn beside_another(path: &std::path::Path, records: u8) -> (Faulty, u32) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    let volume = driver.cache.volume(B);
    driver.write(&volume, range(0, 8), Some(&[100; 4096])).unwrap();
    driver.flush(&volume).unwrap();
    drop(volume);
    driver.kill();
    let mut driver = open(&disk);
    (1..=records).for_each(|number| write(&mut driver, number));
    driver.kill();
    let (segment, _) = disk.find(|frame| frame == [1; FRAME_BYTES]).unwrap();
    (disk, segment)
}

/// Frame of the announcement of A. The header of record 1 is behind.
const ANNOUNCEMENT: u64 = 1;
const HEADER: u64 = ANNOUNCEMENT + 1;

/// The disk does not read the first frame of the damage, and a frame behind has wrong bytes. Without the announcement, and without the
/// header behind, nothing in the segment says that A lost a record.
#[test]
fn wrong_bytes_behind_a_frame_that_cannot_be_read_may_be_anyones() {
    // How many records; the frame that cannot be read; the frame with a wrong byte, if any; how many exports are in doubt.
    let cases = [
        (1, ANNOUNCEMENT, Some(HEADER), 2),
        (3, HEADER, Some(HEADER + RECORD_FRAMES), 2),
        (1, HEADER, None, 1),
        (1, HEADER, Some(HEADER + 1), 1),
        (1, ANNOUNCEMENT, None, 0),
        (2, ANNOUNCEMENT, Some(HEADER), 0),
    ];
    for (records, lost, wrong, doubted) in cases {
        let directory = tempfile::tempdir().unwrap();
        let (disk, segment) = beside_another(directory.path(), records);
        disk.faults.stay.store(true, Ordering::SeqCst);
        disk.lose(segment, lost);
        if let Some(wrong) = wrong {
            disk.rot((segment, wrong));
        }
        let case = format!("{records} records, {lost} and {wrong:?}");
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, doubted, "{case}: {found:?}");
        let mut driver = Driver::new(cache);
        assert_eq!(is_there(&mut driver, 1), doubted == 0, "{case}");
        let of_b = driver.cache.volume(B);
        assert_eq!(driver.read(&of_b, range(0, 8)).is_ok(), doubted < 2, "{case}");
        drop(of_b);
        driver.kill();
    }
}
