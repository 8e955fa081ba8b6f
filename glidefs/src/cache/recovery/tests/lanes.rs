//! Starts after a shard has filled two segments at a time: one with writes whose FLUSH was expected.

use super::*;

/// A record of the common lane is lost, and behind it in the log there are only lower numbers, of the other lane.
#[test]
fn a_lost_record_of_one_lane_is_missed_though_the_other_lane_has_a_later_segment_with_lower_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    disk.faults.stable_appends.store(true, Ordering::SeqCst);
    let mut driver = open(&disk);
    driver.write_through();
    let volume = driver.cache.volume(A);
    // Each with a FLUSH behind: the last ones go through.
    for number in 1..=10 {
        write(&mut driver, number);
        driver.keep();
    }
    for number in 11..=20 {
        driver.write(&volume, range(u64::from(number) * 64, 64), Some(&[number; 32 << 10])).unwrap();
    }
    driver.write(&volume, range(15 * 64, 64), Some(&[99; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
    drop(volume);
    driver.kill();

    let (common, lost) = disk.find(|frame| frame == [99; FRAME_BYTES]).unwrap();
    let (through, _) = disk.find(|frame| frame == [10; FRAME_BYTES]).unwrap();
    assert_ne!(common, through);
    disk.lose(common, lost - 1);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.doubted, 1, "{found:?}");
    let mut driver = Driver::new(cache);
    assert!(!is_there(&mut driver, 15), "what was there before the lost write was served");
}
