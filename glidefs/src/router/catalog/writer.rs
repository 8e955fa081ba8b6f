//! The thread that writes the catalog: one transaction for all queued changes, and the repair after an error of the disk.
//!
//! redb refuses every transaction after an I/O error for as long as the database is open: one moment without space would last
//! until the daemon ends. So after an error the writer closes the database and opens the file again. Each transaction writes
//! its number to the catalog. The number shows whether the failed transaction is in the file all the same, and whether an
//! acknowledged one is missing.
//!
//! After an error the file may have content that the disk lacks: a failed sync leaves pages in the page cache that count as
//! written and are not on the disk. Making a change again does not write all of these pages again. So the whole file is written
//! once more before the file is opened, and then the changes are made again; every change can be made twice.
//!
//! Owns the open database. Does not own the tables (`tables`, `commit`). Invariants: a change is acknowledged after a
//! transaction with the change succeeded and the journals in memory have the change; a change is refused only when the file
//! does not have the change; nothing is written to a catalog without all acknowledged changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::FallocateFlags;
use redb::{Database, StorageBackend};

use super::commit::commit;
use super::error::CatalogError;
use super::health::CatalogHealth;
use super::journal::JournalMemory;
use super::queue::{QueuedChange, WriterMessage};
use super::tables::commits;
use crate::locks::MutexExt;

/// Most changes in one transaction.
const CHANGES_PER_COMMIT_MAX: usize = 1024;
/// Transactions tried with a batch before the batch, if absent from the file, is refused.
const TRIES: u32 = 2;
/// Bytes of the file that are read and written at once.
const PIECE_BYTES: usize = 1 << 20;

/// Writes `range` of the file again from the page cache: afterwards disk and page cache agree there.
///
/// # Errors
/// The error of the disk.
pub(super) fn write_again(file: &dyn StorageBackend, range: Range<u64>) -> io::Result<()> {
    let (mut offset, end) = (range.start, range.end);
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

/// Allocates the whole file: redb extends it sparsely, and writing such a page would fail on a full disk.
pub(super) fn reserve(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    // Blocks count 512 bytes on every file system.
    if found.blocks().saturating_mul(512) < found.len() {
        let length = libc::off_t::try_from(found.len()).map_err(io::Error::other)?;
        nix::fcntl::fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length)?;
    }
    Ok(())
}

/// Writes the existing file again, and opens the database.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::Error> + Send>;

/// The state of the writer's thread.
pub(super) struct Writer {
    pub path: PathBuf,
    pub open: Opener,
    /// `None` from an error until the database could be opened again.
    pub database: Option<Database>,
    /// Number of the last transaction that was acknowledged.
    pub acknowledged: u64,
    /// Pause between attempts to open a catalog that cannot be written.
    pub pause: Duration,
    pub journal: Arc<Mutex<JournalMemory>>,
    pub health: Arc<CatalogHealth>,
    pub queue: Receiver<WriterMessage>,
}

/// The catalog was dropped: the thread ends.
struct Closed;

impl Writer {
    /// Writes until the catalog is closed.
    pub fn run(mut self) {
        while let Ok((batch, closes)) = self.next() {
            let Ok(result) = self.write(&batch) else { return };
            for queued in batch {
                // A caller that has gone away does not need the answer.
                let _ = queued.done.send(result.clone());
            }
            if closes {
                return;
            }
        }
    }

    /// The queued changes, and whether the catalog is closed after these changes. An empty batch probes whether a failing
    /// catalog can be written again.
    #[expect(clippy::vec_box, reason = "changes come boxed")]
    fn next(&self) -> Result<(Vec<Box<QueuedChange>>, bool), Closed> {
        let patience = if self.health.failing().is_some() { self.pause } else { Duration::MAX };
        let mut batch = match self.queue.recv_timeout(patience) {
            Ok(WriterMessage::Change(first)) => vec![first],
            Err(RecvTimeoutError::Timeout) => return Ok((Vec::new(), false)),
            Ok(WriterMessage::Close) | Err(RecvTimeoutError::Disconnected) => return Err(Closed),
        };
        while batch.len() < CHANGES_PER_COMMIT_MAX
            && let Ok(message) = self.queue.try_recv()
        {
            match message {
                WriterMessage::Change(next) => batch.push(next),
                WriterMessage::Close => return Ok((batch, true)),
            }
        }
        Ok((batch, false))
    }

    /// Writes a batch, and then applies the batch to the journals in memory. Returns when the batch may be acknowledged, or is
    /// certainly not in the file.
    fn write(&mut self, batch: &[Box<QueuedChange>]) -> Result<Result<(), CatalogError>, Closed> {
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
            let Err(error) =
                commit(database, batch.iter().map(|queued| &queued.change), number, &mut forgotten)
            else {
                self.acknowledged = number;
                let mut journal = self.journal.lock_whole();
                for (queued, forgotten) in batch.iter().zip(forgotten) {
                    journal.apply(&queued.change, forgotten);
                }
                self.health.works();
                // Without room the next transaction says so.
                let _ = OpenOptions::new().write(true).open(&self.path).and_then(|file| reserve(&file));
                return Ok(Ok(()));
            };
            self.health.fails(&error);
            // The file can be opened again only after the lock of the open database is released.
            self.database = None;
            match self.reopen()? {
                // The batch is in the file, but perhaps not on the disk: the batch is written again.
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

    /// Opens the database again as soon as possible. Returns the number of the last transaction in the file: the last
    /// acknowledged one, or the one after. An error means: an acknowledged transaction is missing, and the database stays
    /// closed.
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

    /// Waits for `pause`. Meanwhile changes are refused: nobody knows when the catalog can be written again.
    fn rest(&self) -> Result<(), Closed> {
        let begun = Instant::now();
        loop {
            match self.queue.recv_timeout(self.pause.saturating_sub(begun.elapsed())) {
                Ok(WriterMessage::Change(queued)) => {
                    let why = self.health.failing().unwrap_or_default();
                    let source = Arc::new(redb::Error::Io(io::Error::other(why)));
                    let _ = queued.done.send(Err(CatalogError::Write { path: self.path.clone(), source }));
                }
                Ok(WriterMessage::Close) | Err(RecvTimeoutError::Disconnected) => return Err(Closed),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
        }
    }
}
