//! Cache directories that are put back to an earlier state, or copied: two histories of an export are never mixed.

use std::path::Path;

use super::*;
use crate::cache::CacheError;

/// A backup of a host: cache directory and catalog at one time.
struct Backup {
    directory: tempfile::TempDir,
    entries: HashMap<ExportId, Noted>,
    start: Start,
}

impl Backup {
    fn of(host: &Host) -> Self {
        let directory = tempfile::tempdir().unwrap();
        copy(host.directory.path(), directory.path());
        let start = *host.catalog.start.lock().unwrap();
        Self { directory, entries: host.catalog.entries.lock().unwrap().clone(), start }
    }

    /// Puts directory and catalog of `host` back. The daemon of `host` has ended.
    fn restore(&self, host: &mut Host) {
        copy(self.directory.path(), host.directory.path());
        self.restore_catalog(host);
    }

    /// Puts the catalog alone back. The volume store is new, as in a daemon that knows nothing of the volume.
    fn restore_catalog(&self, host: &mut Host) {
        *host.catalog.entries.lock().unwrap() = self.entries.clone();
        *host.catalog.start.lock().unwrap() = self.start;
        let options = VolumeStoreOptions::new(host.writer());
        host.volumes = VolumeStore::new(host.volumes.store().clone(), options);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("segments")).unwrap();
    for file in std::fs::read_dir(to.join("segments")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    std::fs::copy(from.join("cache.meta"), to.join("cache.meta")).unwrap();
    for file in std::fs::read_dir(from.join("segments")).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, to.join("segments").join(path.file_name().unwrap())).unwrap();
    }
}

impl Host {
    fn writer(&self) -> WriterId {
        self.catalog.entries.lock().unwrap()[&EXPORT].resume.writer
    }
}

fn whole() -> impl Iterator<Item = SectorRange> {
    (0..SECTORS).step_by(256).map(|start| SectorRange::new(start, 256).unwrap())
}

#[test]
fn a_restored_directory_is_refused_and_nothing_is_lost() {
    for asks_first in [true, false] {
        let backend = memory();
        let mut host = Host::new(backend.clone(), 1, false);
        let mut model = Model::new(5);
        (0..400).for_each(|_| model.write(&mut host));
        host.write_back().unwrap();
        // The backup has data that is not in the store.
        let usual = host.triggers;
        host.write_back_when_asked();
        (0..30).for_each(|_| model.write(&mut host));
        host.stop();
        let backup = Backup::of(&host);
        host.triggers = usual;
        host.start();
        (0..1500).for_each(|_| model.write(&mut host));
        host.write_back().unwrap();
        host.stop();

        backup.restore(&mut host);
        host.start();
        if asks_first {
            host.confirm().unwrap_err();
        }
        // The backup's data that was not in the store is written back without being asked for, and the commit finds the other
        // history.
        assert_eq!(host.write_back(), Err(IoError::Diverged));
        assert!(host.volume().figures().dirty_bytes > 0, "data that only this host has stays");
        for range in whole() {
            assert_eq!(host.read(range), Err(IoError::Diverged));
        }
        assert_eq!(host.write(SectorRange::new(0, 8).unwrap(), Some(&[7; 4096])), Err(IoError::Diverged));
        assert_eq!(host.flush(), Err(IoError::Diverged));
        // The next daemon refuses as well, before asking the store.
        host.restart();
        assert_eq!(host.read(SectorRange::new(0, 8).unwrap()), Err(IoError::Diverged));
        // The store has the last state written back.
        let mut other = Host::new(backend, 2, true);
        model.check_all(&mut other);
    }
}

#[test]
fn of_two_clones_of_a_directory_exactly_one_goes_on() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let mut model = Model::new(6);
    (0..200).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    host.stop();
    let backup = Backup::of(&host);
    let mut clone = Host::over(backend, host.writer(), backup.entries.clone());
    clone.stop();
    backup.restore(&mut clone);
    host.start();
    clone.start();
    let mut cloned = Model { sectors: model.sectors.clone(), ..Model::new(7) };
    cloned.next = 1 << 32;
    for round in 0..20 {
        (0..20).for_each(|_| model.write(&mut host));
        host.write_back().unwrap();
        if round == 0 {
            let range = SectorRange::new(0, 8).unwrap();
            // The write may fail: the clone may have found the other history before.
            let _ = clone.write(range, Some(&[9; 4096]));
            assert_eq!(clone.write_back(), Err(IoError::Diverged));
            assert_eq!(clone.read(range), Err(IoError::Diverged));
        }
    }
    model.check_all(&mut host);
    host.restart();
    host.confirm().unwrap();
    model.check_all(&mut host);
}

#[test]
fn a_plain_restart_goes_on_whatever_was_on_its_way() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(8);
    for _ in 0..30 {
        (0..60).for_each(|_| model.write(&mut host));
        host.volume().ask_writeback();
        host.restart();
        host.confirm().unwrap();
    }
    host.write_back().unwrap();
    model.check_all(&mut host);
}

#[test]
fn a_catalog_or_a_log_that_was_put_back_alone_is_refused_and_nothing_is_changed() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(9);
    (0..400).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    host.stop();
    let older = Backup::of(&host);
    for starts in [1, 3] {
        host.start();
        (0..300).for_each(|_| model.write(&mut host));
        host.write_back().unwrap();
        host.stop();
        let newer = Backup::of(&host);
        let volumes = host.volumes.clone();

        older.restore_catalog(&mut host);
        let Err(CacheError::OtherAges { log, catalog, .. }) = host.open() else { panic!("an older catalog") };
        assert_eq!(log - catalog, starts);
        newer.restore_catalog(&mut host);
        // The newer catalog's notes on manifests: the end may have overtaken the answer about a manifest.
        host.volumes = volumes;

        copy(older.directory.path(), host.directory.path());
        let Err(error) = host.open() else { panic!("an older log") };
        assert!(error.to_string().contains("the log is an older copy"), "{error}");
        copy(newer.directory.path(), host.directory.path());
        // A log that was deleted counts as older than any other.
        let gone = std::mem::replace(&mut host.directory, tempfile::tempdir().unwrap());
        assert!(matches!(host.open(), Err(CacheError::OtherAges { log: 0, .. })));
        host.directory = gone;
        host.start();
        model.check_all(&mut host);
        host.stop();
    }
}

/// Catalog and log count the same start, but the store knows a newer state than the catalog.
#[test]
fn a_catalog_of_earlier_in_the_same_run_that_was_put_back_alone_stops_its_export() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(11);
    (0..200).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    let older = Backup::of(&host);
    (0..200).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    host.stop();
    older.restore_catalog(&mut host);
    host.start();
    let range = SectorRange::new(0, 8).unwrap();
    // The write may fail: the export may have stopped before.
    let _ = host.write(range, Some(&[9; 4096]));
    assert_eq!(host.write_back(), Err(IoError::Diverged));
    assert_eq!(host.read(range), Err(IoError::Diverged));
}

/// Catalog and log count the same start, but the catalog was copied before an export was made. The id of the export would be given
/// out again, and the next export would read the data of this one.
#[test]
fn a_catalog_of_earlier_in_the_same_run_that_was_put_back_alone_gives_no_id_out_again() {
    const MADE_LATER: ExportId = ExportId(8);
    const NEXT: ExportId = ExportId(9);
    let made = |ids: &[ExportId]| ids.iter().map(|id| (*id, SeqMarks::default())).collect::<Vec<_>>();
    // Only the checkpoint has the export, all of whose records are in a covered segment; or there is no checkpoint.
    for in_order in [true, false] {
        let mut host = Host::new(memory(), 1, false);
        host.never_write_back();
        if !in_order {
            host.driver().without_checkpoints();
        }
        let (range, data) = (SectorRange::new(0, 256).unwrap(), vec![1; 128 << 10]);
        let volume = host.driver().cache.volume(MADE_LATER);
        host.driver().write(&volume, range, Some(&data)).unwrap();
        host.driver().flush(&volume).unwrap();
        drop(volume);
        for _ in 0..10 {
            host.write(range, Some(&vec![2; 128 << 10])).unwrap();
        }
        host.flush().unwrap();
        host.driver().keep();
        if in_order {
            host.driver().rest();
        }
        host.stop();
        assert_eq!(host.directory.path().join("index.ckpt").exists(), in_order);
        for _ in 0..2 {
            let Err(error) = host.open_with(made(&[EXPORT]), Some(MADE_LATER)) else {
                panic!("an older catalog, in order: {in_order}")
            };
            let CacheError::OlderCatalog { export, next_export, .. } = error else { panic!("{error:?}") };
            assert_eq!((export, next_export), (MADE_LATER.0, MADE_LATER.0), "in order: {in_order}");
        }
        let (cache, found) = host.open_with(made(&[EXPORT, MADE_LATER]), Some(NEXT)).unwrap();
        assert_eq!(found.covered > 0, in_order, "the refusals have changed something: {found:?}");
        let mut driver = Driver::new(cache);
        let volume = driver.cache.volume(MADE_LATER);
        assert!(driver.read(&volume, range).unwrap() == data);
        drop(volume);
        driver.kill();
        // The export is deleted, and its records are still in the log.
        drop(host.open_with(made(&[EXPORT]), Some(NEXT)).unwrap());
    }
}

#[test]
fn a_crash_between_the_steps_that_count_a_start_is_not_taken_for_an_older_file() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(10);
    (0..50).for_each(|_| model.write(&mut host));
    for step in 0..12 {
        host.stop();
        // One of the catalog's two notes fails: before the log is written, or after.
        host.catalog.starts_left.store(step % 2, Ordering::Release);
        assert!(matches!(host.open(), Err(CacheError::Disk { .. })), "step {step}");
        if step % 3 == 0 {
            host.catalog.starts_left.store((step + 1) % 2, Ordering::Release);
            assert!(matches!(host.open(), Err(CacheError::Disk { .. })), "step {step}");
        }
        host.catalog.starts_left.store(u64::MAX, Ordering::Release);
        host.start();
        model.check_all(&mut host);
        model.write(&mut host);
    }
}
