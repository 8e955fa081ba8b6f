//! Manifests and pack indexes in memory, shared by all volumes.
//!
//! Owns which of them stay, by their size and last use. Does not own what they say. Invariant: no more than the configured
//! bytes are kept, and an object that several wait for is fetched once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::loaded::LoadedManifest;
use crate::store::error::StoreError;
use crate::store::format::{Manifest, PackIndex, PackRef};
use crate::store::ids::{PackId, VolumeId};

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id {
    Manifest(VolumeId, u64),
    Index(PackId),
}

#[derive(Clone, Debug)]
enum Item {
    Manifest(Arc<LoadedManifest>),
    Index(Arc<PackIndex>),
}

/// With so many loads on their way, those that nobody waits for any more are forgotten.
const LOADS_CHECKED: usize = 64;

type Loading = BoxFuture<'static, Result<Item, Arc<StoreError>>>;
type Load = Shared<Loading>;

/// A bounded cache of metadata.
#[derive(Debug)]
pub(in crate::store::volume) struct Metadata {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<Id, Kept>,
    /// By last use.
    order: BTreeMap<u64, Id>,
    /// Of everything kept.
    bytes: usize,
    uses: u64,
    /// What is on its way, for as long as somebody waits for it.
    loads: HashMap<Id, WeakShared<Loading>>,
}

#[derive(Debug)]
struct Kept {
    item: Item,
    bytes: usize,
    used: u64,
}

impl Metadata {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// A manifest, if it is here.
    pub fn manifest_here(&self, volume: VolumeId, number: u64) -> Option<Arc<LoadedManifest>> {
        match self.lock().get(Id::Manifest(volume, number)) {
            Some(Item::Manifest(loaded)) => Some(loaded),
            _ => None,
        }
    }

    /// A manifest; `load` fetches it.
    pub async fn manifest<F>(
        &self,
        volume: VolumeId,
        number: u64,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<LoadedManifest>, Arc<StoreError>>
    where
        F: Future<Output = Result<Manifest, StoreError>> + Send + 'static,
    {
        let load = || {
            let manifest = load();
            async {
                manifest
                    .await
                    .map(|manifest| Item::Manifest(Arc::new(LoadedManifest::of(Arc::new(manifest)))))
            }
        };
        match self.item(Id::Manifest(volume, number), load).await? {
            Item::Manifest(loaded) => Ok(loaded),
            Item::Index(_) => unreachable!("an index is not kept under the id of a manifest"),
        }
    }

    /// The index of a pack; `load` fetches it.
    pub async fn index<F>(
        &self,
        pack: &PackRef,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<PackIndex>, Arc<StoreError>>
    where
        F: Future<Output = Result<PackIndex, StoreError>> + Send + 'static,
    {
        let load = || {
            let index = load();
            async { index.await.map(|index| Item::Index(Arc::new(index))) }
        };
        match self.item(Id::Index(pack.pack), load).await? {
            Item::Index(index) => Ok(index),
            Item::Manifest(_) => unreachable!("a manifest is not kept under the id of an index"),
        }
    }

    /// Keeps a manifest, in the place of the one that it follows.
    pub fn put_manifest(&self, manifest: &Arc<Manifest>) {
        let loaded = Arc::new(LoadedManifest::of(manifest.clone()));
        let mut inner = self.lock();
        let before = inner.remove(Id::Manifest(manifest.volume, manifest.number - 1));
        let id = Id::Manifest(manifest.volume, manifest.number);
        let evicted = inner.keep(id, Item::Manifest(loaded), self.bytes_max);
        drop(inner);
        // Long ones take a while to be freed.
        drop((before, evicted));
    }

    /// Keeps the index of a pack that was made here.
    pub fn put_index(&self, pack: PackId, index: PackIndex) {
        let evicted = self.lock().keep(Id::Index(pack), Item::Index(Arc::new(index)), self.bytes_max);
        drop(evicted);
    }

    /// Forgets the index of a pack that is not in use any more.
    pub fn forget_index(&self, pack: PackId) {
        let forgotten = self.lock().remove(Id::Index(pack));
        drop(forgotten);
    }

    async fn item<F>(&self, id: Id, load: impl FnOnce() -> F) -> Result<Item, Arc<StoreError>>
    where
        F: Future<Output = Result<Item, StoreError>> + Send + 'static,
    {
        let load = {
            let mut inner = self.lock();
            if let Some(item) = inner.get(id) {
                return Ok(item);
            }
            inner.loads.get(&id).and_then(WeakShared::upgrade).unwrap_or_else(|| {
                if inner.loads.len() >= LOADS_CHECKED {
                    inner.loads.retain(|_, weak| weak.upgrade().is_some());
                }
                let load: Load = load().map(|result| result.map_err(Arc::new)).boxed().shared();
                // It was not polled yet, so there is something to share.
                inner.loads.extend(load.downgrade().map(|weak| (id, weak)));
                load
            })
        };
        let result = load.clone().await;
        let mut evicted = Vec::new();
        let mut inner = self.lock();
        // The first that is woken keeps it for all.
        if inner.loads.get(&id).and_then(WeakShared::upgrade).is_some_and(|current| current.ptr_eq(&load)) {
            inner.loads.remove(&id);
            if let Ok(item) = &result {
                evicted = inner.keep(id, item.clone(), self.bytes_max);
            }
        }
        drop(inner);
        drop(evicted);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn get(&mut self, id: Id) -> Option<Item> {
        self.uses += 1;
        let kept = self.kept.get_mut(&id)?;
        self.order.remove(&kept.used);
        kept.used = self.uses;
        self.order.insert(self.uses, id);
        Some(kept.item.clone())
    }

    /// Keeps `item`. What has left for it is for the caller to drop, without the lock.
    fn keep(&mut self, id: Id, item: Item, bytes_max: usize) -> Vec<Item> {
        let mut evicted: Vec<Item> = self.remove(id).into_iter().collect();
        let bytes = match &item {
            Item::Manifest(loaded) => loaded.manifest.memory_bytes() + loaded.rows.memory_bytes(),
            Item::Index(index) => index.memory_bytes(),
        };
        if bytes > bytes_max {
            return evicted;
        }
        self.bytes += bytes;
        self.uses += 1;
        self.order.insert(self.uses, id);
        self.kept.insert(id, Kept { item, bytes, used: self.uses });
        while self.bytes > bytes_max
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            evicted.extend(self.remove(oldest));
        }
        evicted
    }

    fn remove(&mut self, id: Id) -> Option<Item> {
        let kept = self.kept.remove(&id)?;
        self.bytes -= kept.bytes;
        self.order.remove(&kept.used);
        Some(kept.item)
    }
}
