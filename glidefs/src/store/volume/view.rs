//! Reading what one manifest says.
//!
//! Owns which packs are asked for a range, and in which order. Does not own whether the manifest is the newest. Invariant: every
//! byte was checked against the index that led to the byte, and the index against the manifest; sectors that no pack has are
//! zero; a sector that the manifest lists as damaged is an error, whatever packs have of the sector.

pub(super) mod fetch;
pub(super) mod metadata;
pub(super) mod pack_reader;
pub(super) mod read_memory;
pub(super) mod readahead;
pub(super) mod recent;
pub(super) mod resolve;
pub(super) mod rows;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;

use self::pack_reader::{PackReader, needed};
use self::read_memory::holding;
use self::resolve::{Part, Resolution};
use self::rows::LoadedManifest;
use super::crowd::Crowd;
use super::error::VolumeError;
use super::types::ReadExtent;
#[cfg(test)]
use super::types::between;
use crate::store::client::Store;
use crate::store::format::PackRef;
use crate::store::turns::Reader;
use crate::units::SectorRange;

/// Most indexes fetched at once. The first fetch is of the newest index alone, which often covers the whole range.
const INDEXES_AT_ONCE_MAX: usize = 8;

/// A state of a volume, for reading. Cheap to clone. A view stays readable as long as garbage collection keeps the packs of its
/// manifest: while the manifest is the newest or a snapshot, and [`super::GRACE_MIN`] longer.
#[derive(Clone, Debug)]
pub struct View {
    reader: Arc<PackReader>,
    /// The store, whose GETs for readers take turns with those of other volumes.
    store: Store,
    pub(super) loaded: Arc<LoadedManifest>,
}

impl View {
    /// The state of `loaded`, read with requests of `store`.
    pub(super) fn new(reader: Arc<PackReader>, store: Store, loaded: Arc<LoadedManifest>) -> Self {
        Self { reader, store, loaded }
    }

    /// The bytes of `range`. The caller bounds the length: all of `range` is in memory at once.
    #[cfg(test)]
    pub async fn read(&self, range: SectorRange) -> Result<Bytes, VolumeError> {
        self.loaded.check(range)?;
        let (packs, parts) = self.resolve(range).await?;
        let block_cache = self.reader.block_cache.as_ref();
        Ok(join(range, &self.reader.fetch(&self.store, &packs, &parts, block_cache).await?))
    }

    /// The bytes of `range` for a READ of a device that needs only `parts` of it: damage elsewhere is no error, and the bytes elsewhere
    /// mean nothing. Waits for memory for the blocks; the result takes memory as long as the result lives.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] when a sector of `parts` is damaged.
    ///
    /// Blocks missing in the block cache cost one request for each run of blocks near each other in a pack. Indexes not in memory
    /// cost one request each.
    pub async fn read_parts(&self, range: SectorRange, parts: &[SectorRange]) -> Result<Bytes, VolumeError> {
        parts.iter().try_for_each(|part| self.loaded.check(*part))?;
        let reader = self.store.reader(self.loaded.manifest.volume);
        // In boxes, so that a READ that waits for a place takes little memory.
        if let Some(bytes) = Box::pin(self.read_here(reader, range)).await {
            return Ok(bytes);
        }
        let _place = self.reader.read_memory.places.take(reader, 1).await;
        Box::pin(async {
            let (packs, parts) = self.resolve(range).await?;
            let memory = self.reader.read_memory.remote.take(reader, memory_bytes(range, &parts)).await;
            let block_cache = self.reader.block_cache.as_ref();
            let extents = self.reader.fetch(&self.store, &packs, &parts, block_cache).await?;
            Ok(holding(join(range, &extents), memory))
        })
        .await
    }

    /// The bytes of `range`, if this host has all indexes and blocks; makes no request.
    async fn read_here(&self, reader: Reader, range: SectorRange) -> Option<Bytes> {
        let (mut packs, mut parts) = self.open_here(range)?;
        let bytes = memory_bytes(range, &parts);
        let memory = match self.reader.read_memory.local.try_take(reader.volume, bytes) {
            Some(memory) => memory,
            None => {
                // Looked for again after the wait: the block cache may give the blocks up meanwhile.
                drop((packs, parts));
                let memory = self.reader.read_memory.local.take(reader, bytes).await;
                (packs, parts) = self.open_here(range)?;
                memory
            }
        };
        let extents = self.reader.fetch_here(&packs, &parts).await?;
        Some(holding(join(range, &extents), memory))
    }

    /// The packs and blocks that a READ of `range` needs, if this host seems to have all of these. Makes no request.
    fn open_here(&self, range: SectorRange) -> Option<(Vec<PackRef>, Vec<Part>)> {
        let mut resolution = Resolution::new(range);
        for pack in self.loaded.reaching(range) {
            let index = self.reader.metadata.index_here(pack)?;
            resolution.look_up(pack, &index);
            if resolution.is_complete() {
                break;
            }
        }
        let (packs, parts) = resolution.finish();
        self.reader.has(&packs, &parts).then_some((packs, parts))
    }

    /// Fetches blocks of `range` into the block cache. Returns the stored bytes fetched.
    pub(super) async fn read_ahead(&self, range: SectorRange) -> Result<u64, VolumeError> {
        let (packs, parts) = self.resolve(range).await?;
        self.reader.keep(&self.store, &packs, &parts).await
    }

    /// Parts of `range` that packs have data of: ascending, without overlaps or neighbours. Reads indexes only.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] when a sector of `range` is damaged.
    #[cfg(test)]
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.loaded.check(range)?;
        let (_, parts) = self.resolve(range).await?;
        let mut mapped: Vec<SectorRange> = Vec::new();
        for part in parts.into_iter().filter(|part| part.block().is_some()) {
            match mapped.last_mut() {
                Some(last) if last.end() == part.range.start() => {
                    *last = between(last.start(), part.range.end());
                }
                _ => mapped.push(part.range),
            }
        }
        Ok(mapped)
    }

    /// How many hold the index of the first pack of `range`, besides the cache and the asker.
    #[cfg(test)]
    pub fn index_holders(&self, range: SectorRange) -> usize {
        let pack = self.loaded.reaching(range).next().unwrap();
        Arc::strong_count(&self.reader.metadata.index_here(pack).unwrap()) - 2
    }

    /// How many packs the manifest lists, and how many of these a read of one sector may have to ask.
    pub fn crowd(&self) -> Crowd {
        self.loaded.rows.crowd()
    }

    /// The packs and blocks that a READ of `range` needs. Looks at indexes of packs that may have something of it, newest first, and ends
    /// early when these cover all of it: older packs cannot matter. Of each index only the entries of `range` are held: a manifest may list
    /// very many packs, each with a long index.
    async fn resolve(&self, range: SectorRange) -> Result<(Vec<PackRef>, Vec<Part>), VolumeError> {
        let mut resolution = Resolution::new(range);
        let (mut seen, mut at_once) = (0, 1);
        while !resolution.is_complete() {
            // Searched again for each chunk: a list of all of these packs may be long as well.
            let chunk: Vec<PackRef> = self.loaded.reaching(range).skip(seen).take(at_once).copied().collect();
            let indexes = try_join_all(chunk.iter().map(|pack| async move {
                let index = self.reader.index(&self.store, pack).await?;
                Ok::<_, VolumeError>(index.part(range, usize::MAX).0)
            }));
            for (pack, index) in chunk.iter().zip(indexes.await?) {
                resolution.look_up(pack, &index);
            }
            if chunk.len() < at_once {
                break;
            }
            seen += at_once;
            at_once = INDEXES_AT_ONCE_MAX.min(at_once * 2);
        }
        Ok(resolution.finish())
    }
}

/// Memory for a READ of `range` in `parts`, bytes: the blocks, and the bytes of the range.
fn memory_bytes(range: SectorRange, parts: &[Part]) -> u64 {
    let blocks_bytes: u64 = needed(parts).iter().map(|(_, entry)| entry.plain_bytes() as u64).sum();
    blocks_bytes.saturating_add(range.bytes().unwrap_or(u64::MAX))
}

/// The bytes of `range`, which `extents` cover.
fn join(range: SectorRange, extents: &[ReadExtent]) -> Bytes {
    // All of `range` fits into memory, as the caller promised.
    let bytes = |range: SectorRange| {
        range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
    };
    let mut joined = BytesMut::with_capacity(bytes(range));
    for extent in extents {
        match &extent.data {
            Some(data) => joined.extend_from_slice(data),
            None => joined.resize(joined.len() + bytes(extent.range), 0),
        }
    }
    joined.freeze()
}
