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
    // Too few free segments for the note.
    for _ in 0..2 {
        let error = disk.open_with(5, Known::local(&[A, B])).unwrap_err();
        assert!(error.to_string().contains("cache.size"), "{error}");
        assert!(directory.path().join("index.ckpt").exists());
    }
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
