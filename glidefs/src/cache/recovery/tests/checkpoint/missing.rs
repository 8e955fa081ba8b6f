//! A segment that the checkpoint lists is gone: older content of its sectors is not served.

mod interrupted;
mod lanes;
mod newest;
mod reused;
mod stored;
mod uncovered;

use super::*;
use crate::cache::faulty::Faults;

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

/// The numbers whose data is in `segment`.
fn numbers_in(disk: &Faulty, segment: u32) -> Vec<u8> {
    let frames: Vec<_> = disk.frames(segment).collect();
    let is_in = |number: &u8| frames.iter().any(|frame| *frame == [*number; FRAME_BYTES]);
    (1..=100).filter(|number| *number != 7 && is_in(number)).collect()
}

/// What reads of [`PLACE`] and of all numbers but 7 of `driver` fail: the number of [`PLACE`] is 7.
fn failing(driver: &mut Driver) -> Vec<u8> {
    let mut failing: Vec<u8> =
        (1..=100).filter(|number| *number != 7 && !is_there(driver, *number)).collect();
    let volume = driver.cache.volume(A);
    match driver.read(&volume, range(PLACE, 64)) {
        Ok(data) => assert!(data == [NEWEST; 32 << 10], "older content is served"),
        Err(error) => {
            assert_eq!(error, IoError::Damaged);
            failing.push(7);
        }
    }
    failing.sort_unstable();
    failing
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

/// Whether a start dies that may write so often.
fn dies(disk: &Faulty, writes: u32, known: Known) -> bool {
    *disk.faults.writes_left.lock().unwrap() = Some(writes);
    disk.faults.dies.store(true, Ordering::SeqCst);
    let start = || drop(disk.open(known).unwrap());
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(start)).is_err();
    disk.faults.dies.store(false, Ordering::SeqCst);
    *disk.faults.writes_left.lock().unwrap() = None;
    died
}

#[test]
fn a_segment_that_is_gone_since_the_checkpoint_is_missed() {
    for loss in [Loss::File, Loss::BothEnds, Loss::All] {
        let directory = tempfile::tempdir().unwrap();
        let (disk, segment) = stopped(directory.path());
        let mut lost = numbers_in(&disk, segment);
        lost.push(7);
        lost.sort_unstable();
        lose(&disk, segment, loss);
        for life in 0..3_u8 {
            let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
            let mut driver = Driver::new(cache);
            // The checkpoint lists the content: nothing else is in doubt.
            assert_eq!(
                (found.doubted, found.holes),
                (0, u64::from(life == 0)),
                "{loss:?}, life {life}: {found:?}"
            );
            assert_eq!(failing(&mut driver), lost, "{loss:?}, life {life}: {found:?}");
            let volume = driver.cache.volume(B);
            assert_eq!(driver.read(&volume, range(0, 8)).unwrap(), [0; 4096]);
            drop(volume);
            (0..life)
                .for_each(|number| assert!(is_there(&mut driver, 200 + number), "{loss:?}, life {life}"));
            write(&mut driver, 200 + life);
            driver.kill();
        }
    }
}

/// The checkpoint itself cannot be read for a moment.
#[test]
fn a_checkpoint_that_cannot_be_read_for_a_moment_proves_a_loss_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    lose(&disk, segment, Loss::File);
    *disk.faults.away.lock().unwrap() = std::time::Duration::from_millis(500);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!(found.holes, 1, "{found:?}");
    assert!(failing(&mut Driver::new(cache)).contains(&7));
}

/// After the checkpoint, everything in the lost segment is written again: nothing tells whether the file has a later segment since.
#[test]
fn a_lost_segment_whose_content_was_written_again_puts_all_exports_in_doubt() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    let numbers = numbers_in(&disk, segment);
    let frames: Vec<_> = disk.frames(segment).collect();
    let mut driver = open(&disk);
    driver.without_checkpoints();
    for number in numbers {
        write(&mut driver, number);
    }
    write_at(&mut driver, NEWEST);
    driver.kill();
    // As if all this were of the life which wrote the checkpoint.
    std::fs::write(&checkpoint, bytes).unwrap();
    assert!(disk.frames(segment).eq(frames), "the number of the segment was used again");
    lose(&disk, segment, Loss::File);
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (2, 1), "{found:?}");
    assert_eq!(failing(&mut Driver::new(cache)).len(), 100);
}

/// The checkpoint tells all of a write of zeroes.
#[test]
fn zeroes_in_a_lost_segment_are_zeroes_still() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = open(&disk);
    (1..=30).for_each(|number| write(&mut driver, number));
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(64, 64), None).unwrap();
    drop(volume);
    write_at(&mut driver, NEWEST);
    (31..=100).filter(|number| *number != 7).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.kill();
    let (segment, _) = disk.find(|frame| frame == [NEWEST; FRAME_BYTES]).unwrap();
    lose(&disk, segment, Loss::File);
    for _ in 0..2 {
        let mut driver = open(&disk);
        let volume = driver.cache.volume(A);
        assert_eq!(driver.read(&volume, range(PLACE, 64)), Err(IoError::Damaged));
        assert!(driver.read(&volume, range(64, 64)).unwrap() == [0; 32 << 10]);
        drop(volume);
        driver.kill();
    }
}

/// More content is lost than a start keeps in mind.
#[test]
fn much_lost_content_puts_the_exports_with_such_content_in_doubt() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let sealed = |number: &u32| {
        disk.frames(*number).next_back().is_some_and(|frame| is_magic(&frame, b"GLIDETRL"))
            && *number != segment
    };
    let others: Vec<u32> = (0..16).filter(sealed).take(2).collect();
    assert_eq!(others.len(), 2);
    lose(&disk, segment, Loss::File);
    for number in others {
        lose(&disk, number, Loss::File);
    }
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (1, 3), "{found:?}");
    // As if the start had ended before the checkpoint was gone.
    std::fs::write(&checkpoint, &bytes).unwrap();
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.doubted, found.holes), (0, 3), "{found:?}");
    let mut driver = Driver::new(cache);
    assert!(failing(&mut driver).contains(&7));
    let volume = driver.cache.volume(B);
    assert_eq!(driver.read(&volume, range(0, 8)).unwrap(), [0; 4096]);
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
    let checkpoint = directory.path().join("index.ckpt");
    let bytes = std::fs::read(&checkpoint).unwrap();
    let beyond: Vec<Vec<_>> = (used + 1..16).map(|number| disk.frames(number).collect()).collect();
    // Before the second start all is there again that the first one removed, as if the first one had ended before.
    for life in 0..2 {
        std::fs::write(&checkpoint, &bytes).unwrap();
        for (number, frames) in (used + 1..).zip(&beyond).filter(|(_, frames)| !frames.is_empty()) {
            disk.restore(number, frames);
        }
        let (cache, found) = disk.open_with(u64::from(used) + 1, Known::local(&[A, B])).unwrap();
        assert_eq!((found.doubted, found.holes), (0, 1), "{found:?}");
        if life == 1 {
            assert!(failing(&mut Driver::new(cache)).contains(&7));
        }
    }
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

/// Nothing of the file can be read while the second reading asks which segment the file holds; all can be read afterwards.
#[test]
fn a_file_that_comes_back_while_the_log_is_read_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    (0..=LAST).for_each(|frame| disk.lose(segment, frame));
    let faults = std::sync::Arc::clone(&disk.faults);
    // The next file is opened when the file was asked, for the second time.
    disk.faults.on_open(segment + 1, 1, move || faults.frames.lock().unwrap().clear());
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.checkpoints_refused, found.doubted, found.holes), (1, 0, 0), "{found:?}");
    assert!(failing(&mut Driver::new(cache)).is_empty());
}

/// The file comes back, and goes, each time the log is read.
#[test]
fn a_file_that_comes_and_goes_is_named_by_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    come_and_go(&std::sync::Arc::clone(&disk.faults), segment);
    let error = disk.open(Known::local(&[A, B])).err().unwrap().to_string();
    assert!(error.contains(&disk.segment_name(segment)) && error.contains("dmesg"), "{error}");
    disk.faults.on_open(0, 0, || ());
    disk.faults.frames.lock().unwrap().clear();
    assert!(failing(&mut open(&disk)).is_empty());
}

/// The file of `segment` cannot be read from the opening of the first file on, until the next file is opened.
fn come_and_go(faults: &std::sync::Arc<Faults>, segment: u32) {
    let (goes, comes) = (std::sync::Arc::clone(faults), std::sync::Arc::clone(faults));
    faults.on_open(0, 0, move || {
        goes.frames.lock().unwrap().extend((0..=LAST).map(|frame| (segment, frame)));
        goes.on_open(segment + 1, 0, move || {
            comes.frames.lock().unwrap().clear();
            come_and_go(&comes, segment);
        });
    });
}

/// Both ends of the file cannot be read, nor the first frame of the records, and behind is no record: the walk finds a hole, which by
/// itself puts nobody in doubt.
#[test]
fn a_segment_without_a_name_and_without_records_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let junk: Vec<_> = disk.frames(segment).map(|_| vec![9; FRAME_BYTES]).collect();
    disk.restore(segment, &junk);
    disk.faults.stay.store(true, Ordering::SeqCst);
    for frame in [0, 1, LAST] {
        disk.lose(segment, frame);
    }
    assert!(failing(&mut open(&disk)).contains(&7));
    assert!(failing(&mut open(&disk)).contains(&7));
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
