//! The catalog: which exports exist, on disk, in transactions.
//!
//! Owns `catalog.redb`. Changes that wait at the same moment share one transaction (`writer`), so that many operations in parallel
//! cost few syncs. Does not own what a record means (`record`) nor the exports in memory
//! (`Router`) nor the tables (`tables`). Invariants: a change that was answered is on disk; an export id that was ever
//! committed is never given again.

mod tables;
mod writer;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::Database;
use redb::backends::FileBackend;
use tokio::sync::oneshot;
use uuid::Uuid;

use self::tables::{Contents, RawEntry, SCHEMA_VERSION, commits, initialise, read};
pub use self::writer::CatalogHealth;
use self::writer::{Opener, TRY_AGAIN, Writer, write_again};
use super::book::Book;
use super::name::ExportName;
use super::notes::{CatalogNotes, Memory, decode_loss};
use super::record::{DecodeError, Desired, Record};
use super::size::ExportSize;
use super::stored::Stored;
use crate::cache::{SeqMarks, Start};
use crate::store::VolumeId;
use crate::store::volume::{Loss, ManifestHash, Notes, Past, Resume};
use crate::units::{ExportId, Seq};

/// Memory that redb may use to cache pages, bytes. All records are in memory as well, so little is read.
const PAGE_CACHE_BYTES: usize = 4 << 20;

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
    /// A later version of glidefs wrote an entry.
    #[error(
        "the entry of export id {id} in the catalog {path} was written by a newer version of glidefs: run that one (nothing was \
         changed)"
    )]
    NewerEntry {
        /// The file.
        path: PathBuf,
        /// The export's id.
        id: u32,
        /// What is not known of it.
        #[source]
        source: Arc<DecodeError>,
    },
    /// The entry of an export is damaged.
    #[error(
        "the entry of export id {id} in the catalog {path} is damaged: put the whole cache directory back from one copy, or move it \
         away and open the exports from the store"
    )]
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
    #[error(
        "the catalog {path} contradicts itself ({what}): put the whole cache directory back from one copy, or move it away and open \
         the exports from the store"
    )]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// A change could not be made.
    #[error("cannot write the catalog {path}: nothing was changed; make room on its disk, and try again")]
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

/// A change of entries.
#[derive(Debug)]
pub(super) enum Change {
    Put(Record),
    /// A new export, with its counterpart in the store if it has one.
    Create(Record, Option<Resume>),
    /// An export goes on under another id, with nothing in the cache.
    Replace(ExportId, Record, Resume),
    /// An export that had no counterpart has one now.
    Tie(ExportId, Resume),
    /// The counterpart goes on from another state.
    Flushed(ExportId, Resume, Seq),
    /// Nothing up to there may be taken from the log. Exports without a counterpart are passed over.
    Evicted(Vec<(ExportId, Seq)>),
    /// The store is about to be asked to create this manifest.
    Intend(VolumeId, u64, ManifestHash),
    /// The store can never get this manifest.
    Withdraw(VolumeId, u64, ManifestHash),
    /// No version that took no notes has left manifests of a volume that the catalog does not know.
    EndAllowance(VolumeId),
    /// A volume was deleted.
    Forget(Past),
    /// This host has lost that epoch of a volume.
    Lost(VolumeId, u64, Loss),
    Remove(ExportId),
    /// The store that counterparts are in.
    Store(Uuid),
    /// The last start, as the log counts them too.
    Start(Start),
}

/// A change that waits for its transaction.
#[derive(Debug)]
pub(super) struct Waiting {
    pub change: Change,
    pub done: oneshot::Sender<Result<(), CatalogError>>,
}

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    Change(Box<Waiting>),
    /// The catalog is dropped.
    Close,
}

/// The exports on disk.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    loaded: Vec<(ExportName, Record)>,
    stored: HashMap<ExportId, Stored>,
    store_id: Option<Uuid>,
    next_export_id: u32,
    start: Arc<Mutex<Start>>,
    notes: CatalogNotes,
    health: Arc<CatalogHealth>,
    changes: mpsc::Sender<Message>,
    writer: Option<JoinHandle<()>>,
}

impl Catalog {
    /// Opens the catalog at `path`, making an empty one where there is none, and reads every entry. Blocks.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        let database = Database::builder().set_cache_size(PAGE_CACHE_BYTES).create(path).map_err(
            |error| match error {
                redb::DatabaseError::DatabaseAlreadyOpen => CatalogError::InUse { path: path.into() },
                other => CatalogError::Open { path: path.into(), source: Arc::new(other.into()) },
            },
        )?;
        // The last daemon may have ended between an error of the disk and the mend.
        if let Err(error) = write_file_again(path) {
            let (file, error) = (path.display(), &error as &dyn std::error::Error);
            tracing::error!(%file, error, "the catalog could not be written once more; it is used as it is");
        }
        let file = path.to_path_buf();
        // A file that is gone is not made anew.
        let open = move || -> Result<_, redb::Error> {
            write_file_again(&file)?;
            Ok(Database::builder().set_cache_size(PAGE_CACHE_BYTES).open(&file)?)
        };
        Self::of(path, database, Box::new(open), TRY_AGAIN)
    }

    /// The catalog in `database`, which `open` opens again after an error, at once and after each `pause`.
    fn of(path: &Path, database: Database, open: Opener, pause: Duration) -> Result<Self, CatalogError> {
        let open_error =
            |source: redb::Error| CatalogError::Open { path: path.into(), source: Arc::new(source) };
        let version = initialise(&database).map_err(open_error)?;
        if version != SCHEMA_VERSION {
            return Err(CatalogError::Newer { path: path.into(), found: version });
        }
        let Contents { entries, next, start, store_id, intents, allowed, losses } = read(&database)
            .map_err(|source| CatalogError::Read { path: path.into(), source: Arc::new(source) })?;
        let damaged = |id, source: DecodeError| {
            let (path, is_newer, source) = (path.into(), source.is_newer(), Arc::new(source));
            if is_newer {
                CatalogError::NewerEntry { path, id, source }
            } else {
                CatalogError::Damaged { path, id, source }
            }
        };
        let mut loaded = Vec::with_capacity(entries.len());
        let mut stored = HashMap::new();
        for RawEntry { id, record, counterpart } in entries {
            let record = Record::decode(&record).map_err(|source| damaged(id, source))?;
            loaded.push((id, record));
            if let Some(bytes) = counterpart {
                let counterpart = Stored::decode(&bytes).map_err(|source| damaged(id, source))?;
                stored.insert(ExportId(id), counterpart);
            }
        }
        let mut memory = Memory::default();
        for (volume, number, hash) in intents {
            memory.intents.add(volume, number, hash);
        }
        for (volume, number) in allowed {
            memory.intents.allow_above(volume, number);
        }
        for (volume, epoch, bytes) in losses {
            let loss = decode_loss(&bytes).map_err(|error| CatalogError::Inconsistent {
                path: path.into(),
                what: format!("why volume {volume} was lost: {error}"),
            })?;
            memory.losses.insert((volume, epoch), loss);
        }
        let loaded =
            check(loaded, next).map_err(|what| CatalogError::Inconsistent { path: path.into(), what })?;
        let next_export_id = u32::try_from(next).unwrap_or(u32::MAX);

        let (changes, queue) = mpsc::channel();
        let health = Arc::<CatalogHealth>::default();
        let memory = Arc::new(Mutex::new(memory));
        let writer = Writer {
            path: path.to_path_buf(),
            open,
            acknowledged: commits(&database).map_err(open_error)?,
            database: Some(database),
            pause,
            memory: Arc::clone(&memory),
            health: Arc::clone(&health),
            queue,
        };
        let writer = std::thread::Builder::new()
            .name("catalog".into())
            .spawn(move || writer.run())
            .map_err(|error| open_error(redb::Error::Io(error)))?;
        Ok(Self {
            path: path.into(),
            loaded,
            stored,
            store_id,
            next_export_id,
            start: Arc::new(Mutex::new(start)),
            notes: CatalogNotes::new(changes.clone(), memory),
            health,
            changes,
            writer: Some(writer),
        })
    }

    /// The exports whose data the cache must keep, with how far they are in the store.
    pub fn known(&self) -> Vec<(ExportId, SeqMarks)> {
        let kept = self.loaded.iter().filter(|(_, record)| record.desired != Desired::Deleted);
        kept.map(|(_, record)| {
            let id = record.export_id();
            (id, self.stored.get(&id).map(Stored::marks).unwrap_or_default())
        })
        .collect()
    }

    /// What the store's side of each export that has one goes on from.
    pub fn resumes(&self) -> HashMap<ExportId, Resume> {
        // All of them were checked when they were decoded.
        self.stored.iter().filter_map(|(id, stored)| Some((*id, stored.resume().ok()?))).collect()
    }

    /// Which store the counterparts are in, if there are any and it was noted.
    pub fn store_id(&self) -> Option<Uuid> {
        self.store_id.filter(|_| !self.stored.is_empty())
    }

    /// Whether it can be written.
    pub(super) fn health(&self) -> &Arc<CatalogHealth> {
        &self.health
    }

    /// Where the cache writes down how far exports are in the store.
    pub fn book(&self) -> Book {
        Book::new(self.changes.clone(), Arc::clone(&self.start))
    }

    /// Where writers of volumes in the store keep their notes.
    pub fn notes(&self) -> Arc<dyn Notes> {
        Arc::new(self.notes.clone())
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

    /// Adds the entry of a new export, and what is known of its counterpart in the store; returns when it is on disk.
    pub(super) async fn create(
        &self,
        record: Record,
        counterpart: Option<Resume>,
    ) -> Result<(), CatalogError> {
        self.change(Change::Create(record, counterpart)).await
    }

    /// Has the export `old` go on as `record`, from `resume` in the store, with nothing in the cache.
    pub(super) async fn replace(
        &self,
        old: ExportId,
        record: Record,
        resume: Resume,
    ) -> Result<(), CatalogError> {
        self.change(Change::Replace(old, record, resume)).await
    }

    /// Notes the counterpart of an export that had none.
    pub(super) async fn tie(&self, id: ExportId, resume: Resume) -> Result<(), CatalogError> {
        self.change(Change::Tie(id, resume)).await
    }

    /// Notes that the counterpart of an export goes on from another state.
    pub(super) async fn flushed(&self, id: ExportId, resume: Resume) -> Result<(), CatalogError> {
        self.change(Change::Flushed(id, resume, Seq(0))).await
    }

    /// Removes the entry of `id`; returns when that is on disk.
    pub(super) async fn remove(&self, id: ExportId) -> Result<(), CatalogError> {
        self.change(Change::Remove(id)).await
    }

    async fn change(&self, change: Change) -> Result<(), CatalogError> {
        let closed = || CatalogError::Closed { path: self.path.clone() };
        let (done, answer) = oneshot::channel();
        self.changes.send(Message::Change(Box::new(Waiting { change, done }))).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        // The book may have senders still. The file is closed when the writer has ended.
        let _ = self.changes.send(Message::Close);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// As [`write_again`], for the file at `path`, which no other process changes.
fn write_file_again(path: &Path) -> Result<(), redb::Error> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    Ok(write_again(&FileBackend::new(file)?)?)
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

#[cfg(test)]
mod tests;
