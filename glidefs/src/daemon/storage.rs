//! The data of exports as the router sees the data: the cache, and behind the cache the store.
//!
//! Owns how an export's volume in the cache is linked to the export's volume in the store. Does not own either volume. Invariant:
//! a daemon starts and serves the exports of its catalog although the store is away; only new exports need the store.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::cache::{Cache, Volume, WritebackQueue};
use crate::properties::Properties;
use crate::router::{Begun, Catalog, CatalogHandle, ExportName, InitialContent, Storage};
use crate::store::volume::{self, Resume, StatePoint, VolumeError, check_size};
use crate::store::{Access, StoreError, VolumeId};
use crate::units::{ExportId, SECTOR_BYTES};

/// The cache, and the store if one is configured.
pub struct DaemonStorage {
    cache: Cache,
    store: Option<Arc<StoreSide>>,
}

/// The store, with the exports of the catalog.
pub struct StoreSide {
    volumes: volume::VolumeStore,
    queue: Arc<WritebackQueue>,
    /// Identity of the store with the volumes of the catalog's exports. No other store is used.
    known: Option<Uuid>,
    catalog: CatalogHandle,
    /// Identity of the configured store, once the store has answered.
    checked: OnceCell<Uuid>,
}

impl StoreSide {
    /// The store of `volumes`, with the exports of `catalog`.
    pub fn new(volumes: volume::VolumeStore, queue: Arc<WritebackQueue>, catalog: &Catalog) -> Self {
        let (known, catalog) = (catalog.store_id(), catalog.handle());
        Self { volumes, queue, known, catalog, checked: OnceCell::new() }
    }

    /// Checks that the configured place is a store of a known format, and the store with the catalog's volumes if there are
    /// any. An empty place becomes a new store. The identity of a new or newly configured store is written to the catalog.
    /// After a success nothing is asked again.
    pub async fn check(&self) -> Result<(), StoreError> {
        let check = || async {
            let access = self.known.map_or(Access::ReadWrite, Access::Known);
            let marker = self.volumes.store().check(access).await?;
            if self.known.is_none() {
                let catalog = self.catalog.clone();
                let written =
                    tokio::task::spawn_blocking(move || catalog.set_store_id(marker.store_id)).await;
                if let Ok(Err(error)) = written {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the identity of the store could not be written to the catalog");
                }
            }
            Ok(marker.store_id)
        };
        self.checked.get_or_try_init(check).await.map(drop)
    }

    /// Checks that the store answers now, and is still the store of [`Self::check`].
    pub async fn reach(&self) -> Result<(), StoreError> {
        let Some(&known) = self.checked.get() else { return self.check().await };
        let store = self.volumes.store();
        let found = store.check(Access::ReadOnly).await?.store_id;
        if found == known {
            return Ok(());
        }
        Err(StoreError::Another { location: store.location().to_owned(), found, known })
    }

    /// The volumes in the store.
    pub fn volumes(&self) -> volume::VolumeStore {
        self.volumes.clone()
    }
}

/// The state of a volume that is this host's, without the bytes of the manifest.
async fn begun(volume: &volume::VolumeWriter) -> Result<Begun, VolumeError> {
    let properties = volume.properties().await?;
    let resume = Resume { manifest: None, ..volume.state() };
    Ok(Begun { resume, is_released: false, properties })
}

impl DaemonStorage {
    /// The data in `cache`, linked to the volumes in `store`.
    pub fn new(cache: Cache, store: Option<Arc<StoreSide>>) -> Self {
        Self { cache, store }
    }
}

#[async_trait]
impl Storage for DaemonStorage {
    fn volume(&self, id: ExportId, size_bytes: u64, resume: Option<&Resume>) -> Arc<Volume> {
        let Some(resume) = resume else { return self.cache.volume(id) };
        let volume = self.cache.begin(id, resume.cut);
        self.link(&volume, size_bytes, resume);
        volume
    }

    fn is_at_rest(&self, id: ExportId, size_bytes: u64, resume: Option<&Resume>) -> bool {
        let is_current = |resume: &Resume| {
            resume.damaged_sectors == 0
                && resume.size_sectors == size_bytes / SECTOR_BYTES
                && !self.store.as_ref().is_some_and(|side| side.volumes.is_lost(resume))
        };
        !self.cache.has_volume(id) && resume.is_none_or(is_current)
    }

    fn link(&self, volume: &Volume, size_bytes: u64, resume: &Resume) {
        let Some(side) = &self.store else { return };
        let remote = side.volumes.resume(resume);
        let queue = Arc::clone(&side.queue);
        volume.link_to_store(remote, queue, size_bytes / SECTOR_BYTES, resume.size_sectors);
    }

    async fn begin(
        &self,
        name: ExportName,
        content: InitialContent,
        origin: Option<VolumeId>,
        properties: Properties,
        detached: bool,
    ) -> Result<Option<Begun>, VolumeError> {
        let Some(side) = &self.store else { return Ok(None) };
        side.check().await?;
        let volume = match content {
            InitialContent::Blank(size) => {
                let size_sectors = size.bytes() / SECTOR_BYTES;
                check_size(size_sectors)?;
                return side.volumes.create_blank(&name, size_sectors, properties, detached).await.map(Some);
            }
            InitialContent::Store => side.volumes.open(&name).await?,
            InitialContent::Local { of, .. } => return Err(VolumeError::NoSuchName { name: of }),
            InitialContent::TakeOver => side.volumes.take_over(&name).await?,
            InitialContent::Deleted { of } => side.volumes.undelete(&of, &name).await?,
            InitialContent::Fork { of, snapshot } => {
                let volume = match origin {
                    Some(origin) => origin,
                    None => side.volumes.named(&of).await?,
                };
                side.volumes.fork(&StatePoint { volume, snapshot }, &name).await?
            }
        };
        begun(&volume).await.map(Some)
    }

    async fn regain(&self, name: ExportName, volume: Arc<Volume>) -> Result<Option<Begun>, VolumeError> {
        let (Some(side), Some(remote)) = (&self.store, volume.remote()) else { return Ok(None) };
        side.check().await?;
        let regained = side.volumes.take_over_known(&name, remote.id()).await?;
        begun(&regained).await.map(Some)
    }

    async fn rescue(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
        size_sectors: u64,
        manifest: Option<u64>,
    ) -> Result<Option<Resume>, VolumeError> {
        let (Some(side), Some(remote)) = (&self.store, volume.remote()) else { return Ok(None) };
        let kept = self.cache.kept(&volume);
        side.check().await?;
        let fork = remote.fork_known(&name, manifest).await?;
        match fork.commit(kept, size_sectors).await {
            Ok(committed) => Ok(Some(Resume { manifest: None, ..committed.resume })),
            Err(error) => {
                // Nobody else knows the new volume.
                fork.delete().await?;
                Err(error)
            }
        }
    }

    async fn delete(&self, volume: Arc<Volume>) -> Result<(), VolumeError> {
        let Some(remote) = volume.remote() else { return Ok(()) };
        match remote.delete().await {
            // Another host has the volume, or another history of the volume, or the volume is deleted already: nothing to delete here.
            Err(lost) if lost.is_fatal() => Ok(()),
            deleted => deleted,
        }
    }

    async fn reach(&self) -> Result<(), VolumeError> {
        let Some(side) = &self.store else { return Ok(()) };
        Ok(side.reach().await?)
    }

    async fn volumes(&self) -> Result<Option<volume::VolumeStore>, StoreError> {
        let Some(side) = &self.store else { return Ok(None) };
        side.check().await?;
        Ok(Some(side.volumes()))
    }

    fn remove(&self, id: ExportId) {
        self.cache.remove(id);
    }
}
