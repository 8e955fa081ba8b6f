//! The newest segments are gone, or all: nothing tells this from an older copy of the log.

use super::*;

/// The ids and numbers of all segments, ascending.
fn segments(disk: &Faulty) -> Vec<(u64, u32)> {
    let id = |number: &u32| {
        let front = disk.frames(*number).next().filter(|frame| is_magic(frame, b"GLIDESEG"))?;
        Some((u64::from_le_bytes(front[32..40].try_into().unwrap()), *number))
    };
    let mut segments: Vec<_> = (0..16).filter_map(|number| id(&number)).collect();
    segments.sort_unstable();
    segments
}

#[test]
fn a_start_without_the_newest_segments_is_refused_and_the_error_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    let all = segments(&disk);
    let newest = structure(&disk, b"GLIDEREC", false).0;
    let newest = all.iter().position(|(_, number)| *number == newest).unwrap();
    for kept in [newest, 0] {
        let numbers: Vec<u32> = all.iter().skip(kept).map(|(_, number)| *number).collect();
        let files: Vec<Vec<_>> = numbers.iter().map(|number| disk.frames(*number).collect()).collect();
        for number in &numbers {
            lose(&disk, *number, Loss::File);
        }
        let state =
            || ["cache.meta", "index.ckpt"].map(|name| std::fs::read(directory.path().join(name)).unwrap());
        let (before, present) = (state(), segments(&disk));
        for _ in 0..2 {
            let error = disk.open(Known::local(&[A, B])).err().unwrap().to_string();
            assert!(error.contains("remove index.ckpt"), "{error}");
            assert!(state() == before && segments(&disk) == present, "something was written");
        }
        for (number, frames) in numbers.iter().zip(&files) {
            disk.restore(*number, frames);
        }
    }
    let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert!(found.covered > 0 && found.holes == 0, "{found:?}");
    assert!(failing(&mut Driver::new(cache)).is_empty());
}

#[test]
fn a_start_without_the_newest_segments_goes_on_when_the_checkpoint_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    segments(&disk).iter().skip(1).for_each(|(_, number)| lose(&disk, *number, Loss::File));
    disk.open(Known::local(&[A, B])).unwrap_err();
    std::fs::remove_file(directory.path().join("index.ckpt")).unwrap();
    disk.open(Known::local(&[A, B])).unwrap();
}
