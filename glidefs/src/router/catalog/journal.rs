//! The journals of the volumes in the store, kept in the catalog.
//!
//! Owns the journals in memory. Does not own the meaning of an entry (`store::volume`) nor the tables (`tables`). Invariant:
//! memory has no entry of a journal that is not on disk.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::change::{Change, JournalChange};
use super::queue::Changes;
use crate::locks::MutexExt;
use crate::store::VolumeId;
use crate::store::volume::{Intents, Loss, ManifestHash, Notes, Past, Resume};

/// Journals in the catalog.
#[derive(Clone, Debug)]
pub(super) struct CatalogJournal {
    changes: Changes,
    memory: Arc<Mutex<JournalMemory>>,
}

/// The journals on disk, in memory.
#[derive(Debug, Default)]
pub(super) struct JournalMemory {
    pub intents: Intents,
    /// Losses by volume and epoch.
    pub losses: HashMap<(VolumeId, u64), Loss>,
}

impl JournalMemory {
    /// Applies `change`, which is on disk. `forgotten` names the journal that the transaction removed together with an export.
    pub fn apply(&mut self, change: &Change, forgotten: Option<Past>) {
        match change {
            Change::Journal(change) => self.apply_own(change),
            Change::WrittenBack(_, Resume { volume, .. }, _) => {
                self.intents.end_allowance(*volume);
            }
            _ => {}
        }
        if let Some(past) = forgotten {
            self.forget(past);
        }
    }

    fn apply_own(&mut self, change: &JournalChange) {
        match change {
            JournalChange::Intend(volume, number, hash) => self.intents.add(*volume, *number, *hash),
            JournalChange::Withdraw(volume, number, hash) => self.intents.withdraw(*volume, *number, hash),
            JournalChange::Lost(volume, epoch, loss) => {
                self.losses.insert((*volume, *epoch), loss.clone());
            }
            JournalChange::EndAllowance(volume) => {
                self.intents.end_allowance(*volume);
            }
            JournalChange::Forget(past) => self.forget(*past),
        }
    }

    fn forget(&mut self, past: Past) {
        self.intents.forget(past);
        self.losses.retain(|(volume, epoch), _| !past.has_loss(*volume, *epoch));
    }
}

/// Locks `memory`. A panic elsewhere cannot leave the maps half changed: each change is one call of a map.
pub(super) fn lock(memory: &Mutex<JournalMemory>) -> MutexGuard<'_, JournalMemory> {
    memory.lock_whole()
}

impl CatalogJournal {
    pub fn new(changes: Changes, memory: Arc<Mutex<JournalMemory>>) -> Self {
        Self { changes, memory }
    }

    fn lock(&self) -> MutexGuard<'_, JournalMemory> {
        lock(&self.memory)
    }

    /// Whether all journals are empty.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let memory = self.lock();
        memory.intents.is_empty() && memory.losses.is_empty()
    }

    /// Has `change` written. The catalog's writer applies the change to memory.
    fn write(&self, change: JournalChange) -> BoxFuture<'static, io::Result<()>> {
        let changes = self.changes.clone();
        async move { changes.write(Change::Journal(change)).await?.map_err(io::Error::other) }.boxed()
    }

    /// Has `change` written some time.
    fn write_later(&self, change: JournalChange) {
        self.changes.write_later(Change::Journal(change));
    }
}

impl Notes for CatalogJournal {
    fn intend(
        &self,
        volume: VolumeId,
        number: u64,
        hash: ManifestHash,
    ) -> BoxFuture<'static, io::Result<()>> {
        self.write(JournalChange::Intend(volume, number, hash))
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        self.lock().intents.find(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.lock().intents.highest(volume)
    }

    fn is_current(&self, volume: VolumeId) {
        if self.lock().intents.end_allowance(volume) {
            self.write_later(JournalChange::EndAllowance(volume));
        }
    }

    fn withdraw(&self, volume: VolumeId, number: u64, hash: ManifestHash) {
        self.write_later(JournalChange::Withdraw(volume, number, hash));
    }

    fn forget(&self, past: Past) {
        self.write_later(JournalChange::Forget(past));
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>> {
        self.write(JournalChange::Lost(volume, epoch, loss.clone()))
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.lock().losses.get(&(volume, epoch)).cloned()
    }
}
