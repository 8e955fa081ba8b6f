//! What tests and benches have in place of the daemon's catalog and configuration.
//!
//! Owns notes that end with the process, and options. Not used by the daemon, which must not forget its notes.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::error::VolumeError;
use super::host::VolumeStoreOptions;
use super::notes::{Intents, Loss, ManifestHash, Notes, Past};
use super::volume_store::{Beginning, VolumeStore};
use super::writer::VolumeWriter;
use crate::locks::MutexExt;
use crate::properties::Properties;
use crate::store::clock::SystemClock;
use crate::store::ids::{HostName, StoreName, VolumeId, WriterId};

impl VolumeStoreOptions {
    /// Small options for `writer`, with notes in memory.
    pub fn new(writer: WriterId) -> Self {
        Self {
            writer,
            notes: Arc::<NotesInMemory>::default(),
            host: HostName::nearest(""),
            clock: Arc::new(SystemClock),
            metadata_bytes_max: 64 << 20,
            upload_bytes_max: 256 << 20,
            recent_bytes_max: 0,
            pack_bytes_max: u64::MAX,
            read_bytes_max: 64 << 20,
            block_cache: None,
        }
    }
}

impl VolumeStore {
    /// As [`Self::create_blank`], with the usual properties. The volume is held.
    pub async fn create(&self, name: &StoreName, size_sectors: u64) -> Result<VolumeWriter, VolumeError> {
        self.host.begin(name, Beginning::blank(size_sectors, Properties::default())).await
    }
}

/// Notes in memory only: enough for a process that never resumes a volume.
#[derive(Debug, Default)]
pub struct NotesInMemory(Mutex<(Intents, Losses)>);

/// Lost volumes with the epoch of the loss.
type Losses = HashMap<(VolumeId, u64), Loss>;

impl NotesInMemory {
    fn lock(&self) -> MutexGuard<'_, (Intents, Losses)> {
        // Each call on the map is a complete change, so a panic elsewhere leaves the map usable.
        self.0.lock_whole()
    }
}

impl Notes for NotesInMemory {
    fn intend(
        &self,
        volume: VolumeId,
        number: u64,
        hash: ManifestHash,
    ) -> BoxFuture<'static, io::Result<()>> {
        self.lock().0.add(volume, number, hash);
        async { Ok(()) }.boxed()
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        self.lock().0.find(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.lock().0.highest(volume)
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>> {
        self.lock().1.insert((volume, epoch), loss.clone());
        async { Ok(()) }.boxed()
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.lock().1.get(&(volume, epoch)).cloned()
    }

    fn withdraw(&self, volume: VolumeId, number: u64, hash: ManifestHash) {
        self.lock().0.withdraw(volume, number, &hash);
    }

    fn forget(&self, past: Past) {
        let mut known = self.lock();
        known.0.forget(past);
        known.1.retain(|(volume, epoch), _| !past.has_loss(*volume, *epoch));
    }
}
