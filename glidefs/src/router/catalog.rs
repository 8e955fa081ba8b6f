//! The catalog: which exports exist, on disk, in transactions.
//!
//! Owns `catalog.redb` and the thread that writes it. Changes that wait at the same moment share one transaction, so that
//! many operations in parallel cost few syncs. Does not own what a record means (`record`) nor the exports in memory
//! (`Router`). Invariants: a change that was answered is on disk; an export id that was ever committed is never given again.
//!
//! Tables: `exports` maps an export id to a record, `meta` maps `schema_version` and `next_export_id` to a number.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::oneshot;

use super::name::ExportName;
use super::record::{DecodeError, Desired, Record};
use super::size::ExportSize;
use crate::units::ExportId;

const EXPORTS: TableDefinition<u32, &[u8]> = TableDefinition::new("exports");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const SCHEMA_VERSION_KEY: &str = "schema_version";
const NEXT_EXPORT_ID_KEY: &str = "next_export_id";
/// Layout of the tables that this code reads and writes.
const SCHEMA_VERSION: u64 = 1;
/// Memory that redb may use to cache pages, bytes. All records are in memory as well, so little is read.
const PAGE_CACHE_BYTES: usize = 4 << 20;
/// Changes that one transaction takes, at most.
const CHANGES_PER_COMMIT_MAX: usize = 1024;

/// Why the catalog could not be opened, read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    /// Another process has it open.
    #[error("the catalog {path} is in use: is another glidefs daemon running on this cache directory?")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It could not be opened or created.
    #[error("cannot open the catalog {path}: check that the cache directory exists and is writable")]
    Open {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Arc<redb::Error>,
    },
    /// A later version of glidefs wrote it.
    #[error(
        "the catalog {path} has schema version {found}, this glidefs knows {SCHEMA_VERSION}: \
         run the newer glidefs that wrote it (nothing was changed)"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version it has.
        found: u64,
    },
    /// It could not be read.
    #[error("cannot read the catalog {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Arc<redb::Error>,
    },
    /// The entry of an export is damaged.
    #[error("the entry of export id {id} in the catalog {path} is damaged: restore the file from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The export's id.
        id: u32,
        /// What is wrong with it.
        #[source]
        source: Arc<DecodeError>,
    },
    /// Its entries contradict each other or the rules.
    #[error("the catalog {path} contradicts itself ({what}): restore the file from a backup")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// A change could not be made.
    #[error("cannot write the catalog {path}: nothing was changed")]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Arc<redb::Error>,
    },
    /// The thread that writes it has ended.
    #[error("the catalog {path} is closed: the daemon is stopping")]
    Closed {
        /// The file.
        path: PathBuf,
    },
}

/// A change of one export's entry.
enum Change {
    Put(Record),
    Remove(ExportId),
}

/// A change that waits for its transaction.
struct Waiting {
    change: Change,
    done: oneshot::Sender<Result<(), CatalogError>>,
}

/// The exports on disk.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    loaded: Vec<(ExportName, Record)>,
    next_export_id: u32,
    changes: Option<mpsc::Sender<Waiting>>,
    writer: Option<JoinHandle<()>>,
}

impl Catalog {
    /// Opens the catalog at `path`, making an empty one where there is none, and reads every entry. Blocks.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        let open_error =
            |source: redb::Error| CatalogError::Open { path: path.into(), source: Arc::new(source) };
        let database = Database::builder().set_cache_size(PAGE_CACHE_BYTES).create(path).map_err(
            |error| match error {
                redb::DatabaseError::DatabaseAlreadyOpen => CatalogError::InUse { path: path.into() },
                other => open_error(other.into()),
            },
        )?;
        let version = initialise(&database).map_err(open_error)?;
        if version != SCHEMA_VERSION {
            return Err(CatalogError::Newer { path: path.into(), found: version });
        }
        let (entries, next) = read(&database)
            .map_err(|source| CatalogError::Read { path: path.into(), source: Arc::new(source) })?;
        let mut loaded = Vec::with_capacity(entries.len());
        for (id, bytes) in entries {
            let record = Record::decode(&bytes).map_err(|source| CatalogError::Damaged {
                path: path.into(),
                id,
                source: Arc::new(source),
            })?;
            loaded.push((id, record));
        }
        let loaded =
            check(loaded, next).map_err(|what| CatalogError::Inconsistent { path: path.into(), what })?;
        let next_export_id = u32::try_from(next).unwrap_or(u32::MAX);

        let (changes, queue) = mpsc::channel();
        let writer_path = path.to_path_buf();
        let writer = std::thread::Builder::new()
            .name("catalog".into())
            .spawn(move || write_until_closed(&database, &writer_path, &queue))
            .map_err(|error| open_error(redb::Error::Io(error)))?;
        Ok(Self { path: path.into(), loaded, next_export_id, changes: Some(changes), writer: Some(writer) })
    }

    /// Ids of the exports whose data the cache must keep.
    pub fn export_ids(&self) -> Vec<ExportId> {
        let kept = self.loaded.iter().filter(|(_, record)| record.desired != Desired::Deleted);
        kept.map(|(_, record)| record.export_id()).collect()
    }

    /// Hands over the entries read by [`Catalog::open`].
    pub(super) fn take_loaded(&mut self) -> Vec<(ExportName, Record)> {
        std::mem::take(&mut self.loaded)
    }

    /// The id that the next export gets.
    pub(super) fn next_export_id(&self) -> u32 {
        self.next_export_id
    }

    /// Adds or replaces the entry of `record.id`; returns when it is on disk.
    pub(super) async fn put(&self, record: Record) -> Result<(), CatalogError> {
        self.change(Change::Put(record)).await
    }

    /// Removes the entry of `id`; returns when that is on disk.
    pub(super) async fn remove(&self, id: ExportId) -> Result<(), CatalogError> {
        self.change(Change::Remove(id)).await
    }

    async fn change(&self, change: Change) -> Result<(), CatalogError> {
        let closed = || CatalogError::Closed { path: self.path.clone() };
        let (done, answer) = oneshot::channel();
        self.changes.as_ref().ok_or_else(closed)?.send(Waiting { change, done }).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        // The writer ends when the last sender is gone; the file is closed when the writer has ended.
        self.changes = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Makes the tables of a new catalog and gives the schema version of an existing one.
fn initialise(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let version = {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get(SCHEMA_VERSION_KEY)?.map(|value| value.value());
        if let Some(version) = found {
            version
        } else {
            transaction.open_table(EXPORTS)?;
            meta.insert(SCHEMA_VERSION_KEY, SCHEMA_VERSION)?;
            meta.insert(NEXT_EXPORT_ID_KEY, 1)?;
            SCHEMA_VERSION
        }
    };
    if version == SCHEMA_VERSION {
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(version)
}

/// Entries as they are on disk: export id and encoded record.
type RawEntries = Vec<(u32, Vec<u8>)>;

/// Every entry, and the next export id.
fn read(database: &Database) -> Result<(RawEntries, u64), redb::Error> {
    let transaction = database.begin_read()?;
    let next = transaction.open_table(META)?.get(NEXT_EXPORT_ID_KEY)?.map_or(0, |value| value.value());
    let mut entries = Vec::new();
    for item in transaction.open_table(EXPORTS)?.iter()? {
        let (id, bytes) = item?;
        entries.push((id.value(), bytes.value().to_vec()));
    }
    Ok((entries, next))
}

/// The entries with their names, if they fit each other and the rules; what does not, otherwise.
fn check(entries: Vec<(u32, Record)>, next: u64) -> Result<Vec<(ExportName, Record)>, String> {
    let mut names = HashSet::new();
    let mut checked = Vec::with_capacity(entries.len());
    for (id, record) in entries {
        if id != record.id {
            return Err(format!("the entry of export id {id} is that of id {}", record.id));
        }
        if u64::from(id) >= next {
            return Err(format!("export id {id} is not below the next id {next}"));
        }
        ExportSize::new(record.size_bytes).map_err(|error| format!("export id {id}: {error}"))?;
        let name = ExportName::new(&record.name).map_err(|error| format!("export id {id}: {error}"))?;
        if !names.insert(name.clone()) {
            return Err(format!("two exports are called {name}"));
        }
        checked.push((name, record));
    }
    Ok(checked)
}

/// The writer thread: one transaction for all changes that wait, then their answers.
fn write_until_closed(database: &Database, path: &Path, queue: &mpsc::Receiver<Waiting>) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        while batch.len() < CHANGES_PER_COMMIT_MAX
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        let result = commit(database, &batch)
            .map_err(|source| CatalogError::Write { path: path.into(), source: Arc::new(source) });
        for waiting in batch {
            // A caller that has gone away does not need the answer.
            let _ = waiting.done.send(result.clone());
        }
    }
}

fn commit(database: &Database, batch: &[Waiting]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut exports = transaction.open_table(EXPORTS)?;
        let mut meta = transaction.open_table(META)?;
        let mut next = meta.get(NEXT_EXPORT_ID_KEY)?.map_or(1, |value| value.value());
        for waiting in batch {
            match &waiting.change {
                Change::Put(record) => {
                    let bytes =
                        record.encode().map_err(|error| redb::Error::Io(std::io::Error::other(error)))?;
                    exports.insert(record.id, bytes.as_slice())?;
                    next = next.max(u64::from(record.id) + 1);
                }
                Change::Remove(id) => {
                    exports.remove(id.0)?;
                }
            }
        }
        meta.insert(NEXT_EXPORT_ID_KEY, next)?;
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

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
        assert_eq!(catalog.export_ids(), [ExportId(1)]);
        assert_eq!(catalog.take_loaded(), [(ExportName::new("a").unwrap(), record(1, "a"))]);
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
        assert_eq!(Catalog::open(&path).unwrap().export_ids().len(), 200);
    }

    #[test]
    fn a_catalog_in_use_is_refused_and_says_by_whom() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        let _held = Catalog::open(&path).unwrap();
        let message = Catalog::open(&path).unwrap_err().to_string();
        assert!(message.contains("another glidefs daemon"), "{message}");
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
}
