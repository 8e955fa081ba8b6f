//! A start that finds damage after an earlier start did, or that finds what looks like records and is not.

use super::*;
use crate::cache::format::{RecordBuilder, SegmentKey};
use crate::units::Seq;

#[test]
fn what_a_guest_wrote_does_not_say_which_segment_a_file_is() {
    for claimed in [1 << 40, u64::MAX] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        (1..=3).for_each(|number| write(&mut driver, number));
        let mut record = RecordBuilder::new();
        record.push_zero(A, Seq(1), range(0, 8)).unwrap();
        record.finish(&SegmentKey { cache_id: [9; 16], segment_id: claimed }, 1, 1, &[]);
        let volume = driver.cache.volume(A);
        driver.write(&volume, range(9000, 8), Some(&record.frame()[..])).unwrap();
        (4..=5).for_each(|number| write(&mut driver, number));
        drop(volume);
        driver.kill();
        let (slot, _) = structure(&disk, b"GLIDEREC", false);
        disk.lose(slot, 0);
        disk.lose(slot, LAST);
        for life in 0..2 {
            let mut driver = open(&disk);
            (1..=5).for_each(|number| assert!(is_there(&mut driver, number), "life {life}: {number}"));
            driver.kill();
        }
    }
}
