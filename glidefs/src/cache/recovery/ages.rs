//! Whether log and catalog are of one age: one of the two may be an older copy that was put back alone.
//!
//! Owns the count of starts, and the comparison of the log's exports with the ids given out. Does not own the files of either.
//! Invariants: log and catalog have the same number of a start, but for a start under way; no id of an export with an
//! entry in a segment that was read, or with an extent in the checkpoint, is given out again. Not noticed is an export deleted since the
//! catalog's copy whose records are all in covered segments.

use std::io;

use super::layout::at;
use crate::cache::catalog::{CacheCatalog, Start};
use crate::cache::log::disk::Disk;
use crate::cache::log::error::CacheError;
use crate::cache::log::superblock::Superblock;
use crate::units::ExportId;

/// Fails unless `catalog` and a log whose last start is `log` are of one age: one of the two may be an older copy that was put
/// back alone.
pub(super) fn check_start(log: u32, catalog: &dyn CacheCatalog, directory: String) -> Result<(), CacheError> {
    let Some(Start { last, begun }) = catalog.start() else { return Ok(()) };
    if log == last || Some(log) == begun {
        return Ok(());
    }
    Err(CacheError::OtherAges { directory, log, catalog: begun.unwrap_or(last) })
}

/// Counts this start, in the catalog and in the log. The catalog notes the start as begun first: after a crash between the steps
/// [`check_start`] accepts the log with the old count and with the new one. An older copy of one of the two is covered by no such
/// note, and is refused.
///
/// A start on a full disk is served, and perhaps not counted: then copies from before and after it have one number, as copies
/// of one start.
pub(super) fn count_start(
    disk: &dyn Disk,
    superblock: &mut Superblock,
    catalog: &dyn CacheCatalog,
) -> Result<(), CacheError> {
    let is_full = |source: &io::Error| {
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    };
    match counted(disk, superblock, catalog) {
        Err(ref error @ CacheError::Disk { ref source, .. }) if is_full(source) => {
            let error = error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "the disk of cache.dir is full: exports are served, and this start is not counted; make room"
            );
            Ok(())
        }
        counted => counted,
    }
}

fn counted(
    disk: &dyn Disk,
    superblock: &mut Superblock,
    catalog: &dyn CacheCatalog,
) -> Result<(), CacheError> {
    let Some(known) = catalog.start() else { return Ok(()) };
    let (last, directory) = (superblock.start, disk.location());
    let Some(start) = last.max(known.last).checked_add(1) else { return Ok(()) };
    let note = |start| at(catalog.set_start(start), "writing the catalog", || directory.clone());
    note(Start { last, begun: Some(start) })?;
    let next = Superblock { start, ..*superblock };
    at(disk.replace_superblock(&next.encode()), "writing cache.meta", || directory.clone())?;
    *superblock = next;
    note(Start { last: start, begun: None })
}

/// Fails when the log has data of an export with an id that the catalog would give out again: `last` is the highest id in the log, and
/// `next` the id for the next export. The record of an export is in the catalog, together with the next id, before the export takes a
/// write, and the next id never falls: so only an older copy of the catalog knows less than the log.
pub(super) fn check_exports(
    last: Option<ExportId>,
    next: Option<ExportId>,
    directory: String,
) -> Result<(), CacheError> {
    match (last, next) {
        (Some(last), Some(next)) if last >= next => {
            Err(CacheError::OlderCatalog { directory, export: last.0, next_export: next.0 })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::cache::faulty::Faulty;
    use crate::cache::log::superblock::VERSION_SOUND;
    use crate::store::volume::Resume;
    use crate::units::{SEGMENT_BYTES, Seq};

    /// A catalog that counts starts, and fails some of the changes.
    #[derive(Debug)]
    struct Counting {
        start: Mutex<Start>,
        fails: Mutex<Vec<Option<i32>>>,
    }

    impl CacheCatalog for Counting {
        fn start(&self) -> Option<Start> {
            Some(*self.start.lock().unwrap())
        }

        fn set_start(&self, start: Start) -> io::Result<()> {
            if let Some(error) = self.fails.lock().unwrap().pop().flatten() {
                return Err(io::Error::from_raw_os_error(error));
            }
            *self.start.lock().unwrap() = start;
            Ok(())
        }

        fn evicted(&self, _: &[(ExportId, Seq)]) -> io::Result<()> {
            unreachable!("a count of starts evicts nothing")
        }

        fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, io::Result<()>> {
            unreachable!("a count of starts stores nothing")
        }
    }

    #[test]
    fn a_start_on_a_full_disk_is_served_and_the_next_one_with_room_is_counted() {
        let full = Some(libc::ENOSPC);
        for (catalog_fails, is_full) in
            [(vec![full], false), (vec![], true), (vec![full, None], false), (vec![full, full], true)]
        {
            let directory = tempfile::tempdir().unwrap();
            let disk = Faulty::new(directory.path());
            let catalog = Counting { start: Mutex::default(), fails: Mutex::default() };
            let mut superblock = Superblock {
                version: VERSION_SOUND,
                cache_id: [1; 16],
                segment_bytes: SEGMENT_BYTES,
                start: 0,
            };
            let on_disk = || {
                let bytes = disk.read_superblock().unwrap().unwrap();
                Superblock::decode(&bytes, "here").unwrap()
            };
            let count = |superblock: &mut Superblock| count_start(&disk, superblock, &catalog);
            count(&mut superblock).unwrap();
            *catalog.fails.lock().unwrap() = catalog_fails;
            disk.faults.superblock_full.store(is_full, Ordering::SeqCst);
            for _ in 0..2 {
                count(&mut superblock).unwrap();
                assert_eq!(on_disk(), superblock);
                check_start(superblock.start, &catalog, String::new()).unwrap();
            }
            let before = superblock.start;
            disk.faults.superblock_full.store(false, Ordering::SeqCst);
            count(&mut superblock).unwrap();
            let start = before + 1;
            assert_eq!(on_disk().start, start);
            assert_eq!(catalog.start(), Some(Start { last: start, begun: None }));
            assert!(check_start(before, &catalog, String::new()).is_err(), "an older log");
        }
    }

    #[test]
    fn an_error_other_than_a_full_disk_refuses_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let catalog = Counting { start: Mutex::default(), fails: Mutex::new(vec![Some(libc::EIO)]) };
        let mut superblock =
            Superblock { version: VERSION_SOUND, cache_id: [1; 16], segment_bytes: SEGMENT_BYTES, start: 0 };
        count_start(&disk, &mut superblock, &catalog).unwrap_err();
        assert_eq!(superblock.start, 0);
    }
}
