//! The catalog across restarts, damaged catalogs, and catalogs of other versions.

mod failing;

use super::encoding::encode_json;
use super::record::tests::record;
use super::tables::{EXPORTS, META, SCHEMA_VERSION_KEY};
use super::volume_record::tests::resume;
use super::*;
use crate::cache::Start;
use crate::store::volume::{Loss, NotesInMemory, VolumeError, VolumeStore, VolumeStoreOptions};
use crate::store::{Backend, Store, StoreOptions, WriterId};
use crate::units::Seq;

/// The changes that tests make most.
impl Catalog {
    pub(in crate::router) async fn put(&self, record: ExportRecord) -> Result<(), CatalogError> {
        self.change(Change::Put(record)).await
    }

    pub(in crate::router) async fn create(
        &self,
        record: ExportRecord,
        volume: Option<Resume>,
    ) -> Result<(), CatalogError> {
        self.change(Change::Create(record, volume)).await
    }

    pub(in crate::router) async fn remove(&self, id: ExportId) -> Result<(), CatalogError> {
        self.change(Change::Remove(id)).await
    }
}

/// The state of each export's volume in the store.
fn resumes(catalog: &Catalog) -> HashMap<ExportId, Resume> {
    catalog.volumes.iter().map(|(id, record)| (*id, record.resume().unwrap())).collect()
}

#[tokio::test]
async fn what_was_put_is_read_after_a_restart_and_what_was_removed_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    assert_eq!(catalog.next_export_id(), 1);
    catalog.put(record(1, "a")).await.unwrap();
    catalog.put(record(2, "b")).await.unwrap();
    catalog.remove(ExportId(2)).await.unwrap();
    drop(catalog);

    let mut catalog = Catalog::open(&path).unwrap();
    assert_eq!(catalog.known(), [(ExportId(1), SeqMarks::default())]);
    assert_eq!(catalog.take_loaded(), [(ExportName::new("a").unwrap(), record(1, "a"), None)]);
    assert_eq!(catalog.next_export_id(), 3, "the id of a removed export is not given again");
}

#[tokio::test]
async fn changes_that_wait_together_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    let puts = (1..=200).map(|id| catalog.put(record(id, &format!("e{id}"))));
    assert!(futures_util::future::join_all(puts).await.iter().all(Result::is_ok));
    drop(catalog);
    assert_eq!(Catalog::open(&path).unwrap().known().len(), 200);
}

#[tokio::test]
async fn what_the_cache_writes_down_is_read_after_a_restart() {
    use crate::cache::CacheCatalog as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    catalog.create(record(1, "a"), Some(resume(1, 0))).await.unwrap();
    catalog.create(record(2, "b"), None).await.unwrap();
    let handle = catalog.handle();
    handle.stored(ExportId(1), &resume(2, 70), Seq(0)).await.unwrap();
    let written = tokio::task::spawn_blocking(move || {
        handle.evicted(&[(ExportId(1), Seq(50)), (ExportId(2), Seq(9))]).map(|()| handle)
    });
    let handle = written.await.unwrap().unwrap();
    handle.stored(ExportId(1), &resume(3, 80), Seq(0)).await.unwrap();
    drop(catalog);
    assert!(handle.evicted(&[]).is_err(), "the catalog is closed");

    let catalog = Catalog::open(&path).unwrap();
    let marks = SeqMarks { stored: Seq(80), evicted: Seq(50) };
    assert_eq!(catalog.known(), [(ExportId(1), marks), (ExportId(2), SeqMarks::default())]);
    assert_eq!(resumes(&catalog), HashMap::from([(ExportId(1), resume(3, 80))]));
    catalog.remove(ExportId(1)).await.unwrap();
    drop(catalog);
    assert!(resumes(&Catalog::open(&path).unwrap()).is_empty());
}

#[test]
fn a_catalog_in_use_is_refused_and_says_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let _held = Catalog::open(&path).unwrap();
    let message = Catalog::open(&path).unwrap_err().to_string();
    assert!(message.contains(&format!("in use by process {}", std::process::id())), "{message}");
}

#[test]
fn a_missing_directory_is_refused_with_the_path() {
    let message = Catalog::open(Path::new("/nonexistent/catalog.redb")).unwrap_err().to_string();
    assert!(message.contains("/nonexistent/catalog.redb"), "{message}");
}

fn tamper(path: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let database = Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_damaged_entry_is_named_and_never_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    Catalog::open(&path).unwrap().put(record(1, "a")).await.unwrap();
    tamper(&path, |transaction| {
        let mut bytes = record(1, "a").encode().unwrap();
        bytes[9] ^= 1;
        transaction.open_table(EXPORTS).unwrap().insert(1, bytes.as_slice()).unwrap();
    });
    assert!(matches!(Catalog::open(&path), Err(CatalogError::Damaged { id: 1, .. })));
}

#[tokio::test]
async fn a_schema_of_the_future_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    Catalog::open(&path).unwrap().put(record(1, "a")).await.unwrap();
    tamper(&path, |transaction| {
        transaction.open_table(META).unwrap().insert(SCHEMA_VERSION_KEY, 2).unwrap();
    });
    for _ in 0..2 {
        assert!(matches!(Catalog::open(&path), Err(CatalogError::Newer { found: 2, .. })));
    }
}

#[tokio::test]
async fn entries_that_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    catalog.put(record(1, "same")).await.unwrap();
    catalog.put(record(2, "same")).await.unwrap();
    drop(catalog);
    let message = Catalog::open(&path).unwrap_err().to_string();
    assert!(message.contains("two exports are called same"), "{message}");
}

#[test]
fn a_file_that_is_no_catalog_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    std::fs::write(&path, b"not a database, but some text").unwrap();
    assert!(matches!(Catalog::open(&path), Err(CatalogError::Open { .. })));
}

#[tokio::test]
async fn journals_of_manifests_and_losses_are_read_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    let volume = resume(1, 0).volume;
    catalog.create(record(1, "a"), Some(resume(1, 0))).await.unwrap();
    let journal = catalog.journal();
    for (number, hash) in [(1, 1), (2, 2), (3, 3), (3, 4)] {
        journal.intend(volume, number, [hash; 32]).await.unwrap();
    }
    journal.lose(volume, 3, &Loss::Deleted).await.unwrap();
    drop((catalog, journal));

    let catalog = Catalog::open(&path).unwrap();
    let journal = catalog.journal();
    let found = |number, hash| journal.intended(volume, number, &[hash; 32]);
    assert_eq!([found(1, 1), found(2, 2), found(2, 9)], [None, Some(true), Some(false)]);
    assert_eq!(
        [found(3, 3), found(3, 4), found(3, 5), found(4, 1)],
        [Some(true), Some(true), Some(false), None]
    );
    assert_eq!((journal.loss(volume, 3), journal.loss(volume, 4)), (Some(Loss::Deleted), None));
    catalog.remove(ExportId(1)).await.unwrap();
    drop((catalog, journal));

    let journal = Catalog::open(&path).unwrap().journal();
    assert_eq!(
        (journal.intended(volume, 3, &[3; 32]), journal.loss(volume, 3)),
        (None, None),
        "deleted with the export"
    );
}

/// The volumes of a store in memory, for writer 1 with `journal`.
fn volumes(objects: &Arc<crate::store::faulty::InMemory>, journal: Arc<dyn Notes>) -> VolumeStore {
    let store = Store::over(Backend::over(objects.clone(), true), StoreOptions::default());
    VolumeStore::new(
        store,
        VolumeStoreOptions { notes: journal, ..VolumeStoreOptions::new(WriterId([1; 16])) },
    )
}

#[tokio::test]
async fn a_manifest_whose_answer_was_lost_is_adopted_at_every_start_though_nothing_is_written() {
    let (dir, objects) = (tempfile::tempdir().unwrap(), Arc::default());
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    let volume = volumes(&objects, catalog.journal()).create(&"vm".parse().unwrap(), 2048).await.unwrap();
    let known = Resume { manifest: None, ..volume.state() };
    catalog.create(record(1, "vm"), Some(known)).await.unwrap();
    // The catalog does not learn of this manifest.
    volume.release().await.unwrap();
    drop((catalog, volume));
    for _ in 0..3 {
        let catalog = Catalog::open(&path).unwrap();
        let resume = resumes(&catalog)[&ExportId(1)].clone();
        let volume = volumes(&objects, catalog.journal()).resume(&resume);
        volume.confirm().await.unwrap();
        assert_eq!(volume.state().number, resume.number + 1);
    }
}

#[tokio::test]
async fn nothing_is_left_of_the_journals_of_exports_that_were_deleted_or_never_came_into_being() {
    let (dir, objects) = (tempfile::tempdir().unwrap(), Arc::default());
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    let here = volumes(&objects, catalog.journal());
    let other = volumes(&objects, Arc::<NotesInMemory>::default());
    other.create(&"taken".parse().unwrap(), 2048).await.unwrap();
    let round = |id: u32| {
        let (catalog, here) = (&catalog, &here);
        async move {
            let name = format!("e{id}");
            let volume = here.create(&name.parse().unwrap(), 2048).await.unwrap();
            catalog.create(record(id, &name), Some(volume.state())).await.unwrap();
            let taken = here.create(&"taken".parse().unwrap(), 2048).await.unwrap_err();
            assert!(matches!(taken, VolumeError::NameTaken { .. }), "{taken}");
            if id.is_multiple_of(2) {
                // The creation of the export fails, and the volume is deleted after the entry.
                catalog.remove(ExportId(id)).await.unwrap();
                volume.delete().await.unwrap();
            } else {
                catalog.journal().lose(volume.id(), 1, &Loss::Deleted).await.unwrap();
                volume.delete().await.unwrap();
                catalog.remove(ExportId(id)).await.unwrap();
            }
        }
    };
    futures_util::future::join_all((1..=1000).map(round)).await;
    // The answer comes after the answers to all earlier changes.
    catalog.put(record(2000, "last")).await.unwrap();
    assert!(catalog.handle.has_no_journal());
    drop((here, catalog));
    let database = Database::open(&path).unwrap();
    let contents = read(&database).unwrap();
    assert_eq!((contents.intents, contents.losses), (vec![], vec![]));
}

#[tokio::test]
async fn an_entry_of_a_newer_version_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    drop(Catalog::open(&path).unwrap());
    let mut entry = serde_json::to_value(record(1, "a")).unwrap();
    entry["what_comes_next"] = 7.into();
    let mut of_another_format = encode_json(&record(1, "a")).unwrap();
    of_another_format[0] = 2;
    for bytes in [encode_json(&entry).unwrap(), of_another_format] {
        let database = Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(EXPORTS).unwrap().insert(1, bytes.as_slice()).unwrap();
        transaction.open_table(META).unwrap().insert("next_export_id", 2).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Catalog::open(&path).unwrap_err();
        assert!(matches!(error, CatalogError::NewerEntry { id: 1, .. }), "{error}");
        assert!(
            error.to_string().contains("newer version") && !error.to_string().contains("damaged"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn starts_are_counted_across_restarts() {
    use crate::cache::CacheCatalog as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    for start in [Start { last: 0, begun: Some(1) }, Start { last: 1, begun: None }, Start::default()] {
        let catalog = Catalog::open(&path).unwrap();
        let handle = catalog.handle();
        let known = tokio::task::spawn_blocking(move || handle.set_start(start).map(|()| handle.start()));
        assert_eq!(known.await.unwrap().unwrap(), Some(start));
        drop(catalog);
        assert_eq!(Catalog::open(&path).unwrap().handle().start(), Some(start));
    }
}

#[tokio::test]
async fn the_end_of_an_export_takes_no_journal_of_another_one_that_has_its_volume_now() {
    let (dir, objects) = (tempfile::tempdir().unwrap(), Arc::default());
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&path).unwrap();
    let here = volumes(&objects, catalog.journal());
    // "vm" is half deleted: the store has the deletion, the catalog still has the entry.
    let (vm, vm2) = ("vm".parse().unwrap(), "vm2".parse().unwrap());
    let first = here.create(&vm, 2048).await.unwrap();
    catalog.create(record(1, "vm"), Some(Resume { manifest: None, ..first.state() })).await.unwrap();
    first.delete().await.unwrap();
    // The user undeletes the volume under another name, because "vm" is in use (`export undelete vm --as vm2`).
    let second = here.undelete(&vm, &vm2).await.unwrap();
    let known = Resume { manifest: None, ..second.state() };
    catalog.create(record(2, "vm2"), Some(known.clone())).await.unwrap();
    // A manifest of "vm2" is created; the daemon ends before the catalog learns of the manifest.
    second.release().await.unwrap();
    // Before or after the end of the daemon "vm" is deleted again, as `docs/operations.md` says of half deleted exports: the
    // writer of "vm" finds another writer, and the entry is removed.
    let _: Result<(), VolumeError> = first.delete().await;
    catalog.remove(ExportId(1)).await.unwrap();
    drop((catalog, here, first, second));
    let catalog = Catalog::open(&path).unwrap();
    let second = volumes(&objects, catalog.journal()).resume(&resumes(&catalog)[&ExportId(2)]);
    let confirmed = second.confirm().await;
    assert!(confirmed.is_ok(), "{confirmed:?}");
    assert_eq!((second.loss(), second.state().number), (None, known.number + 1));
}

#[tokio::test]
async fn a_table_of_another_version_is_passed_over_and_kept() {
    const OTHER: redb::TableDefinition<&[u8; 32], &[u8]> = redb::TableDefinition::new("requests");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    Catalog::open(&path).unwrap().put(record(1, "a")).await.unwrap();
    let row = |transaction: &redb::WriteTransaction| {
        let mut table = transaction.open_table(OTHER).unwrap();
        table.insert(&[7; 32], b"kept".as_slice()).unwrap().map(|old| old.value().to_vec())
    };
    tamper(&path, |transaction| assert_eq!(row(transaction), None));
    Catalog::open(&path).unwrap().put(record(2, "b")).await.unwrap();
    tamper(&path, |transaction| assert_eq!(row(transaction).as_deref(), Some(b"kept".as_slice())));
    assert_eq!(Catalog::open(&path).unwrap().known().len(), 2);
}
