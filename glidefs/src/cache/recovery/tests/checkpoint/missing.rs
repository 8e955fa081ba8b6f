//! A segment that the checkpoint lists is gone: older content of its sectors is not served.

use super::*;

/// A place that is written in the first segment, and again in the second.
const PLACE: u64 = 7 * 64;
/// The bytes of the two contents of [`PLACE`].
const OLDER: u8 = 241;
const NEWEST: u8 = 242;

fn write_at(driver: &mut Driver, byte: u8) {
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(PLACE, 64), Some(&[byte; 32 << 10])).unwrap();
    driver.flush(&volume).unwrap();
}

/// A stopped cache with a checkpoint, and the number of the sealed segment with the newest content of [`PLACE`]. An earlier segment has
/// the older content.
fn stopped(path: &Path) -> (Faulty, u32) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    write_at(&mut driver, OLDER);
    (1..=30).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    write_at(&mut driver, NEWEST);
    (31..=100).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.kill();
    let (segment, _) = disk.find(|frame| frame == [NEWEST; FRAME_BYTES]).unwrap();
    let holds_older = |frame: Vec<u8>| frame == [OLDER; FRAME_BYTES];
    assert!(!disk.frames(segment).any(holds_older), "both contents are in one segment");
    (disk, segment)
}

/// How a segment is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    File,
    BothEnds,
    All,
}

fn lose(disk: &Faulty, segment: u32, loss: Loss) {
    let mut frames: Vec<_> = disk.frames(segment).collect();
    let last = frames.len() - 1;
    match loss {
        Loss::File => return disk.remove_segment(segment).unwrap(),
        Loss::BothEnds => [0, 1, last].into_iter().for_each(|frame| frames[frame].fill(0)),
        Loss::All => frames.iter_mut().for_each(|frame| frame.fill(0)),
    }
    disk.restore(segment, &frames);
}

#[test]
fn a_segment_that_is_gone_since_the_checkpoint_is_missed() {
    for loss in [Loss::File, Loss::BothEnds, Loss::All] {
        let directory = tempfile::tempdir().unwrap();
        let (disk, segment) = stopped(directory.path());
        lose(&disk, segment, loss);
        for life in 0..3_u8 {
            let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
            let mut driver = Driver::new(cache);
            let volume = driver.cache.volume(A);
            let read = driver.read(&volume, range(PLACE, 64));
            assert_eq!(read, Err(IoError::Damaged), "{loss:?}, life {life}: {found:?}");
            drop(volume);
            assert_eq!(found.doubted, if life == 0 { 2 } else { 0 }, "{loss:?}, life {life}: {found:?}");
            (0..life)
                .for_each(|number| assert!(is_there(&mut driver, 200 + number), "{loss:?}, life {life}"));
            write(&mut driver, 200 + life);
            driver.kill();
        }
    }
}

/// The start ends before the note of the loss is stable, again and again. Nothing but the checkpoint tells of the loss.
#[test]
fn a_segment_that_is_gone_is_missed_until_the_loss_is_written_down() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    lose(&disk, segment, Loss::File);
    // No free segment for the note: the last one has a copy of another.
    let (earlier, _) = disk.find(|frame| frame == [OLDER; FRAME_BYTES]).unwrap();
    let (free, copy): (Vec<_>, Vec<_>) = (disk.frames(4).collect(), disk.frames(earlier).collect());
    disk.restore(4, &copy);
    let superblock = || std::fs::read(directory.path().join("cache.meta")).unwrap();
    let before = superblock();
    for _ in 0..2 {
        let error = disk.open_with(5, Known::local(&[A, B])).err().unwrap();
        assert!(error.to_string().contains("cache.size"), "{error}");
        assert!(directory.path().join("index.ckpt").exists());
        assert!(superblock() == before, "something was written before the refusal");
    }
    disk.restore(4, &free);
    for writes in 0..8 {
        *disk.faults.writes_left.lock().unwrap() = Some(writes);
        drop(disk.open(Known::local(&[A, B])));
        *disk.faults.writes_left.lock().unwrap() = None;
        if !directory.path().join("index.ckpt").exists() {
            break;
        }
    }
    let mut driver = open(&disk);
    let volume = driver.cache.volume(A);
    assert_eq!(driver.read(&volume, range(PLACE, 64)), Err(IoError::Damaged));
    drop(volume);
    driver.kill();
}

/// One file is free beside that of the lost segment.
#[test]
fn a_segment_that_is_gone_does_not_keep_a_full_cache_from_opening() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let has_records = |number: &u32| disk.frames(*number).any(|frame| is_magic(&frame, b"GLIDEREC"));
    let used = (0..16).filter(has_records).max().unwrap() + 1;
    lose(&disk, segment, Loss::File);
    let (cache, found) = disk.open_with(u64::from(used) + 1, Known::local(&[A, B])).unwrap();
    assert_eq!(found.doubted, 2, "{found:?}");
    let mut driver = Driver::new(cache);
    let volume = driver.cache.volume(A);
    assert_eq!(driver.read(&volume, range(PLACE, 64)), Err(IoError::Damaged));
    drop(volume);
    driver.kill();
}

/// During the first reading a record of an earlier use is all that can be read of the file; the second reading reads the file.
#[test]
fn a_segment_that_cannot_be_read_for_a_moment_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let (earlier, _) = disk.find(|frame| frame == [OLDER; FRAME_BYTES]).unwrap();
    let (at, record) =
        (2..).zip(disk.frames(earlier).skip(2)).find(|(_, frame)| is_magic(frame, b"GLIDEREC")).unwrap();
    let mut frames: Vec<_> = disk.frames(segment).collect();
    frames[at] = record;
    disk.restore(segment, &frames);
    (0..=LAST).filter(|frame| *frame != at as u64).for_each(|frame| disk.lose(segment, frame));
    let faults = std::sync::Arc::clone(&disk.faults);
    disk.faults.after_sleeps(6, move || faults.frames.lock().unwrap().clear());
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.checkpoints_refused, found.doubted, found.holes), (1, 0, 0), "{found:?}");
}

/// Segments that were only prepared when the checkpoint was written.
#[test]
fn a_segment_that_had_no_records_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    let is_prepared = |number: &u32| {
        let has = |magic: &[u8]| disk.frames(*number).any(|frame| is_magic(&frame, magic));
        has(b"GLIDESEG") && !has(b"GLIDEREC")
    };
    for number in (0..16).filter(is_prepared).collect::<Vec<_>>() {
        let frames: Vec<_> = disk.frames(number).collect();
        lose(&disk, number, Loss::File);
        let checkpoint = directory.path().join("index.ckpt");
        let bytes = std::fs::read(&checkpoint).unwrap();
        let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, 0, "{found:?}");
        std::fs::write(&checkpoint, bytes).unwrap();
        disk.restore(number, &frames);
    }
}

/// The first start ended when the note of the loss was stable, and before the checkpoint was gone.
#[test]
fn segments_that_are_gone_cost_an_entry_an_export_and_a_second_start_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let (earlier, _) = disk.find(|frame| frame == [OLDER; FRAME_BYTES]).unwrap();
    for number in [earlier, segment] {
        lose(&disk, number, Loss::File);
    }
    let exports: Vec<ExportId> = (1..=600).map(ExportId).collect();
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    for doubted in [600, 0] {
        std::fs::write(&checkpoint, &bytes).unwrap();
        let (_, found) = disk.open(Known::local(&exports)).unwrap();
        assert_eq!((found.doubted, found.holes), (doubted, 2), "{found:?}");
        assert!(!checkpoint.exists());
    }
}

/// The keeper puts a failing file out of use after the checkpoint was written. That is no loss.
#[test]
fn a_file_that_the_keeper_put_out_of_use_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.rest();
    let checkpoint = directory.path().join("index.ckpt");
    assert!(checkpoint.exists());
    let (segment, _) = structure(&disk, b"GLIDEREC", true);
    driver.cache.shared.table.get(segment).retire();
    driver.without_checkpoints();
    driver.keep();
    assert!(disk.frames(segment).next().unwrap() == [0; FRAME_BYTES], "the file is still in use");
    driver.kill();
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (0, 0), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}

/// A version which did not take the checkpoint away when a file was put out of use wrote the checkpoint.
#[test]
fn a_checkpoint_of_the_version_before_proves_no_loss() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    lose(&disk, segment, Loss::File);
    let path = directory.path().join("index.ckpt");
    std::fs::write(&path, as_of_the_version_before(&std::fs::read(&path).unwrap())).unwrap();
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.checkpoints_refused, found.doubted), (1, 0), "{found:?}");
}

/// Somebody gave the file of a segment another name.
#[test]
fn a_segment_in_a_file_of_another_number_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let frames: Vec<_> = disk.frames(segment).collect();
    disk.restore(15, &frames);
    lose(&disk, segment, Loss::File);
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.checkpoints_refused, found.doubted), (1, 0), "{found:?}");
}

/// The pages of `checkpoint` with the head of the version before.
fn as_of_the_version_before(checkpoint: &[u8]) -> Vec<u8> {
    let mut left = checkpoint;
    let mut chain: Option<PageChain> = None;
    let mut bytes = Vec::new();
    while let Some(header) = left.first_chunk() {
        let (page, rest) = left.split_at(PageChain::page_len(header).unwrap());
        left = rest;
        let kind = PageChain::page_kind(header).unwrap();
        let chain = chain.get_or_insert_with(|| PageChain::new(page[16..32].try_into().unwrap()));
        let mut body = PageChain::body(page).to_vec();
        if kind == PageKind::Head {
            assert_eq!(body.pop(), Some(1));
        }
        bytes.extend(chain.seal(kind, &body).unwrap());
    }
    bytes
}
