//! A start that finds damage after an earlier start did, or finds bytes that look like records and are not.

use super::*;
use crate::cache::log::format::{
    Entry, EntryKind, FooterBuilder, RecordBuilder, SegmentHeader, SegmentKey, decode_record, encode_sums,
};
use crate::units::Seq;

/// An entry of zeroes of export [`A`].
fn zeroed(seq: u64, range: SectorRange) -> Entry {
    Entry { export: A, seq: Seq(seq), range, kind: EntryKind::Zero }
}

/// Numbers of the sealed segments with records, oldest first.
fn sealed(disk: &Faulty) -> Vec<u32> {
    let mut found: Vec<(u64, u32)> = (0..16)
        .filter_map(|number| {
            let frames: Vec<_> = disk.frames(number).collect();
            let holds = is_magic(frames.last()?, b"GLIDETRL") && is_magic(&frames[1], b"GLIDEREC");
            holds.then(|| (segment_id(&frames[0]), number))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, number)| number).collect()
}

fn segment_id(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[32..40].try_into().unwrap())
}

/// Loses the last record of sealed segment number `number`, and the trailer, which leads to the footer.
fn lose_last_record(disk: &Faulty, number: u32) {
    let frames: Vec<_> = disk.frames(number).collect();
    let last = frames.iter().rposition(|frame| is_magic(frame, b"GLIDEREC")).unwrap();
    disk.rot((number, LAST));
    disk.rot((number, last as u64));
}

/// A start doubts the exports because of a lost record. Then a record of another segment is lost: this is a new doubt, and the
/// next start must not take it for the known one.
#[test]
fn a_hole_in_another_segment_than_the_one_that_an_earlier_start_found_is_news() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let sealed = sealed(&disk);
    for (life, segment) in (0..2).zip(&sealed) {
        lose_last_record(&disk, *segment);
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        // A wrong header does not tell whose the record was: both exports are in doubt.
        assert_eq!((found.holes, found.doubted), (1, 2), "life {life}: {found:?}");
        let mut driver = Driver::new(cache);
        assert!((1..=80).any(|number| !is_there(&mut driver, number)), "life {life}");
        (0..life).for_each(|number| assert!(is_there(&mut driver, 100 + number), "life {life}"));
        write(&mut driver, 100 + life);
        driver.kill();
    }
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.holes, found.doubted), (0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!(is_there(&mut driver, 100) && is_there(&mut driver, 101));
    driver.kill();
}

/// A guest writes data that looks like a record header with a very high segment id. Then both ends of the segment file are lost.
/// The id must come from the segment's own records.
#[test]
fn what_a_guest_wrote_does_not_say_which_segment_a_file_is() {
    for claimed in [1 << 40, u64::MAX] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        (1..=3).for_each(|number| write(&mut driver, number));
        let mut record = RecordBuilder::default();
        record.push(&zeroed(1, range(0, 8)), &[]);
        record.finish(&SegmentKey { cache_id: [9; 16], segment_id: claimed }, 1, 1, &[]);
        let volume = driver.cache.volume(A);
        driver.write(&volume, range(9000, 8), Some(&record.frame()[..])).unwrap();
        (4..=5).for_each(|number| write(&mut driver, number));
        drop(volume);
        driver.kill();
        let (segment, _) = structure(&disk, b"GLIDEREC", false);
        disk.lose(segment, 0);
        disk.lose(segment, LAST);
        for life in 0..2 {
            let mut driver = open(&disk);
            (1..=5).for_each(|number| assert!(is_there(&mut driver, number), "life {life}: {number}"));
            driver.kill();
        }
    }
}

/// A start doubts the exports because of one segment. Then a file that has been used again since cannot be read at all: this is a
/// new doubt, though the id made up for the file says nothing of the lost segment.
#[test]
fn a_file_of_which_nothing_can_be_read_is_news_after_a_hole_that_an_earlier_start_found() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    let first = segment_id(&disk.frames(0).next().unwrap());
    lose_last_record(&disk, sealed(&disk)[0]);
    let mut driver = open(&disk);
    let reused = |disk: &Faulty| {
        let frames: Vec<_> = disk.frames(0).collect();
        segment_id(&frames[0]) > first && segment_id(&frames[1]) == segment_id(&frames[0])
    };
    let mut rounds = 0;
    while !reused(&disk) {
        assert!(rounds < 100, "the first segment is never used again");
        (1..=80).for_each(|number| write(&mut driver, number));
        rounds += 1;
    }
    (1..=80).for_each(|number| assert!(is_there(&mut driver, number)));
    driver.kill();
    (0..=LAST).for_each(|frame| disk.lose(0, frame));
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.doubted, 2, "{found:?}");
    let mut driver = Driver::new(cache);
    driver.keep();
    write(&mut driver, 100);
    driver.kill();
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.doubted, 0, "{found:?}");
    let mut driver = Driver::new(cache);
    assert!(is_there(&mut driver, 100));
    driver.kill();
}

/// All sectors under a segment file are bad for good. The first start doubts the exports; later starts must know the damage, and
/// keep what was written in between.
#[test]
fn a_file_of_which_nothing_can_be_read_or_written_is_news_once() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    disk.faults.stay.store(true, Ordering::SeqCst);
    (0..=LAST).for_each(|frame| disk.lose(0, frame));
    for life in 0..4 {
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, if life == 0 { 2 } else { 0 }, "life {life}: {found:?}");
        let mut driver = Driver::new(cache);
        (0..life).for_each(|number| assert!(is_there(&mut driver, 100 + number), "life {life}: {number}"));
        write(&mut driver, 100 + life);
        driver.keep();
        driver.kill();
    }
}

/// Two damaged segments stand for one entry of doubt each, in a cache without a segment to spare. The keeper moves the entries of
/// one segment elsewhere and erases the segment. Erased any earlier, the segment would take the doubt along.
#[test]
fn a_segment_that_stands_for_a_doubt_is_erased_when_the_doubt_is_elsewhere_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    for number in 0..100_u64 {
        let volume = driver.cache.volume(if (35..70).contains(&number) { B } else { A });
        let at = if number % 28 < 3 { number } else { 200 };
        driver.write(&volume, range(at * 64, 64), Some(&[7; 32 << 10])).unwrap();
        driver.flush(&volume).unwrap();
    }
    driver.kill();
    let sealed = sealed(&disk);
    lose_last_record(&disk, sealed[0]);
    lose_last_record(&disk, sealed[1]);
    let (cache, found) = disk.open_with(5, Known::local(&[A, B])).unwrap();
    assert_eq!((found.holes, found.doubted), (2, 2), "{found:?}");
    let mut keeper = cache.keeper();
    while cache.stats().segments_quarantined == 0 {
        assert!(keeper.step(), "{:?}", cache.stats());
    }
    drop((keeper, cache));
    for life in 0..3 {
        let mut driver = Driver::new(disk.open_with(5, Known::local(&[A, B])).unwrap().0);
        for export in [A, B] {
            assert!(driver.cache.volume(export).is_doubted(), "life {life}: {export:?}");
        }
        driver.keep();
        driver.kill();
    }
}

/// A segment of copies lost its header once, and the new header tells nothing of cleaning. Sequence numbers around a hole among
/// copies say nothing of the records in the hole, since copies are in no order.
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
    for frame in &mut frames {
        frame.fill(0);
    }
    frames[0].copy_from_slice(&header.encode());
    frames.last_mut().unwrap().copy_from_slice(&header.encode());
    for (frame, seq) in [(1, 50), (3, 51)] {
        let mut record = RecordBuilder::default();
        record.push(&zeroed(seq, range(9000, 8)), &[]);
        record.finish(&key, frame, frame, &[]);
        frames[frame as usize].copy_from_slice(&record.frame()[..]);
    }
    disk.restore(15, &frames);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.holes, 1, "{found:?}");
    assert!(cache.volume(A).is_doubted());
}

/// A start drops all records of a segment in a file used before, and closes the segment: the footer and the sums lie over the
/// older records. Then both ends of the file are lost. The file must not be taken for the older segment, with a hole in front.
#[test]
fn a_segment_closed_without_records_is_known_by_its_sums() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    for number in (1..=40).cycle().take(400) {
        write(&mut driver, number);
        driver.keep();
    }
    driver.kill();
    let used_before = |number: &u32| {
        let frames: Vec<_> = disk.frames(*number).collect();
        let Some(Ok(header)) = frames.first().map(|front| SegmentHeader::decode(front)) else { return false };
        let is_fresh =
            frames.last() == frames.first() && decode_record(&frames[1], &header.key(), 1).is_err();
        is_fresh && frames.iter().skip(3).any(|frame| is_magic(frame, b"GLIDEREC"))
    };
    let number = (0..16).find(used_before).unwrap();
    let mut frames: Vec<_> = disk.frames(number).collect();
    let key = SegmentHeader::decode(&frames[0]).unwrap().key();
    frames[1] = FooterBuilder::default().encode(&key);
    frames[2] = encode_sums(&key, 2, 0, &[0]).to_vec();
    // Data of the dropped records.
    frames[3..24].fill(vec![5; FRAME_BYTES]);
    disk.restore(number, &frames);
    disk.rot((number, 0));
    disk.rot((number, LAST));
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.holes, found.doubted), (0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=40).all(|number| is_there(&mut driver, number)));
    driver.kill();
}
