//! A handle on the catalog for the cache and the store's side, which outlives the router.
//!
//! Owns the start count in memory. Does not own the writing of a change (`writer`), nor the meaning of a journal's entry
//! (`store::volume`).

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::change::Change;
use super::journal::JournalMemory;
use super::queue::Changes;
use crate::cache::{self, Start};
use crate::locks::MutexExt;
use crate::store::VolumeId;
use crate::store::volume::{Loss, ManifestHash, Notes, Past, Resume};
use crate::units::{ExportId, Seq};

/// Writes down how far exports are written back, the starts of the daemon, the identity of the store, and the journals of the volumes there.
/// Most methods block.
#[derive(Clone, Debug)]
pub struct CatalogHandle {
    pub(super) changes: Changes,
    pub(super) start: Arc<Mutex<Start>>,
    pub(super) journal: Arc<Mutex<JournalMemory>>,
}

impl CatalogHandle {
    /// Writes down the identity of the store with the exports' volumes.
    pub fn set_store_id(&self, id: Uuid) -> io::Result<()> {
        Ok(self.changes.write_blocking(Change::Store(id))?)
    }

    /// Whether all journals are empty.
    #[cfg(test)]
    pub(super) fn has_no_journal(&self) -> bool {
        let journal = self.journal.lock_whole();
        journal.intents.is_empty() && journal.losses.is_empty()
    }

    /// Queues `change`, and waits for its transaction. The catalog's writer applies the change to the journals in memory.
    fn write(&self, change: Change) -> BoxFuture<'static, io::Result<()>> {
        let changes = self.changes.clone();
        async move { changes.write(change).await.map_err(io::Error::other) }.boxed()
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
        Ok(self.changes.write_blocking(Change::Evicted(marks.to_vec()))?)
    }

    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> BoxFuture<'static, io::Result<()>> {
        self.write(Change::WrittenBack(export, resume.clone(), evicted))
    }
}

impl Notes for CatalogHandle {
    fn intend(
        &self,
        volume: VolumeId,
        number: u64,
        hash: ManifestHash,
    ) -> BoxFuture<'static, io::Result<()>> {
        self.write(Change::Intend(volume, number, hash))
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        self.journal.lock_whole().intents.find(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.journal.lock_whole().intents.highest(volume)
    }

    fn withdraw(&self, volume: VolumeId, number: u64, hash: ManifestHash) {
        self.changes.write_later(Change::Withdraw(volume, number, hash));
    }

    fn forget(&self, past: Past) {
        self.changes.write_later(Change::Forget(past));
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>> {
        self.write(Change::Lost(volume, epoch, loss.clone()))
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.journal.lock_whole().losses.get(&(volume, epoch)).cloned()
    }
}
