//! The store has the content of the lost segment.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::cache::CacheCatalog;
use crate::store::volume::Resume;

/// The catalog's mark of A.
#[derive(Debug, Default)]
struct Mark(Mutex<Seq>);

impl CacheCatalog for Mark {
    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        let mut mark = self.0.lock().unwrap();
        *mark = marks.iter().fold(*mark, |evicted, (export, seq)| match *export {
            A => evicted.max(*seq),
            _ => evicted,
        });
        Ok(())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

/// A is in the store up to `stored`.
fn known(mark: &Arc<Mark>, stored: Seq) -> Known {
    let evicted = *mark.0.lock().unwrap();
    let exports = vec![(A, SeqMarks { stored, evicted }), (B, SeqMarks::default())];
    Known { exports, catalog: Arc::clone(mark) as Arc<dyn CacheCatalog>, ..Known::local(&[]) }
}

/// The last sequence number in the log at `path`.
fn last_seq(path: &Path) -> Seq {
    let other = tempfile::tempdir().unwrap();
    copy(path, other.path(), false);
    let (cache, _) = Faulty::new(other.path()).open(Known::local(&[A, B])).unwrap();
    cache.volume(A).figures().last_seq
}

/// No file takes a note, and none is needed.
#[test]
fn a_lost_segment_whose_content_is_in_the_store_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, segment) = stopped(directory.path());
    let stored = last_seq(directory.path());
    let (earlier, _) = disk.find(|frame| frame == [OLDER; FRAME_BYTES]).unwrap();
    let copy: Vec<_> = disk.frames(earlier).collect();
    disk.restore(4, &copy);
    lose(&disk, segment, Loss::File);
    let mark = Arc::default();
    for life in 0..2 {
        let (cache, found) = disk.open_with(5, known(&mark, stored)).unwrap();
        assert_eq!((found.doubted, found.holes), (0, u64::from(life == 0)), "life {life}: {found:?}");
        assert_eq!(*mark.0.lock().unwrap(), stored);
        assert!(cache.volume(A).content().is_empty(), "older content may be served");
    }
}

/// More content is lost than a start keeps in mind; none of this is lost to the exports.
#[test]
fn much_lost_content_that_is_in_the_store_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = stopped(directory.path());
    let stored = last_seq(directory.path());
    let is_sealed =
        |number: &u32| disk.frames(*number).next_back().is_some_and(|frame| is_magic(&frame, b"GLIDETRL"));
    let sealed: Vec<u32> = (0..16).filter(is_sealed).take(3).collect();
    assert_eq!(sealed.len(), 3);
    for number in sealed {
        lose(&disk, number, Loss::File);
    }
    let (_, found) = disk.open(known(&Arc::default(), stored)).unwrap();
    assert_eq!((found.doubted, found.holes), (0, 3), "{found:?}");
}

/// Some of the lost content is in the store. The start ends before the loss is written down.
#[test]
fn content_in_the_store_proves_what_was_lost_wherever_the_start_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, segment) = stopped(directory.path());
    let stored = last_seq(directory.path());
    // All of the segment, none, and some.
    for stored in [stored, Seq(0), Seq(35)] {
        let mut has_ended = false;
        for writes in 0..200 {
            let other = tempfile::tempdir().unwrap();
            copy(directory.path(), other.path(), true);
            let disk = Faulty::new(other.path());
            lose(&disk, segment, Loss::File);
            let mark = Arc::default();
            *disk.faults.writes_left.lock().unwrap() = Some(writes);
            has_ended = disk.open(known(&mark, stored)).is_ok();
            *disk.faults.writes_left.lock().unwrap() = None;
            let (_, found) = disk.open(known(&mark, stored)).unwrap();
            assert_eq!(found.doubted, 0, "stored to {stored:?}, {writes} writes: {found:?}");
            if has_ended {
                break;
            }
        }
        assert!(has_ended, "no start was complete");
    }
    drop(whole);
}

/// A start that dies when the catalog bars the content, and the checkpoint is still there, leaves nothing that proves what was lost: content
/// which is barred would not be missed either if the number had been used again.
#[test]
fn a_start_that_dies_when_the_content_is_barred_costs_a_doubt_and_no_older_content_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, segment) = stopped(directory.path());
    let stored = last_seq(directory.path());
    let (mut ends_between, mut has_ended) = (0, false);
    for writes in 0..200 {
        let other = tempfile::tempdir().unwrap();
        copy(directory.path(), other.path(), true);
        let disk = Faulty::new(other.path());
        lose(&disk, segment, Loss::File);
        let mark = Arc::default();
        has_ended = !dies(&disk, writes, known(&mark, stored));
        let is_between = *mark.0.lock().unwrap() == stored && other.path().join("index.ckpt").exists();
        ends_between += u32::from(is_between);
        let (cache, found) = disk.open(known(&mark, stored)).unwrap();
        assert_eq!(found.doubted, if is_between { 2 } else { 0 }, "{writes} writes: {found:?}");
        assert!(cache.volume(A).content().is_empty(), "{writes} writes: older content may be served");
        if has_ended {
            break;
        }
    }
    assert!(has_ended && ends_between > 0, "{ends_between} ends between the steps");
    drop(whole);
}
