//! Indexes and blocks of packs, from the nearest place: memory, the block cache, packs uploaded a moment ago, the store.
//!
//! Owns the order of these places. Does not own how long a place keeps a block, nor which blocks are needed (`resolve`).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};

use super::fetch::{Fetcher, Supply, get_length};
use super::metadata::Metadata;
use super::read_memory::ReadMemory;
use super::recent::RecentPacks;
use super::resolve::Part;
use crate::store::block_cache::BlockCache;
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{IndexEntry, PackIndex, PackRef};
use crate::store::volume::error::VolumeError;
use crate::store::volume::types::ReadExtent;
use crate::units::{SECTOR_BYTES, SectorRange};

/// Reads packs of all volumes of a process.
pub(in crate::store::volume) struct PackReader {
    pub metadata: Metadata,
    pub fetcher: Fetcher,
    pub recent: RecentPacks,
    /// `None`: fetched blocks are not kept.
    pub block_cache: Option<BlockCache>,
    pub read_memory: ReadMemory,
}

crate::units::debug_by_name!(PackReader);

impl PackReader {
    /// The index of a pack, from `store` when the index is not in memory. Indexes on their way take turns at a bounded memory.
    pub(in crate::store::volume) async fn index(
        &self,
        store: &Store,
        pack: &PackRef,
    ) -> Result<Arc<PackIndex>, Arc<StoreError>> {
        let load = || {
            let (store, pack) = (store.clone(), *pack);
            let indexes = Arc::clone(&self.read_memory.indexes);
            async move {
                let _memory = indexes.take(store.reader(pack.volume), PackIndex::load_bytes(&pack)).await;
                store.pack_index(&pack).await
            }
        };
        self.metadata.index(pack, load).await
    }

    /// Whether this host seems to have each block of `parts`.
    pub fn has(&self, packs: &[PackRef], parts: &[Part]) -> bool {
        parts.iter().filter_map(Part::block).all(|(pack, entry)| {
            // Parts name positions in `packs`.
            let pack = packs[pack].pack;
            self.recent.has(pack)
                || self.block_cache.as_ref().is_some_and(|block_cache| block_cache.has(pack, &entry))
        })
    }

    /// Data of `parts`, which were resolved in `packs`. Blocks that no nearer place has come from `store`. They
    /// are looked up in `block_cache` and kept there; without one, as where each block is needed once, they are not kept.
    pub(in crate::store::volume) async fn fetch(
        &self,
        store: &Store,
        packs: &[PackRef],
        parts: &[Part],
        block_cache: Option<&BlockCache>,
    ) -> Result<Vec<ReadExtent>, VolumeError> {
        let needed = needed(parts);
        let mut blocks = self.blocks_here(packs, &needed, block_cache).await;
        let places: Vec<usize> = (0..needed.len()).filter(|place| blocks[*place].is_none()).collect();
        let requests = places.chunk_by(|a, b| needed[*a].0 == needed[*b].0).map(|chunk| {
            let supply = Supply { store, pack: &packs[needed[chunk[0]].0], block_cache };
            let entries: Vec<IndexEntry> = chunk.iter().map(|place| needed[*place].1).collect();
            async move { self.fetcher.blocks(supply, &entries).await }
        });
        let fetched = try_join_all(requests).await?;
        for (place, block) in places.iter().zip(fetched.into_iter().flatten()) {
            blocks[*place] = Some(block);
        }
        Ok(extents(parts, &needed, &blocks))
    }

    /// The bytes of the blocks `needed`, as they are in the packs, compared with the checksum: a merge copies a whole block without
    /// compressing the data once more. Not shared with other readers of a block, who want the data.
    pub async fn stored_blocks(
        &self,
        store: &Store,
        packs: &[PackRef],
        needed: &[(usize, IndexEntry)],
    ) -> Result<Vec<Bytes>, VolumeError> {
        let needed: Vec<_> = needed.iter().map(|(pack, entry)| (*pack, entry.as_stored())).collect();
        let mut blocks = self.blocks_here(packs, &needed, None).await;
        let mut missing: Vec<usize> = (0..needed.len()).filter(|place| blocks[*place].is_none()).collect();
        // Stable: blocks of a pack stay in the order of their sectors, which is the order in the pack.
        missing.sort_by_key(|place| needed[*place].0);
        let mut gets = Vec::new();
        for of_pack in missing.chunk_by(|a, b| needed[*a].0 == needed[*b].0) {
            // Entries name positions in `packs`.
            let (pack, mut rest) = (&packs[needed[of_pack[0]].0], of_pack);
            while !rest.is_empty() {
                let entries: Vec<IndexEntry> = rest.iter().map(|place| needed[*place].1).collect();
                let (places, behind) = rest.split_at(get_length(&entries, |_| true));
                rest = behind;
                gets.push(async move {
                    let found = store.blocks(pack, &entries[..places.len()]).await?;
                    Ok::<_, StoreError>(places.iter().zip(found))
                });
            }
        }
        for (place, block) in try_join_all(gets).await.map_err(Arc::new)?.into_iter().flatten() {
            blocks[*place] = Some(block);
        }
        // No block is missing any more.
        Ok(blocks.into_iter().flatten().collect())
    }

    /// Data of `parts`, which were resolved in `packs`, if this host has all blocks.
    pub async fn fetch_here(&self, packs: &[PackRef], parts: &[Part]) -> Option<Vec<ReadExtent>> {
        let needed = needed(parts);
        let blocks = self.blocks_here(packs, &needed, self.block_cache.as_ref()).await;
        blocks.iter().all(Option::is_some).then(|| extents(parts, &needed, &blocks))
    }

    /// The blocks on this host of those that are `needed`.
    async fn blocks_here(
        &self,
        packs: &[PackRef],
        needed: &[(usize, IndexEntry)],
        block_cache: Option<&BlockCache>,
    ) -> Vec<Option<Bytes>> {
        let mut blocks: Vec<Option<Bytes>> = vec![None; needed.len()];
        if let Some(block_cache) = block_cache {
            // Parts name positions in `packs`.
            let looks = needed.iter().map(|(pack, entry)| block_cache.get(packs[*pack].pack, entry));
            blocks = join_all(looks).await;
        }
        for (block, (pack, entry)) in blocks.iter_mut().zip(needed).filter(|(block, _)| block.is_none()) {
            *block = self.recent.block(packs[*pack].pack, entry);
        }
        blocks
    }

    /// Fetches blocks of `parts` into the block cache. Returns the stored bytes fetched.
    pub async fn keep(&self, store: &Store, packs: &[PackRef], parts: &[Part]) -> Result<u64, VolumeError> {
        let (needed, block_cache) = (needed(parts), self.block_cache.as_ref());
        let requests = needed.chunk_by(|a, b| a.0 == b.0).map(|chunk| {
            // A chunk is not empty, and parts name positions in `packs`.
            let supply = Supply { store, pack: &packs[chunk[0].0], block_cache };
            let entries: Vec<IndexEntry> = chunk.iter().map(|(_, entry)| *entry).collect();
            async move { self.fetcher.keep(supply, &entries).await }
        });
        Ok(try_join_all(requests).await?.into_iter().sum())
    }
}

/// Blocks that `parts` need, each once, by pack and offset in the pack.
pub(super) fn needed(parts: &[Part]) -> Vec<(usize, IndexEntry)> {
    let mut needed: Vec<(usize, IndexEntry)> = parts.iter().filter_map(Part::block).collect();
    needed.sort_unstable_by_key(|(pack, entry)| (*pack, entry.offset_bytes));
    needed.dedup_by_key(|(pack, entry)| (*pack, entry.offset_bytes));
    needed
}

/// The content of `parts`, which need `needed` blocks; the data of these is in `blocks`.
fn extents(parts: &[Part], needed: &[(usize, IndexEntry)], blocks: &[Option<Bytes>]) -> Vec<ReadExtent> {
    let extent = |part: &Part| {
        let data = part.block().map(|(pack, entry)| {
            let key = (pack, entry.offset_bytes);
            let found = needed.binary_search_by_key(&key, |(pack, entry)| (*pack, entry.offset_bytes));
            // `needed` has the block of every part.
            let block = found.ok().and_then(|at| blocks.get(at)?.clone()).unwrap_or_default();
            slice(&block, entry.range.start(), part.range)
        });
        ReadExtent { range: part.range, data }
    };
    parts.iter().map(extent).collect()
}

/// The bytes of `range` in a block that begins at sector `start` and covers `range`.
fn slice(block: &Bytes, start: u64, range: SectorRange) -> Bytes {
    let at = |sector: u64| usize::try_from((sector - start) * SECTOR_BYTES).unwrap_or(usize::MAX);
    block.slice(at(range.start())..at(range.end()))
}
