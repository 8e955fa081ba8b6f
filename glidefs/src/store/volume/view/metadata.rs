//! A cache of manifests and pack indexes, shared by all volumes.
//!
//! Owns that an object is loaded once, and which objects stay in memory: those used last, by foyer. Does not own the content
//! of the objects. Invariant: the cache keeps at most the configured bytes, and fetches an object once for all who wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use foyer_memory::{Cache, CacheBuilder, LruConfig};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};

use super::rows::LoadedManifest;
use crate::locks::MutexExt;
use crate::store::error::StoreError;
use crate::store::format::{Manifest, PackIndex, PackRef};
use crate::store::ids::{PackId, VolumeId};

/// Key of a kept object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id {
    Manifest(VolumeId, u64),
    /// With the hash of the index: a volume may name a pack of another volume falsely, and must not give the pack another index.
    Index(PackId, [u8; 16]),
}

impl Id {
    fn of_index(pack: &PackRef) -> Self {
        Self::Index(pack.pack, pack.index_hash)
    }
}

#[derive(Clone, Debug)]
enum Item {
    Manifest(Arc<LoadedManifest>),
    Index(Arc<PackIndex>),
}

/// From this number of loads under way, loads that nobody waits for any more are forgotten.
const LOADS_CHECKED: usize = 64;

type Loading = BoxFuture<'static, Result<Item, Arc<StoreError>>>;

/// A bounded cache of manifests and pack indexes.
#[derive(Debug)]
pub(in crate::store::volume) struct Metadata {
    kept: Cache<Id, Item>,
    /// Loads under way, each for as long as somebody waits for the load. A load stands here until its object is in `kept`, and
    /// whoever begins a load looks into `kept` under this lock. So the load that ends is the one which stands here.
    loads: Arc<Mutex<HashMap<Id, WeakShared<Loading>>>>,
    #[cfg(test)]
    seen: Mutex<Seen>,
}

/// Indexes that came from here, and the most memory that those in use had together, bytes.
#[cfg(test)]
#[derive(Debug, Default)]
struct Seen(Vec<std::sync::Weak<PackIndex>>, usize);

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Manifest(loaded) => loaded.manifest.memory_bytes() + loaded.rows.memory_bytes(),
            Self::Index(index) => index.memory_bytes(),
        }
    }
}

impl Metadata {
    pub fn new(bytes_max: usize) -> Self {
        // In one shard, as one manifest may take most of the memory.
        let kept = CacheBuilder::new(bytes_max)
            .with_name("glidefs-metadata")
            .with_shards(1)
            .with_weighter(|_: &Id, item: &Item| item.bytes())
            // With another ratio, an object that was just used would be the first to go.
            .with_eviction_config(LruConfig { high_priority_pool_ratio: 0.0 });
        Self {
            kept: kept.build(),
            loads: Arc::default(),
            #[cfg(test)]
            seen: Mutex::default(),
        }
    }

    /// Memory of all kept objects, bytes.
    pub fn bytes(&self) -> usize {
        self.kept.usage()
    }

    /// A manifest, if the cache has the manifest. Makes no request.
    pub fn manifest_here(&self, volume: VolumeId, number: u64) -> Option<Arc<LoadedManifest>> {
        match self.get(Id::Manifest(volume, number)) {
            Some(Item::Manifest(loaded)) => Some(loaded),
            _ => None,
        }
    }

    /// The index of a pack, if the cache has the index. Makes no request.
    pub fn index_here(&self, pack: &PackRef) -> Option<Arc<PackIndex>> {
        match self.get(Id::of_index(pack)) {
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
        match self.item(Id::of_index(pack), load).await? {
            Item::Index(index) => {
                #[cfg(test)]
                self.see(&index);
                Ok(index)
            }
            Item::Manifest(_) => unreachable!("a manifest is not kept under the id of an index"),
        }
    }

    /// Keeps a manifest in place of its predecessor.
    pub fn put_manifest(&self, manifest: &Arc<Manifest>) {
        let loaded = Arc::new(LoadedManifest::of(manifest.clone()));
        self.kept.remove(&Id::Manifest(manifest.volume, manifest.number - 1));
        keep(&self.kept, Id::Manifest(manifest.volume, manifest.number), Item::Manifest(loaded));
    }

    /// Keeps the index of a pack made by this process.
    pub fn put_index(&self, pack: &PackRef, index: PackIndex) {
        keep(&self.kept, Id::of_index(pack), Item::Index(Arc::new(index)));
    }

    /// Forgets the index of a pack that the newest manifest no longer lists.
    pub fn forget_index(&self, pack: &PackRef) {
        self.kept.remove(&Id::of_index(pack));
    }

    #[cfg(test)]
    fn see(&self, index: &Arc<PackIndex>) {
        let index = Arc::downgrade(index);
        let Seen(indexes, most) = &mut *self.seen.lock_whole();
        indexes.retain(|other| !other.ptr_eq(&index));
        indexes.push(index);
        let live: usize = indexes.iter().filter_map(|index| Some(index.upgrade()?.memory_bytes())).sum();
        *most = live.max(*most);
    }

    /// The most memory that indexes from here had together so far, kept here or not, bytes.
    #[cfg(test)]
    pub fn most_index_bytes(&self) -> usize {
        self.seen.lock_whole().1
    }

    async fn item<F>(&self, id: Id, load: impl FnOnce() -> F) -> Result<Item, Arc<StoreError>>
    where
        F: Future<Output = Result<Item, StoreError>> + Send + 'static,
    {
        let load = {
            let mut loads = self.loads.lock_whole();
            if let Some(item) = self.get(id) {
                return Ok(item);
            }
            loads.get(&id).and_then(WeakShared::upgrade).unwrap_or_else(|| {
                if loads.len() >= LOADS_CHECKED {
                    loads.retain(|_, weak| weak.upgrade().is_some());
                }
                let (load, kept, pending) = (load(), self.kept.clone(), Arc::clone(&self.loads));
                let load = async move {
                    let result = load.await.map_err(Arc::new);
                    // Frees what gives way, so not under the lock; and before the load is forgotten, as another one would begin.
                    if let Ok(item) = &result {
                        keep(&kept, id, item.clone());
                    }
                    pending.lock_whole().remove(&id);
                    result
                };
                let load = load.boxed().shared();
                // The future was not polled yet, so a weak handle exists.
                loads.extend(load.downgrade().map(|weak| (id, weak)));
                load
            })
        };
        load.await
    }

    fn get(&self, id: Id) -> Option<Item> {
        self.kept.get(&id).map(|kept| kept.value().clone())
    }
}

/// Keeps `item` in `kept`, in place of others that were not used for longer. An item that fills all of the memory is not kept.
fn keep(kept: &Cache<Id, Item>, id: Id, item: Item) {
    if item.bytes() <= kept.capacity() {
        kept.insert(id, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::{EncodedPack, PackBuilder, PackOptions};
    use crate::units::{SectorRange, Seq};

    const OPTIONS: PackOptions = PackOptions {
        volume: VolumeId([1; 16]),
        pack: PackId([2; 16]),
        level: 0,
        first_seq: Seq(9),
        last_seq: Seq(9),
    };

    #[test]
    fn an_index_that_was_just_used_outlives_one_that_was_not() {
        let mut builder = PackBuilder::new(OPTIONS).unwrap();
        builder.push_zero(SectorRange::new(0, 8).unwrap()).unwrap();
        let EncodedPack { parts, pack } = builder.finish().unwrap();
        let bytes = parts.concat();
        let at = pack.index();
        let bytes = &bytes[usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap()];
        let index = || PackIndex::decode(bytes, &pack).unwrap();
        let id = |number| PackRef { pack: PackId([number; 16]), ..pack };
        let metadata = Metadata::new(10 * index().memory_bytes());
        for number in 0..10 {
            metadata.put_index(&id(number), index());
        }
        assert!(metadata.index_here(&id(0)).is_some());
        metadata.put_index(&id(10), index());
        assert!(metadata.index_here(&id(0)).is_some() && metadata.index_here(&id(1)).is_none());
    }
}
