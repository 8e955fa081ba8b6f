//! The book of the cache, kept in the catalog.
//!
//! Owns the way there: a change is handed to the catalog's writer, which may take many in one transaction, and its answer
//! is waited for.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::catalog::{Change, Message, Waiting};
use crate::cache::{self, Start};
use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

/// Writes down how far exports are in the store.
#[derive(Clone, Debug)]
pub struct Book {
    changes: mpsc::Sender<Message>,
    /// What is on disk.
    start: Arc<Mutex<Start>>,
}

impl Book {
    pub(super) fn new(changes: mpsc::Sender<Message>, start: Arc<Mutex<Start>>) -> Self {
        Self { changes, start }
    }

    /// Writes down in which store the exports are. Blocks.
    pub fn store_is(&self, id: Uuid) -> io::Result<()> {
        self.write(Change::Store(id))
    }

    fn write(&self, change: Change) -> io::Result<()> {
        let closed = || io::Error::other("the catalog is closed: the daemon is stopping");
        let (done, answer) = oneshot::channel();
        self.changes.send(Message::Change(Box::new(Waiting { change, done }))).map_err(|_| closed())?;
        answer.blocking_recv().map_err(|_| closed())?.map_err(io::Error::other)
    }
}

impl cache::CacheCatalog for Book {
    fn start(&self) -> Option<Start> {
        Some(*self.start.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_start(&self, start: Start) -> io::Result<()> {
        self.write(Change::Start(start))?;
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = start;
        Ok(())
    }

    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        self.write(Change::Evicted(marks.to_vec()))
    }

    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> io::Result<()> {
        self.write(Change::Flushed(export, resume.clone(), evicted))
    }
}
