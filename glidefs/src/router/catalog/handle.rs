//! A handle on the catalog for the cache and the store's side, which outlives the router.
//!
//! Owns the start count in memory. Does not own the writing of a change (`writer`).

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::change::Change;
use super::queue::Changes;
use crate::cache::{self, Start};
use crate::locks::MutexExt;
use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

/// Writes down how far exports are written back, the starts of the daemon, and the identity of the store. Most methods block.
#[derive(Clone, Debug)]
pub struct CatalogHandle {
    changes: Changes,
    start: Arc<Mutex<Start>>,
}

impl CatalogHandle {
    pub(super) fn new(changes: Changes, start: Arc<Mutex<Start>>) -> Self {
        Self { changes, start }
    }

    /// Writes down the identity of the store with the exports' volumes.
    pub fn set_store_id(&self, id: Uuid) -> io::Result<()> {
        self.changes.write_blocking(Change::Store(id))
    }
}

impl cache::CacheCatalog for CatalogHandle {
    fn start(&self) -> Option<Start> {
        Some(*self.start.lock_whole())
    }

    fn set_start(&self, start: Start) -> io::Result<()> {
        self.changes.write_blocking(Change::Start(start))?;
        *self.start.lock_whole() = start;
        Ok(())
    }

    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        self.changes.write_blocking(Change::Evicted(marks.to_vec()))
    }

    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> BoxFuture<'static, io::Result<()>> {
        let (changes, change) = (self.changes.clone(), Change::WrittenBack(export, resume.clone(), evicted));
        async move { changes.write(change).await?.map_err(io::Error::other) }.boxed()
    }
}
