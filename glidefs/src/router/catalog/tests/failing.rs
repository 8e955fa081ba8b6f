//! A catalog on a disk that fails for a while.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "tests panic, and the file is small"
)]

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use redb::StorageBackend;

use super::super::commit::commit;
use super::super::tables::commits;
use super::*;
use crate::store::VolumeId;
use crate::store::volume::Past;

/// A number of changes that is never reached.
const NEVER: u64 = u64::MAX;

const PAGE_BYTES: usize = 4096;

/// A disk with the file of a catalog on it.
#[derive(Debug)]
struct Disk {
    /// The file in the page cache.
    bytes: Mutex<Vec<u8>>,
    /// Pages missing on the disk. A failed sync forgets these pages: no later sync writes them.
    dirty: Mutex<BTreeSet<usize>>,
    /// The file on the disk, as after a power cut.
    durable: Mutex<Vec<u8>>,
    /// Changes of the file that still succeed.
    left: AtomicU64,
    /// Changes of the file that fail after `left` changes.
    fails: AtomicU64,
}

impl Disk {
    fn new() -> Arc<Self> {
        Self::with(Vec::new())
    }

    fn with(bytes: Vec<u8>) -> Arc<Self> {
        let durable = Mutex::new(bytes.clone());
        let (bytes, dirty) = (Mutex::new(bytes), Mutex::default());
        Arc::new(Self { bytes, dirty, durable, left: NEVER.into(), fails: 0.into() })
    }

    /// The disk after a power cut at this moment.
    fn after_power_cut(&self) -> Arc<Self> {
        Self::with(self.durable.lock().unwrap().clone())
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }

    /// Has `fails` changes of the file fail after `left` more changes.
    fn fail(&self, left: u64, fails: u64) {
        self.fails.store(fails, SeqCst);
        self.left.store(left, SeqCst);
    }

    /// Whether a change failed since [`Self::fail`] was called with `fails`.
    fn has_failed(&self, fails: u64) -> bool {
        self.fails.load(SeqCst) < fails
    }

    fn change(&self) -> io::Result<()> {
        let spend = |left: u64| if left == NEVER { Some(left) } else { left.checked_sub(1) };
        if self.left.fetch_update(SeqCst, SeqCst, spend).is_ok() {
            return Ok(());
        }
        match self.fails.fetch_update(SeqCst, SeqCst, spend) {
            Ok(_) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Err(_) => Ok(()),
        }
    }
}

#[derive(Debug)]
struct File(Arc<Disk>);

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.bytes();
        let found = bytes.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.change()?;
        self.0.bytes().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let dirty = std::mem::take(&mut *self.0.dirty.lock().unwrap());
        self.0.change()?;
        let (bytes, mut durable) = (self.0.bytes(), self.0.durable.lock().unwrap());
        durable.resize(bytes.len(), 0);
        for page in dirty {
            let range = page * PAGE_BYTES..bytes.len().min((page + 1) * PAGE_BYTES);
            durable[range.clone()].copy_from_slice(&bytes[range]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.change()?;
        let range = offset as usize..offset as usize + data.len();
        self.0.dirty.lock().unwrap().extend(range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES));
        self.0.bytes()[range].copy_from_slice(data);
        Ok(())
    }
}

fn open(disk: &Arc<Disk>) -> Catalog {
    let disk = Arc::clone(disk);
    let open = move || -> Result<_, redb::Error> {
        let file = File(Arc::clone(&disk));
        write_again(&file, 0..file.len()?)?;
        Ok(Database::builder().create_with_backend(file)?)
    };
    let database = open().unwrap();
    Catalog::of(Path::new("catalog.redb"), database, Box::new(open), Duration::from_millis(2)).unwrap()
}

#[test]
fn a_catalog_with_all_its_tables_is_opened_on_a_full_disk() {
    let disk = Disk::new();
    drop(open(&disk));
    let database = Database::builder().create_with_backend(File(Arc::clone(&disk))).unwrap();
    let before = disk.bytes().clone();
    disk.fail(0, NEVER - 1);
    let opener = Box::new(|| -> Result<Database, redb::Error> { unreachable!("nothing is written") });
    let catalog = Catalog::of(Path::new("catalog.redb"), database, opener, Duration::from_millis(2)).unwrap();
    assert_eq!(catalog.known(), []);
    assert!(*disk.bytes() == before);
}

#[test]
fn an_error_of_a_full_disk_is_told_from_other_errors() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
        let source = Arc::new(redb::Error::Io(kind.into()));
        assert_eq!(io::Error::from(CatalogError::Write { path: PathBuf::new(), source }).kind(), kind);
    }
}

#[test]
fn all_of_the_file_gets_room_and_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.redb");
    let file = std::fs::File::create(&path).unwrap();
    let bytes = |at: u64| -> Vec<u8> { (0..PAGE_BYTES).map(|byte| (byte as u64 ^ at) as u8).collect() };
    for at in [0, 300 * PAGE_BYTES as u64] {
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes(at), at).unwrap();
    }
    file.set_len(600 * PAGE_BYTES as u64).unwrap();
    let before = std::fs::read(&path).unwrap();
    write_file_again(&path).unwrap();
    assert!(std::fs::read(&path).unwrap() == before);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert!(blocks * 512 >= file.metadata().unwrap().len(), "{blocks} blocks");
}

async fn until_it_works(catalog: &Catalog) {
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while catalog.health().failing().is_some() {
        assert!(std::time::Instant::now() < deadline, "the catalog fails for ever");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn one_error_of_the_disk_fails_no_change() {
    for left in 0.. {
        let disk = Disk::new();
        let catalog = open(&disk);
        catalog.put(record(1, "a")).await.unwrap();
        disk.fail(left, 1);
        catalog.put(record(2, "b")).await.unwrap();
        catalog.put(record(3, "c")).await.unwrap();
        let failed = disk.has_failed(1);
        until_it_works(&catalog).await;
        assert_eq!(catalog.health().errors() > 0, failed, "after {left} changes");
        drop(catalog);
        let known: Vec<_> = open(&disk).known().into_iter().map(|(id, _)| id.0).collect();
        assert_eq!(known.len(), 3, "after {left} changes: {known:?}");
        if !failed {
            assert!(left > 3, "{left} changes of the file for two of the catalog");
            return;
        }
    }
}

#[tokio::test]
async fn what_was_acknowledged_after_a_failed_sync_survives_a_power_cut() {
    for left in 0.. {
        let disk = Disk::new();
        let catalog = open(&disk);
        for id in 1..=40 {
            catalog.put(record(id, &format!("e{id}"))).await.unwrap();
        }
        disk.fail(left, 1);
        catalog.remove(ExportId(7)).await.unwrap();
        catalog.remove(ExportId(31)).await.unwrap();
        let failed = disk.has_failed(1);
        let after = disk.after_power_cut();
        drop(catalog);
        let known: BTreeSet<_> = open(&after).known().into_iter().map(|(id, _)| id.0).collect();
        let expected: BTreeSet<_> = (1..=40).filter(|id| ![7, 31].contains(id)).collect();
        assert_eq!(known, expected, "after {left} changes of the file");
        if !failed {
            return;
        }
    }
}

#[tokio::test]
async fn one_error_of_the_disk_leaves_memory_and_file_with_the_same_journals() {
    for left in 0.. {
        let disk = Disk::new();
        let catalog = open(&disk);
        let (gone, kept) = (resume(1, 0), Resume { volume: VolumeId([3; 16]), ..resume(1, 0) });
        catalog.create(record(1, "a"), Some(gone.clone())).await.unwrap();
        catalog.create(record(2, "b"), Some(kept.clone())).await.unwrap();
        let journal = catalog.journal();
        journal.intend(gone.volume, 1, [1; 32]).await.unwrap();
        disk.fail(left, 1);
        let (noted, lost, removed) = tokio::join!(
            journal.intend(kept.volume, 2, [2; 32]),
            journal.lose(gone.volume, 3, &Loss::Deleted),
            catalog.remove(ExportId(1)),
        );
        assert!(noted.is_ok() && lost.is_ok() && removed.is_ok(), "after {left} changes of the file");
        let failed = disk.has_failed(1);
        let check = |journal: Arc<dyn Notes>| {
            assert_eq!(journal.intended(kept.volume, 2, &[2; 32]), Some(true), "after {left} changes");
            assert_eq!(journal.intended(gone.volume, 1, &[1; 32]), None, "after {left} changes");
            assert_eq!(journal.loss(gone.volume, 3), None, "after {left} changes");
        };
        check(journal);
        drop(catalog);
        check(open(&disk).journal());
        if !failed {
            return;
        }
    }
}

/// Changes of every kind, of an export in the catalog and of an unknown one.
fn changes() -> Vec<Change> {
    let (known, new) = (resume(5, 50), Resume { volume: VolumeId([3; 16]), ..resume(1, 0) });
    let mut changes = Vec::new();
    for (id, resume) in [(ExportId(1), &known), (ExportId(2), &new)] {
        changes.extend([
            Change::Put(record(id.0, "put")),
            Change::Create(record(id.0, "created"), Some(resume.clone())),
            Change::Replace(id, record(3, "replaced"), new.clone()),
            Change::Link(id, resume.clone()),
            Change::WrittenBack(id, Resume { number: 9, ..resume.clone() }, Seq(0)),
            Change::Evicted(vec![(id, Seq(7))]),
            Change::Intend(resume.volume, 9, [1; 32]),
            Change::Intend(resume.volume, 7, [2; 32]),
            Change::Withdraw(resume.volume, 9, [1; 32]),
            Change::Forget(Past { volume: resume.volume, number: 8, epoch: 3 }),
            Change::Lost(resume.volume, 3, Loss::Deleted),
            Change::Remove(id),
        ]);
    }
    changes.push(Change::Start(Start { last: 1, begun: Some(2) }));
    changes.push(Change::Store(Uuid::from_u128(6)));
    changes
}

/// The ids of the export that a change adds, and of the export that a change removes.
fn made_and_removed(change: &Change) -> (Option<u32>, Option<u32>) {
    match change {
        Change::Put(record) | Change::Create(record, _) => (Some(record.id), None),
        Change::Replace(old, record, _) => (Some(record.id), Some(old.0)),
        Change::Link(id, _) => (Some(id.0), None),
        Change::Remove(id) => (None, Some(id.0)),
        _ => (None, None),
    }
}

#[test]
fn a_batch_that_is_written_twice_leaves_what_it_leaves_when_it_is_written_once() {
    let count = changes().len();
    for (first, second) in (0..count).flat_map(|first| (0..count).map(move |second| (first, second))) {
        let batch = [changes().swap_remove(first), changes().swap_remove(second)];
        let (_, removed) = made_and_removed(&batch[0]);
        if removed.is_some() && removed == made_and_removed(&batch[1]).0 {
            // An id is never given again.
            continue;
        }
        let database = Database::builder().create_with_backend(File(Disk::new())).unwrap();
        initialise(&database).unwrap();
        let known = [
            Change::Create(record(1, "a"), Some(resume(5, 50))),
            Change::Intend(resume(5, 50).volume, 6, [6; 32]),
        ];
        commit(&database, &known, 1, &mut [None, None]).unwrap();
        let mut forgotten = [None, None];
        commit(&database, &batch, 2, &mut forgotten).unwrap();
        let (once, forgotten_once) = (read(&database).unwrap(), forgotten);
        commit(&database, &batch, 2, &mut forgotten).unwrap();
        let changes = [&batch[0], &batch[1]];
        assert_eq!((read(&database).unwrap(), forgotten), (once, forgotten_once), "{changes:?}");
        assert_eq!(commits(&database).unwrap(), 2);
    }
}

#[tokio::test]
async fn a_disk_that_fails_for_long_is_told_and_what_was_answered_is_true() {
    for left in 0..40 {
        let disk = Disk::new();
        let catalog = open(&disk);
        catalog.put(record(1, "a")).await.unwrap();
        disk.fail(left, 25);
        let mut answered = Vec::new();
        for id in 2..6 {
            answered.push((id, catalog.put(record(id, &format!("e{id}"))).await.is_ok()));
        }
        disk.fail(NEVER, 0);
        until_it_works(&catalog).await;
        catalog.put(record(9, "last")).await.unwrap();
        drop(catalog);
        let known: Vec<_> = open(&disk).known().into_iter().map(|(id, _)| id.0).collect();
        for (id, made) in answered {
            assert_eq!(known.contains(&id), made, "{id} after {left} changes: {known:?}");
        }
        assert!(known.contains(&1) && known.contains(&9), "{known:?}");
    }
}

#[tokio::test]
async fn a_catalog_that_cannot_be_written_says_so_until_it_can() {
    let disk = Disk::new();
    let catalog = open(&disk);
    disk.fail(0, NEVER);
    let put = catalog.put(record(1, "a"));
    let seen = async {
        while catalog.health().failing().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        disk.fail(NEVER, 0);
    };
    let (_, ()) = tokio::join!(put, seen);
    until_it_works(&catalog).await;
    catalog.put(record(2, "b")).await.unwrap();
}

#[tokio::test]
async fn nothing_is_written_to_a_file_that_lacks_what_was_acknowledged() {
    let disk = Disk::new();
    let catalog = open(&disk);
    catalog.put(record(1, "a")).await.unwrap();
    let old = disk.bytes().clone();
    catalog.put(record(2, "b")).await.unwrap();
    catalog.put(record(3, "c")).await.unwrap();
    // The file goes back to an earlier state, as after an unreported failure of the disk.
    disk.fail(0, 1);
    *disk.bytes() = old;
    let put = catalog.put(record(4, "d")).await;
    assert!(matches!(put, Err(CatalogError::Inconsistent { .. })), "{put:?}");
    assert!(catalog.health().failing().unwrap().contains("was acknowledged"));
    catalog.put(record(5, "e")).await.unwrap_err();
}
