//! The catalog: the daemon's database of exports, in the file `catalog.redb`.
//!
//! Owns opening and checking the database, and the questions and changes of the rest of the daemon. Does not own the exports in
//! memory (`exports`). Invariants: an answered change is on disk; an export id that was ever committed is never given again.
//!
//! | File | What it owns |
//! |---|---|
//! | `record`, `volume_record`, `loss`, `encoding` | values, and their bytes |
//! | `tables`, `commit` | the tables, and how changes are made in them |
//! | `change`, `queue`, `writer` | changes on their way to the one thread that writes |
//! | `journal` | the journals of volumes, in memory |
//! | `handle` | the way to the catalog for the cache and the store's side |
//! | `health` | whether the catalog can be written |
//! | `glance` | a look at a copy, without a daemon |

pub(super) mod change;
mod commit;
mod encoding;
pub(super) mod error;
mod glance;
mod handle;
pub(super) mod health;
mod journal;
mod loss;
mod queue;
pub(super) mod record;
mod tables;
pub(super) mod volume_record;
mod writer;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use redb::Database;
use redb::backends::FileBackend;
use uuid::Uuid;

use self::change::Change;
use self::encoding::DecodeError;
use self::error::CatalogError;
pub use self::glance::CatalogGlance;
pub use self::handle::CatalogHandle;
use self::health::{CatalogHealth, TRY_AGAIN};
use self::journal::JournalMemory;
use self::loss::decode_loss;
use self::queue::Changes;
use self::record::{Desired, ExportRecord};
use self::tables::{Contents, SCHEMA_VERSION, commits, initialise, read};
use self::volume_record::VolumeRecord;
use self::writer::{Opener, Writer, reserve, write_again};
use super::ExportName;
use super::size::ExportSize;
use crate::cache::SeqMarks;
use crate::locks::holder;
use crate::store::volume::{Notes, Resume};
use crate::units::ExportId;

/// Memory for the page cache of redb, bytes. All records are in memory as well, so only the way to a changed record is read.
const PAGE_CACHE_BYTES: usize = 512 << 10;

/// The daemon's database of exports.
#[derive(Debug)]
pub struct Catalog {
    /// The exports read by [`Catalog::open`], until the router takes them.
    loaded: Vec<(ExportName, ExportRecord)>,
    /// The volumes of these exports in the store, until the router takes the exports.
    volumes: HashMap<ExportId, VolumeRecord>,
    store_id: Option<Uuid>,
    next_export_id: u32,
    health: Arc<CatalogHealth>,
    handle: CatalogHandle,
    writer: Option<JoinHandle<()>>,
    /// Whether a test has the changes of exports refused.
    #[cfg(test)]
    refuses: std::sync::atomic::AtomicBool,
}

impl Catalog {
    /// The version of the schema, which this program reads and writes.
    pub const VERSION: u64 = SCHEMA_VERSION;

    /// Opens the catalog at `path`, creating an empty one if the file is missing, and reads every entry. Blocks.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        let database = Database::builder().set_cache_size(PAGE_CACHE_BYTES).create(path).map_err(
            |error| match error {
                redb::DatabaseError::DatabaseAlreadyOpen => {
                    CatalogError::InUse { path: path.into(), holder: holder(path) }
                }
                other => CatalogError::Open { path: path.into(), source: Arc::new(other.into()) },
            },
        )?;
        // The last daemon may have ended between an error of the disk and the repair.
        if let Err(error) = write_file_again(path) {
            let (file, error) = (path.display(), &error as &dyn std::error::Error);
            tracing::error!(%file, error, "the catalog could not be written once more; it is used as it is");
        }
        let file = path.to_path_buf();
        // `open`, unlike `create`, fails for a missing file: an empty catalog must not replace a file that was removed.
        let open = move || -> Result<_, redb::Error> {
            write_file_again(&file)?;
            Ok(Database::builder().set_cache_size(PAGE_CACHE_BYTES).open(&file)?)
        };
        Self::of(path, database, Box::new(open), TRY_AGAIN)
    }

    /// The catalog in `database`. After an error `open` opens the database again, at once and after each `pause`.
    fn of(path: &Path, database: Database, open: Opener, pause: Duration) -> Result<Self, CatalogError> {
        let open_error =
            |source: redb::Error| CatalogError::Open { path: path.into(), source: Arc::new(source) };
        let contents = Contents::of(path, &database)?;
        let (start, store_id) = (contents.start, contents.store_id);
        let next_export_id = u32::try_from(contents.next).unwrap_or(u32::MAX);
        let Loaded { exports, volumes, journal } = Loaded::decode(path, contents)?;

        let (changes, queue) = Changes::new(path);
        let health = Arc::<CatalogHealth>::default();
        let journal = Arc::new(Mutex::new(journal));
        let writer = Writer {
            path: path.to_path_buf(),
            open,
            acknowledged: commits(&database).map_err(open_error)?,
            database: Some(database),
            pause,
            journal: Arc::clone(&journal),
            health: Arc::clone(&health),
            queue,
        };
        let writer = std::thread::Builder::new()
            .name("catalog".into())
            .spawn(move || writer.run())
            .map_err(|error| open_error(redb::Error::Io(error)))?;
        Ok(Self {
            loaded: exports,
            volumes,
            store_id,
            next_export_id,
            health,
            handle: CatalogHandle { changes, start: Arc::new(Mutex::new(start)), journal },
            writer: Some(writer),
            #[cfg(test)]
            refuses: std::sync::atomic::AtomicBool::default(),
        })
    }

    /// The exports with data for the cache to keep, each with how far the export is written back.
    pub fn known(&self) -> Vec<(ExportId, SeqMarks)> {
        let kept = self.loaded.iter().filter(|(_, record)| record.desired != Desired::Deleted);
        kept.map(|(_, record)| {
            let id = record.export_id();
            (id, self.volumes.get(&id).map(VolumeRecord::marks).unwrap_or_default())
        })
        .collect()
    }

    /// How many exports have a volume in the store.
    pub fn stored_exports(&self) -> usize {
        self.volumes.len()
    }

    /// Identity of the store with the exports' volumes; `None` if no export has a volume there, or nobody has asked the store
    /// for its identity.
    pub fn store_id(&self) -> Option<Uuid> {
        self.store_id.filter(|_| !self.volumes.is_empty())
    }

    /// Whether the catalog can be written.
    pub(super) fn health(&self) -> &Arc<CatalogHealth> {
        &self.health
    }

    /// The way to the catalog for the cache and the store's side.
    pub fn handle(&self) -> CatalogHandle {
        self.handle.clone()
    }

    /// The journals for the writers of volumes in the store.
    pub fn journal(&self) -> Arc<dyn Notes> {
        Arc::new(self.handle.clone())
    }

    /// Hands over the exports read by [`Catalog::open`], each with the state of the volume in the store, for the volume's writer
    /// to go on from.
    pub(super) fn take_loaded(&mut self) -> Vec<(ExportName, ExportRecord, Option<Resume>)> {
        let volumes = std::mem::take(&mut self.volumes);
        let with_volume = |(name, record): (ExportName, ExportRecord)| {
            // No state is left out: decoding has checked all of them.
            let resume = volumes.get(&record.export_id()).and_then(|volume| volume.resume().ok());
            (name, record, resume)
        };
        std::mem::take(&mut self.loaded).into_iter().map(with_volume).collect()
    }

    /// The id for the next export.
    pub fn next_export_id(&self) -> u32 {
        self.next_export_id
    }

    /// Refuses every change from now on.
    #[cfg(test)]
    pub(super) fn close(&self) {
        self.handle.changes.close();
    }

    /// Refuses every change of an export until told otherwise.
    #[cfg(test)]
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, std::sync::atomic::Ordering::SeqCst);
    }

    /// Queues `change`, and waits until it is on disk.
    pub(super) async fn change(&self, change: Change) -> Result<(), CatalogError> {
        #[cfg(test)]
        if self.refuses.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(self.handle.changes.closed());
        }
        self.handle.changes.write(change).await
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        // Handles and journals may keep senders, so the end of all senders is not waited for. The file is closed when the
        // writer has ended.
        self.handle.changes.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Contents {
    /// The contents of `database`, which is at `path`, if this program knows the schema.
    fn of(path: &Path, database: &Database) -> Result<Self, CatalogError> {
        let open_error = |source| CatalogError::Open { path: path.into(), source: Arc::new(source) };
        let version = initialise(database).map_err(open_error)?;
        if version != SCHEMA_VERSION {
            return Err(CatalogError::Newer { path: path.into(), found: version });
        }
        read(database).map_err(|source| CatalogError::Read { path: path.into(), source: Arc::new(source) })
    }
}

/// The decoded contents of a catalog.
struct Loaded {
    exports: Vec<(ExportName, ExportRecord)>,
    volumes: HashMap<ExportId, VolumeRecord>,
    journal: JournalMemory,
}

impl Loaded {
    /// Decodes and checks all `contents` of the catalog at `path`.
    fn decode(path: &Path, contents: Contents) -> Result<Self, CatalogError> {
        let damaged = |id, source: DecodeError| {
            let (path, is_newer, source) = (path.into(), source.is_newer(), Arc::new(source));
            if is_newer {
                CatalogError::NewerEntry { path, id, source }
            } else {
                CatalogError::Damaged { path, id, source }
            }
        };
        let inconsistent = |what| CatalogError::Inconsistent { path: path.into(), what };
        let mut records = Vec::with_capacity(contents.entries.len());
        let mut volumes = HashMap::new();
        for (id, record, volume) in contents.entries {
            let record = ExportRecord::decode(&record).map_err(|source| damaged(id, source))?;
            records.push((id, record));
            if let Some(bytes) = volume {
                let volume = VolumeRecord::decode(&bytes).map_err(|source| damaged(id, source))?;
                volumes.insert(ExportId(id), volume);
            }
        }
        let mut journal = JournalMemory::default();
        for (volume, number, hash) in contents.intents {
            journal.intents.add(volume, number, hash);
        }
        for (volume, epoch, bytes) in contents.losses {
            let loss = decode_loss(&bytes)
                .map_err(|error| inconsistent(format!("why volume {volume} was lost: {error}")))?;
            journal.losses.insert((volume, epoch), loss);
        }
        let exports = check(records, contents.next).map_err(inconsistent)?;
        Ok(Self { exports, volumes, journal })
    }
}

/// As [`write_again`], for all of the file at `path`, which no other process changes.
fn write_file_again(path: &Path) -> Result<(), redb::Error> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    // The disk may be full already.
    let _ = reserve(&file);
    let backend = FileBackend::new(file.try_clone()?)?;
    let seek = |from: u64, whence| {
        let from = libc::off_t::try_from(from).map_err(io::Error::other)?;
        match lseek(&file, from, whence) {
            Ok(found) => u64::try_from(found).map(Some).map_err(io::Error::other),
            // There is no data behind `from`.
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    // Nothing was ever written to a hole, and a full disk has no room for it.
    let mut at = 0;
    while let Some(begin) = seek(at, Whence::SeekData)? {
        at = seek(begin, Whence::SeekHole)?.unwrap_or(begin);
        if at <= begin {
            break;
        }
        write_again(&backend, begin..at)?;
    }
    Ok(())
}

/// The records with their checked names. An error describes the first contradiction, or the first name or size that breaks a rule.
fn check(records: Vec<(u32, ExportRecord)>, next: u64) -> Result<Vec<(ExportName, ExportRecord)>, String> {
    let mut names = HashSet::new();
    let mut checked = Vec::with_capacity(records.len());
    for (id, record) in records {
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

#[cfg(test)]
mod tests;
