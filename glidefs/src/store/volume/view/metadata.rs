//! A cache of manifests and pack indexes, shared by all volumes.
//!
//! Owns which of these objects stay in memory, by size and last use. Does not own the content of the objects. Invariant: the
//! cache keeps at most the configured bytes, and fetches an object once for all who wait for the object.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::loaded::LoadedManifest;
use crate::locks::MutexExt;
use crate::store::error::StoreError;
use crate::store::format::{Manifest, PackIndex, PackRef};
use crate::store::ids::{PackId, VolumeId};

/// Key of a kept object.
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

/// From this number of loads under way, loads that nobody waits for any more are forgotten.
const LOADS_CHECKED: usize = 64;

type Loading = BoxFuture<'static, Result<Item, Arc<StoreError>>>;
type Load = Shared<Loading>;

/// A bounded cache of manifests and pack indexes.
#[derive(Debug)]
pub(in crate::store::volume) struct Metadata {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<Id, Kept>,
    /// Keys by last use, oldest first.
    order: BTreeMap<u64, Id>,
    /// Memory of all kept objects.
    bytes: usize,
    uses: u64,
    /// Loads under way, each for as long as somebody waits for the load.
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

    /// Memory of all kept objects, bytes.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// A manifest, if the cache has the manifest. Makes no request.
    pub fn manifest_here(&self, volume: VolumeId, number: u64) -> Option<Arc<LoadedManifest>> {
        match self.lock().get(Id::Manifest(volume, number)) {
            Some(Item::Manifest(loaded)) => Some(loaded),
            _ => None,
        }
    }

    /// The index of a pack, if the cache has the index. Makes no request.
    pub fn index_here(&self, pack: PackId) -> Option<Arc<PackIndex>> {
        match self.lock().get(Id::Index(pack)) {
            Some(Item::Index(index)) => Some(index),
            _ => None,
        }
    }

    /// A manifest; `load` fetches the manifest when the cache does not have the manifest.
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

    /// The index of a pack; `load` fetches the index when the cache does not have the index.
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

    /// Keeps a manifest in place of its predecessor.
    pub fn put_manifest(&self, manifest: &Arc<Manifest>) {
        let loaded = Arc::new(LoadedManifest::of(manifest.clone()));
        let mut inner = self.lock();
        let before = inner.remove(Id::Manifest(manifest.volume, manifest.number - 1));
        let id = Id::Manifest(manifest.volume, manifest.number);
        let evicted = inner.keep(id, Item::Manifest(loaded), self.bytes_max);
        drop(inner);
        // Freeing a long manifest takes time, so the lock is released first.
        drop((before, evicted));
    }

    /// Keeps the index of a pack made by this process.
    pub fn put_index(&self, pack: PackId, index: PackIndex) {
        let evicted = self.lock().keep(Id::Index(pack), Item::Index(Arc::new(index)), self.bytes_max);
        drop(evicted);
    }

    /// Forgets the index of a pack that the newest manifest no longer lists.
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
                // The future was not polled yet, so a weak handle exists.
                inner.loads.extend(load.downgrade().map(|weak| (id, weak)));
                load
            })
        };
        let result = load.clone().await;
        let mut evicted = Vec::new();
        let mut inner = self.lock();
        // The first waiter that is woken keeps the object for all.
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
        self.inner.lock_whole()
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

    /// Keeps `item`. The caller drops the returned items, which had to leave, after releasing the lock.
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
