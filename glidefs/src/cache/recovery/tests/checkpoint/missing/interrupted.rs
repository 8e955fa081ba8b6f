//! The start that finds a segment gone comes to a bad end.

use super::*;

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
    let mut opened = None;
    for writes in 0..100 {
        *disk.faults.writes_left.lock().unwrap() = Some(writes);
        let start = disk.open(Known::local(&[A, B]));
        *disk.faults.writes_left.lock().unwrap() = None;
        assert_eq!(start.is_ok(), !directory.path().join("index.ckpt").exists(), "{writes} writes");
        if let Ok((cache, _)) = start {
            opened = Some(cache);
            break;
        }
    }
    assert!(failing(&mut Driver::new(opened.expect("no start was complete"))).contains(&7));
    assert!(failing(&mut open(&disk)).contains(&7));
}

/// The daemon dies at each write of the start, and of the start after.
#[test]
fn a_segment_that_is_gone_is_missed_wherever_the_start_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, segment) = stopped(directory.path());
    let loses = [segment, structure(&whole, b"GLIDEREC", false).0];
    for (lost, writes_of_second) in loses.into_iter().flat_map(|lost| [0, 4, 9].map(|writes| (lost, writes)))
    {
        let mut has_ended = false;
        for writes in 0..200 {
            let other = tempfile::tempdir().unwrap();
            copy(directory.path(), other.path(), true);
            let disk = Faulty::new(other.path());
            lose(&disk, lost, Loss::File);
            has_ended = !dies(&disk, writes, Known::local(&[A, B]));
            // After a start without a death the second one has nothing to note.
            dies(&disk, writes_of_second, Known::local(&[A, B]));
            assert!(failing(&mut open(&disk)).contains(&7) || lost != segment, "{writes} writes");
            if lost != segment {
                assert_eq!(failing(&mut open(&disk)).len(), 100, "{writes} writes");
            }
            if has_ended {
                break;
            }
        }
        assert!(has_ended, "no start was complete");
    }
}

/// A stopped cache with a checkpoint, and the number of a sealed segment in which nothing is the newest content but zeroes, at sector 64.
pub(super) fn stopped_with_zeroes(path: &Path) -> (Faulty, u32) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    (1..=30).for_each(|number| write(&mut driver, number));
    (40..=50).for_each(|number| write(&mut driver, number));
    let volume = driver.cache.volume(A);
    driver.write(&volume, range(64, 64), None).unwrap();
    drop(volume);
    (51..=70).for_each(|number| write(&mut driver, number));
    let (segment, _) = disk.find(|frame| frame == [50; FRAME_BYTES]).unwrap();
    let numbers = numbers_in(&disk, segment);
    (71..=100).for_each(|number| write(&mut driver, number));
    for number in numbers {
        write(&mut driver, number);
    }
    driver.rest();
    driver.kill();
    (disk, segment)
}

/// All that was the newest in the lost segment are zeroes. The daemon dies at each write of the start.
#[test]
fn zeroes_prove_what_was_lost_wherever_the_start_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, segment) = stopped_with_zeroes(directory.path());
    let mut has_ended = false;
    for writes in 0..200 {
        let other = tempfile::tempdir().unwrap();
        copy(directory.path(), other.path(), true);
        let disk = Faulty::new(other.path());
        lose(&disk, segment, Loss::File);
        has_ended = !dies(&disk, writes, Known::local(&[A, B]));
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!(found.doubted, 0, "{writes} writes: {found:?}");
        let mut driver = Driver::new(cache);
        let volume = driver.cache.volume(A);
        assert!(driver.read(&volume, range(64, 64)).unwrap() == [0; 32 << 10], "{writes} writes");
        if has_ended {
            break;
        }
    }
    assert!(has_ended, "no start was complete");
    drop(whole);
}
