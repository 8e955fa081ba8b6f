//! A start that finds damage after an earlier start did, or that finds what looks like records and is not.

use super::*;
use crate::cache::format::{RecordBuilder, SegmentHeader, SegmentKey};
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

/// A segment of copies, whose front was lost once: numbers around a hole say nothing of what was in the hole.
#[test]
fn a_hole_among_copies_is_not_judged_by_the_numbers_beside_it_after_the_front_was_lost() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let mut frames: Vec<_> = disk.frames(0).collect();
    let key = SegmentKey { cache_id: frames[0][16..32].try_into().unwrap(), segment_id: 1000 };
    let segment_bytes = SEGMENT_BYTES;
    let header = SegmentHeader {
        cache_id: key.cache_id,
        segment_id: key.segment_id,
        shard: u32::MAX - 1,
        segment_bytes,
    };
    frames.iter_mut().for_each(|frame| frame.fill(0));
    frames[0].copy_from_slice(&header.encode());
    frames.last_mut().unwrap().copy_from_slice(&header.encode());
    for (frame, seq) in [(1, 50), (3, 51)] {
        let mut record = RecordBuilder::new();
        record.push_zero(A, Seq(seq), range(9000, 8)).unwrap();
        record.finish(&key, frame, frame, &[]);
        frames[frame as usize].copy_from_slice(&record.frame()[..]);
    }
    disk.restore(15, &frames);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.holes, 1, "{found:?}");
    assert!(cache.volume(A).is_doubted());
}
