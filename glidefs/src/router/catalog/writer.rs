//! The thread that writes the catalog: one transaction for all changes that wait, and what follows when the disk fails.
//!
//! redb refuses every transaction after an I/O error for as long as the database is open, so that one moment without space would
//! last until the daemon ends. After an error the writer closes the database and opens the file again. Each transaction leaves its
//! number in the catalog: the number tells whether the transaction that failed is in the file all the same, and that nothing
//! acknowledged is missing.
//!
//! What is in the file after an error may not be on the disk: after a sync that failed the page cache has pages that count as
//! written and are not. Making a change again does not write all of those pages again, so the whole file is written once more before
//! the file is opened. The changes are then made again as well; every change can be made twice.
//!
//! Owns the open database, and whether writing fails at present. Does not own the tables. Invariants: a change is acknowledged when
//! a transaction with it succeeded and memory was told, and refused when the file does not have it; nothing is written to a catalog that lacks what was
//! acknowledged.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redb::{Database, StorageBackend};

use super::tables::{commit, commits};
use super::{CatalogError, Message, Waiting};
use crate::router::notes::{self, Memory};

/// Changes that one transaction takes, at most.
const CHANGES_PER_COMMIT_MAX: usize = 1024;
/// Transactions that are tried before changes are refused that are not in the file.
const TRIES: u32 = 2;
/// How much of the file is read and written at once.
const PIECE_BYTES: usize = 1 << 20;
/// How often a catalog that cannot be written is tried again.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Whether the catalog can be written.
#[derive(Debug, Default)]
pub struct CatalogHealth {
    failing: Mutex<Option<String>>,
    errors: AtomicU64,
}

impl CatalogHealth {
    /// Why the catalog cannot be written at present, if that is so.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Attempts to write or to open the catalog that failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(in crate::router) fn fails(&self, error: &(dyn std::error::Error + 'static)) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if self.set(Some(error.to_string())).is_none() {
            tracing::error!(
                error,
                "the catalog cannot be written: operations on exports fail or wait, and what is flushed is not written down; make \
                 room on the disk of cache.dir; the daemon tries again every {} s",
                TRY_AGAIN.as_secs()
            );
        }
    }

    fn works(&self) {
        if self.set(None).is_some() {
            tracing::info!("the catalog can be written again");
        }
    }

    fn set(&self, failing: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.failing.lock().unwrap_or_else(PoisonError::into_inner), failing)
    }
}

/// Writes the whole file with the bytes that the page cache has of the file, so that the disk has the same.
///
/// # Errors
/// What the disk said.
pub(super) fn write_again(file: &dyn StorageBackend) -> io::Result<()> {
    let (mut offset, end) = (0, file.len()?);
    let mut buffer = vec![0; PIECE_BYTES];
    while offset < end {
        let bytes = usize::try_from(end - offset).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let piece = buffer.get_mut(..bytes).unwrap_or_else(|| unreachable!("at most PIECE_BYTES"));
        file.read(offset, piece)?;
        file.write(offset, piece)?;
        offset = offset.saturating_add(bytes as u64);
    }
    file.sync_data()
}

/// Makes sure that the disk has all of the file, and opens the database, which exists.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::Error> + Send>;

/// The writer's state.
pub(super) struct Writer {
    pub path: PathBuf,
    pub open: Opener,
    /// Closed after an error, until it could be opened again.
    pub database: Option<Database>,
    /// Number of the last transaction that was acknowledged.
    pub acknowledged: u64,
    /// Pause before a catalog that cannot be written is tried again.
    pub pause: Duration,
    /// The notes that are on disk.
    pub memory: Arc<Mutex<Memory>>,
    pub health: Arc<CatalogHealth>,
    pub queue: Receiver<Message>,
}

/// The catalog is closed.
struct Closed;

impl Writer {
    /// Writes until the catalog is closed.
    pub fn run(mut self) {
        while let Ok((batch, closes)) = self.next() {
            let Ok(result) = self.write(&batch) else { return };
            for waiting in batch {
                // A caller that has gone away does not need the answer.
                let _ = waiting.done.send(result.clone());
            }
            if closes {
                return;
            }
        }
    }

    /// The changes that wait, and whether the catalog is closed after them. No changes: time to see whether a catalog that could not
    /// be written can be written now.
    #[expect(clippy::vec_box, reason = "changes come boxed")]
    fn next(&self) -> Result<(Vec<Box<Waiting>>, bool), Closed> {
        let patience = if self.health.failing().is_some() { self.pause } else { Duration::MAX };
        let mut batch = match self.queue.recv_timeout(patience) {
            Ok(Message::Change(first)) => vec![first],
            Err(RecvTimeoutError::Timeout) => return Ok((Vec::new(), false)),
            Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => return Err(Closed),
        };
        while batch.len() < CHANGES_PER_COMMIT_MAX
            && let Ok(message) = self.queue.try_recv()
        {
            match message {
                Message::Change(next) => batch.push(next),
                Message::Close => return Ok((batch, true)),
            }
        }
        Ok((batch, false))
    }

    /// Writes a batch, and then tells memory. Returns when the batch may be acknowledged, or is certainly not in the file.
    fn write(&mut self, batch: &[Box<Waiting>]) -> Result<Result<(), CatalogError>, Closed> {
        let number = self.acknowledged.saturating_add(1);
        let mut attempt = 0_u32;
        let mut forgotten = vec![None; batch.len()];
        loop {
            attempt = attempt.saturating_add(1);
            if self.database.is_none()
                && let Err(lacks) = self.reopen()?
            {
                return Ok(Err(lacks));
            }
            let Some(database) = &self.database else { continue };
            let Err(error) = commit(database, batch, number, &mut forgotten) else {
                self.acknowledged = number;
                let mut memory = notes::lock(&self.memory);
                for (waiting, forgotten) in batch.iter().zip(forgotten) {
                    memory.follow(&waiting.change, forgotten);
                }
                self.health.works();
                return Ok(Ok(()));
            };
            self.health.fails(&error);
            // Closed before it is opened again, as its lock is.
            self.database = None;
            match self.reopen()? {
                // The batch is in the file, and may not be on the disk.
                Ok(found) if found == number => {}
                Ok(_) if attempt < TRIES => continue,
                Ok(_) => {
                    return Ok(Err(CatalogError::Write { path: self.path.clone(), source: Arc::new(error) }));
                }
                Err(lacks) => return Ok(Err(lacks)),
            }
            if attempt >= TRIES {
                self.rest()?;
            }
        }
    }

    /// Opens the database again, as soon as that is possible, and returns the number of the last transaction in the file: that of the
    /// last acknowledged one, or the next. An error: what was acknowledged is missing, and the database stays closed.
    fn reopen(&mut self) -> Result<Result<u64, CatalogError>, Closed> {
        let (database, found) = loop {
            let opened = (self.open)().and_then(|database| {
                let found = commits(&database)?;
                Ok((database, found))
            });
            match opened {
                Ok(opened) => break opened,
                Err(error) => self.health.fails(&error),
            }
            self.rest()?;
        };
        if found != self.acknowledged && found != self.acknowledged.saturating_add(1) {
            let acknowledged = self.acknowledged;
            let what =
                format!("its last transaction is number {found}, and number {acknowledged} was acknowledged");
            let error = CatalogError::Inconsistent { path: self.path.clone(), what };
            self.health.fails(&error);
            return Ok(Err(error));
        }
        self.database = Some(database);
        Ok(Ok(found))
    }

    /// Waits a moment, and refuses the changes that come: nobody knows when they could be made.
    fn rest(&self) -> Result<(), Closed> {
        let begun = Instant::now();
        loop {
            match self.queue.recv_timeout(self.pause.saturating_sub(begun.elapsed())) {
                Ok(Message::Change(waiting)) => {
                    let why = self.health.failing().unwrap_or_default();
                    let source = Arc::new(redb::Error::Io(io::Error::other(why)));
                    let _ = waiting.done.send(Err(CatalogError::Write { path: self.path.clone(), source }));
                }
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => return Err(Closed),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
        }
    }
}
