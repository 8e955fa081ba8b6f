//! The volumes of a store, as one daemon uses the volumes.
//!
//! Owns finding, resuming and viewing volumes. Does not own changes of volumes: `create`, `ownership`, `delete` and `snapshots`
//! add those.

use std::sync::Arc;

use super::error::VolumeError;
use super::host::{Host, VolumeStoreOptions};
use super::types::Resume;
use super::writer::VolumeWriter;
use crate::store::block_cache::BlockCache;
use crate::store::client::Store;
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::{Folder, Key};

/// Opens, creates and finds the volumes of one store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    pub(super) host: Arc<Host>,
}

impl VolumeStore {
    /// The volumes of `store`, used with `options`.
    pub fn new(store: Store, options: VolumeStoreOptions) -> Self {
        Self::of(Arc::new(Host::new(store, options)))
    }

    pub(super) fn of(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// The store of these volumes.
    pub fn store(&self) -> &Store {
        &self.host.store
    }

    /// The block cache, if there is one.
    pub fn block_cache(&self) -> Option<BlockCache> {
        self.host.options.block_cache.clone()
    }

    /// Memory of manifests and pack indexes, bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.host.reader.metadata.bytes()
    }

    /// Memory of manifests, pack indexes and packs uploaded a moment ago, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.host.reader.recent.bytes().saturating_add(self.metadata_bytes() as u64)
    }

    /// READs that look for data in the store.
    #[cfg(test)]
    pub(super) fn places_taken(&self) -> u64 {
        self.host.reader.read_memory.places.taken()
    }

    /// Memory for the blocks of READs, bytes: what was set aside.
    pub fn read_bytes(&self) -> u64 {
        self.host.reader.read_memory.bytes()
    }

    /// Goes on with a volume where this daemon left off. Makes no request: the first commit shows whether another writer has
    /// taken the volume over. If this process has a writer of the volume in the same epoch that has not lost the volume, returns
    /// a handle of that writer.
    pub fn resume(&self, resume: &Resume) -> VolumeWriter {
        VolumeWriter::resume(self.host.clone(), resume)
    }

    /// Whether the notes say that this host lost the volume in the epoch of `resume`.
    pub fn is_lost(&self, resume: &Resume) -> bool {
        self.host.noted_loss(resume).is_some()
    }

    /// The volume meant by `name`.
    pub async fn find(&self, name: &StoreName) -> Result<Option<VolumeId>, VolumeError> {
        Ok(self.host.store.name(name).await?.map(|record| record.volume))
    }

    /// Names of all volumes in the store: one listing.
    pub async fn names(&self) -> Result<Vec<StoreName>, VolumeError> {
        let listing = self.host.store.list(Folder::Names, None).await?;
        let name = |key| if let Key::Name(name) = key { Some(name) } else { None };
        Ok(listing.objects.into_iter().filter_map(|object| name(object.key)).collect())
    }
}
