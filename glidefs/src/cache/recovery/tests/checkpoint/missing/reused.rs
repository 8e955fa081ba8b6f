//! The number of a segment that the checkpoint lists may have gone to another segment before the file was lost.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::interrupted::stopped_with_zeroes;
use super::*;
use crate::cache::log::batch::Batch;
use crate::cache::log::format::{Entry, EntryKind, SegmentHeader};
use crate::cache::log::seal;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::table::SegmentTable;
use crate::cache::recovery::identify::UNKNOWN_SHARD;

fn id_in(disk: &Faulty, number: u32) -> u64 {
    let front = disk.frames(number).next().filter(|frame| is_magic(frame, b"GLIDESEG")).unwrap();
    u64::from_le_bytes(front[32..40].try_into().unwrap())
}

/// Whether the file has a later segment than `id`, with records.
fn is_used_since(disk: &Faulty, segment: u32, id: u64) -> bool {
    let front = disk.frames(segment).next().unwrap();
    let is_record = |frame: Vec<u8>| is_magic(&frame, b"GLIDEREC") && frame[16..40] == front[16..40];
    id_in(disk, segment) > id && disk.frames(segment).any(is_record)
}

/// Writes the numbers in a covered segment again, until the segment's number has a new segment with records. Then the newest content of
/// [`PLACE`] is written there, and some more elsewhere.
fn use_again(disk: &Faulty, driver: &mut Driver, segment: u32, numbers: &[u8]) {
    let id = id_in(disk, segment);
    for number in numbers.iter().cycle().take(2000) {
        if is_used_since(disk, segment, id) {
            break;
        }
        write(driver, *number);
        driver.keep();
    }
    write_at(driver, NEWEST);
    assert_eq!(disk.find(|frame| frame == [NEWEST; FRAME_BYTES]).map(|(number, _)| number), Some(segment));
    numbers.iter().cycle().take(80).for_each(|number| write(driver, *number));
}

/// The content of a covered segment was written again, the segment's number was used again, and the file is lost.
#[test]
fn a_lost_segment_with_the_number_of_a_covered_one_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    write_at(&mut driver, OLDER);
    (1..=100).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.without_checkpoints();
    let (segment, _) = disk.find(|frame| frame == [50; FRAME_BYTES]).unwrap();
    let numbers = numbers_in(&disk, segment);
    use_again(&disk, &mut driver, segment, &numbers);
    driver.kill();
    lose(&disk, segment, Loss::File);
    for life in 0..2 {
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, if life == 0 { 2 } else { 0 }, "life {life}: {found:?}");
        let mut driver = Driver::new(cache);
        assert!(failing(&mut driver).contains(&7), "life {life}");
        driver.kill();
    }
}

/// The content of a covered segment was replaced, the number was used again for still newer content, and what had freed the number was
/// replaced as well: so the content is found nowhere, and does not prove that the covered segment is the one lost.
#[test]
fn what_is_missed_proves_no_loss_where_the_log_went_round_since_the_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    write_at(&mut driver, OLDER);
    (1..=100).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.without_checkpoints();
    let (segment, _) = disk.find(|frame| frame == [50; FRAME_BYTES]).unwrap();
    let (id, numbers) = (id_in(&disk, segment), numbers_in(&disk, segment));
    let mut fill = (150..180).cycle();
    let mut fill_until = |driver: &mut Driver, is_so: &dyn Fn() -> bool| {
        for number in fill.by_ref().take(6000) {
            if is_so() {
                return;
            }
            write(driver, number);
            driver.keep();
        }
        panic!("the log does not go round");
    };
    for number in &numbers {
        write(&mut driver, *number);
    }
    fill_until(&mut driver, &|| is_used_since(&disk, segment, id));
    write_at(&mut driver, NEWEST);
    write(&mut driver, 50);
    numbers.iter().filter(|number| **number != 50).for_each(|number| write(&mut driver, *number));
    let newest = disk.find(|frame| frame == [NEWEST; FRAME_BYTES]).map(|(number, _)| number);
    assert_eq!(newest, Some(segment));
    let is_elsewhere =
        |number: u32| number != segment && disk.frames(number).any(|frame| frame == [50; FRAME_BYTES]);
    fill_until(&mut driver, &|| !(0..16).any(is_elsewhere));
    assert!(disk.frames(segment).any(|frame| frame == [NEWEST; FRAME_BYTES]));
    driver.kill();
    lose(&disk, segment, Loss::File);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.doubted, 2, "{found:?}");
    assert!(failing(&mut Driver::new(cache)).contains(&7));
}

/// The content of two covered segments was written again, and both numbers were used again. With the files, the disk lost what had replaced
/// the content: so all of the content is missed.
#[test]
fn lost_segments_do_not_prove_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    write_at(&mut driver, OLDER);
    (1..=100).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.without_checkpoints();
    let holding = |number: u8| disk.find(|frame| frame == [number; FRAME_BYTES]).unwrap().0;
    let (segment, other) = (holding(50), holding(80));
    let (numbers, others) = (numbers_in(&disk, segment), numbers_in(&disk, other));
    let listed: Vec<u32> = (0..16).filter(|number| disk.frames(*number).next().is_some()).collect();
    let replacing = |disk: &Faulty| -> Vec<u32> {
        let is_new = |number: &u32| !listed.contains(number) && disk.frames(*number).next().is_some();
        (0..16).filter(is_new).collect()
    };
    // The segments that the checkpoint lists as prepared take something else.
    let mut fill = (150..180).cycle();
    while !replacing(&disk)
        .iter()
        .any(|number| disk.frames(*number).any(|frame| is_magic(&frame, b"GLIDEREC")))
    {
        write(&mut driver, fill.next().unwrap());
        driver.keep();
    }
    [numbers, others].concat().iter().for_each(|number| write(&mut driver, *number));
    let replacing = replacing(&disk);
    use_again(&disk, &mut driver, segment, &(120..150).collect::<Vec<_>>());
    driver.kill();
    for number in replacing.into_iter().chain([segment, other]) {
        lose(&disk, number, Loss::File);
    }
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (2, 2), "{found:?}");
    assert!(failing(&mut Driver::new(cache)).contains(&7));
}

/// A start has made up the header of a segment with nothing but `entry`: writes it to the free file `number`.
fn write_with_header_of_a_start(disk: &Faulty, number: u32, entry: Entry) {
    let frames = u32::try_from(LAST + 1).unwrap();
    let holds = |number: &u32| disk.frames(*number).next().is_some_and(|frame| is_magic(&frame, b"GLIDESEG"));
    let newest = (0..16).filter(holds).max_by_key(|number| id_in(disk, *number)).unwrap();
    let front = disk.frames(newest).next().unwrap();
    let header = SegmentHeader {
        cache_id: front[16..32].try_into().unwrap(),
        segment_id: id_in(disk, newest) + 1,
        shard: UNKNOWN_SHARD,
        segment_bytes: SEGMENT_BYTES,
    };
    let table = SegmentTable::new(16, 16, header.cache_id, frames);
    let file = disk.open_segment(number, SEGMENT_BYTES).unwrap();
    seal::write_header(&*file, &header, frames, &AtomicBool::new(false)).unwrap();
    let mut segment = SegmentWriter::begin(&table, number, &header, Arc::clone(&file));
    let mut batch = Batch::default();
    assert!(batch.push(entry, &[]));
    segment.append(&table, &mut batch, std::iter::empty()).unwrap();
    let trailer = seal::write_footer(&segment, frames).unwrap();
    seal::write_trailer(&*file, &trailer, frames).unwrap();
}

/// Cleaning has copied the zeroes to a segment whose header was lost later, so the number of the first segment may have been used again. The
/// copy is no note of a loss.
#[test]
fn zeroes_in_a_segment_with_a_made_up_header_do_not_prove_a_loss() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped_with_zeroes(directory.path());
    let other = tempfile::tempdir().unwrap();
    copy(directory.path(), other.path(), false);
    let (cache, _) = Faulty::new(other.path()).open(Known::local(&[A, B])).unwrap();
    let content = cache.volume(A).content();
    let zeroes = content.iter().find(|extent| extent.number == segment).unwrap();
    assert_eq!(zeroes.content, Kept::Zero);
    let (range, seq) = (zeroes.range, zeroes.seq);
    write_with_header_of_a_start(&disk, 15, Entry { export: A, seq, range, kind: EntryKind::Zero });
    lose(&disk, segment, Loss::File);
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (2, 1), "{found:?}");
}
