//! The data of exports as the router sees it: the cache, and behind it the store.
//!
//! Owns how an export's volume in the cache is tied to its counterpart in the store. Does not own either. Invariant: a
//! daemon starts and serves what it has although the store is away; only what is new needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::cache::{Cache, Volume, WritebackQueue};
use crate::router::{Book, Catalog, ExportName, Source, Volumes};
use crate::store::gc::{self, GcError, GcOptions, GcReport};
use crate::store::volume::{DeletedVolume, Resume, StatePoint, VolumeError, check_size};
use crate::store::{self, Access, BlockCache, NameError, StoreError, StoreName, SystemClock};
use crate::units::{ExportId, SECTOR_BYTES};

/// The cache and the store.
pub struct DaemonVolumes {
    cache: Cache,
    store: Option<Arc<StoreSide>>,
}

/// The store's side.
pub struct StoreSide {
    volumes: store::volume::VolumeStore,
    queue: Arc<WritebackQueue>,
    /// Where exports of the catalog go on, until they are loaded.
    resumes: Mutex<HashMap<ExportId, Resume>>,
    /// Which store it has to be: the one with the exports of the catalog.
    known: Option<Uuid>,
    book: Book,
    /// Which store it is, when that was asked.
    checked: OnceCell<Uuid>,
}

impl StoreSide {
    /// The store of `volumes`, with the exports of `catalog` that have a counterpart in it.
    pub fn new(volumes: store::volume::VolumeStore, queue: Arc<WritebackQueue>, catalog: &Catalog) -> Self {
        let resumes = Mutex::new(catalog.resumes());
        let (known, book) = (catalog.store_id(), catalog.book());
        Self { volumes, queue, resumes, known, book, checked: OnceCell::new() }
    }

    /// Makes sure that the place is a store of a format that this program knows, and the one that was used so far if there was
    /// one. Otherwise makes it a store where there is nothing, and notes which one it is.
    pub async fn check(&self) -> Result<(), StoreError> {
        let check = || async {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let now_unix_millis = u64::try_from(now).unwrap_or(u64::MAX);
            let access = self.known.map_or(Access::ReadWrite { now_unix_millis }, Access::Known);
            let marker = self.volumes.store().check(access).await?;
            if self.known.is_none() {
                let book = self.book.clone();
                let noted = tokio::task::spawn_blocking(move || book.store_is(marker.store_id)).await;
                if let Ok(Err(error)) = noted {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "which store this is could not be written down");
                }
            }
            Ok(marker.store_id)
        };
        self.checked.get_or_try_init(check).await.map(drop)
    }

    /// Makes sure that the store is there now, and the same as when it was checked.
    async fn reach(&self) -> Result<(), StoreError> {
        let Some(&known) = self.checked.get() else { return self.check().await };
        let store = self.volumes.store();
        let found = store.check(Access::ReadOnly).await?.store_id;
        if found == known {
            return Ok(());
        }
        Err(StoreError::Another { location: store.location().to_owned(), found: Some(found), known })
    }

    /// Whether `error` of [`Self::check`] says that nothing may be served with this store. What is known to be one may refuse
    /// credentials that have expired, which is no reason to leave devices without a daemon.
    pub fn is_foreign(&self, error: &StoreError) -> bool {
        match error {
            StoreError::Refused { .. } | StoreError::Rejected { .. } => self.known.is_none(),
            error => !error.is_transient(),
        }
    }

    /// The store itself.
    pub fn store(&self) -> store::Store {
        self.volumes.store().clone()
    }

    /// Where it keeps what was read.
    pub fn clean(&self) -> Option<BlockCache> {
        self.volumes.clean()
    }

    async fn begin(&self, name: &ExportName, source: Source) -> Result<Resume, VolumeError> {
        self.check().await?;
        let name = store_name(name)?;
        let volume = match source {
            Source::Blank(size) => {
                let size_sectors = size.bytes() / SECTOR_BYTES;
                check_size(size_sectors)?;
                self.volumes.create(&name, size_sectors).await?
            }
            Source::Store => self.volumes.open(&name).await?,
            Source::Local { of } => return Err(VolumeError::NoSuchName { name: store_name(&of)? }),
            Source::TakeOver => self.volumes.take_over(&name).await?,
            Source::Deleted { of } => self.volumes.undelete(&store_name(&of)?, &name).await?,
            Source::Fork { of, snapshot } => {
                let of = store_name(&of)?;
                let found = self.volumes.find(&of).await?;
                let volume = found.ok_or(VolumeError::NoSuchName { name: of })?;
                let snapshot = snapshot.as_ref().map(store_name).transpose()?;
                self.volumes.fork(&StatePoint { volume, snapshot }, &name).await?
            }
        };
        Ok(Resume { manifest: None, ..volume.state() })
    }
}

fn store_name(name: &ExportName) -> Result<StoreName, NameError> {
    name.as_str().parse()
}

impl DaemonVolumes {
    /// The volumes of `cache`, tied to those of `store`, where there is one.
    pub fn new(cache: Cache, store: Option<Arc<StoreSide>>) -> Self {
        Self { cache, store }
    }
}

impl Volumes for DaemonVolumes {
    fn volume(&self, id: ExportId, size_bytes: u64, counterpart: Option<&Resume>) -> Arc<Volume> {
        let volume = match counterpart {
            Some(resume) => self.cache.begin(id, resume.cut),
            None => self.cache.volume(id),
        };
        let Some(side) = &self.store else { return volume };
        let loaded = side.resumes.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(resume) = counterpart.or(loaded.as_ref()) {
            self.tie(&volume, size_bytes, resume);
        }
        volume
    }

    fn tie(&self, volume: &Volume, size_bytes: u64, counterpart: &Resume) {
        let Some(side) = &self.store else { return };
        let remote = side.volumes.resume(counterpart);
        let queue = Arc::clone(&side.queue);
        volume.link_to_store(remote, queue, size_bytes / SECTOR_BYTES, counterpart.size_sectors);
    }

    fn begin(&self, name: ExportName, source: Source) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        async move {
            match &self.store {
                Some(side) => side.begin(&name, source).await.map(Some),
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn regain(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        async move {
            let (Some(side), Some(remote)) = (&self.store, volume.remote()) else { return Ok(None) };
            side.check().await?;
            let regained = side.volumes.take_over_known(&store_name(&name)?, remote.id()).await?;
            Ok(Some(Resume { manifest: None, ..regained.state() }))
        }
        .boxed()
    }

    fn rescue(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
        size_sectors: u64,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        async move {
            let (Some(side), Some(remote)) = (&self.store, volume.remote()) else { return Ok(None) };
            let kept = self.cache.kept(&volume);
            side.check().await?;
            let fork = remote.fork_known(&store_name(&name)?).await?;
            match fork.commit(kept, size_sectors).await {
                Ok(committed) => Ok(Some(Resume { manifest: None, ..committed.resume })),
                Err(error) => {
                    // Nobody knows of the new volume.
                    fork.delete().await?;
                    Err(error)
                }
            }
        }
        .boxed()
    }

    fn delete(&self, volume: Arc<Volume>) -> BoxFuture<'_, Result<(), VolumeError>> {
        async move {
            let Some(remote) = volume.remote() else { return Ok(()) };
            match remote.delete().await {
                // Somebody else has the volume or another history of it, or it is gone already.
                Err(lost) if lost.is_fatal() => Ok(()),
                deleted => deleted,
            }
        }
        .boxed()
    }

    fn reach(&self) -> BoxFuture<'_, Result<(), VolumeError>> {
        async move {
            match &self.store {
                Some(side) => Ok(side.reach().await?),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, VolumeError>> {
        async move {
            let Some(side) = &self.store else { return Ok(None) };
            side.check().await?;
            Ok(Some(side.volumes.names().await?.iter().map(ToString::to_string).collect()))
        }
        .boxed()
    }

    fn deleted(&self) -> BoxFuture<'_, Result<Option<Vec<DeletedVolume>>, VolumeError>> {
        async move {
            let Some(side) = &self.store else { return Ok(None) };
            side.check().await?;
            side.volumes.deleted(None).await.map(Some)
        }
        .boxed()
    }

    fn collect(&self, options: GcOptions) -> BoxFuture<'_, Result<Option<GcReport>, GcError>> {
        async move {
            let Some(side) = &self.store else { return Ok(None) };
            side.check().await?;
            gc::collect(side.volumes.store(), &SystemClock, &options).await.map(Some)
        }
        .boxed()
    }

    fn remove(&self, id: ExportId) {
        self.cache.remove(id);
    }
}
