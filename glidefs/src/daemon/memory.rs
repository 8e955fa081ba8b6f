//! The memory of the daemon by category: `/v1/memory`, and `glidefs_memory_bytes` on `/metrics`.
//!
//! Owns the categories. Does not own the figures, which the parts keep as sums, so that nothing takes a lock for longer than reading
//! a sum takes. Invariant: no byte is in two categories.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::{ApiStats, SharedTextStats, wire};
use crate::cache::{Cache, CacheStats, CellBytes, ShardStats};
use crate::observe::io::WorkerStats;
use crate::observe::memory::{Heap, Resident};
use crate::observe::metrics::{Metric, Samples};
use crate::router::Router;
use crate::store::BlockCache;
use crate::store::volume::VolumeStore;

/// The parts of the daemon that hold memory.
#[allow(missing_docs, reason = "the types of the fields say which parts")]
#[derive(Clone)]
pub struct Holders {
    pub workers: Vec<Arc<WorkerStats>>,
    pub shards: Vec<Arc<ShardStats>>,
    pub cache: Cache,
    pub router: Arc<Router>,
    pub block_cache: Option<BlockCache>,
    pub volumes: Option<VolumeStore>,
    pub api: Arc<ApiStats>,
}

/// The name of a category, and the memory in bytes.
type Category = (&'static str, u64);

impl Holders {
    /// The memory by category. The sum agrees with the resident memory but for stacks and memory reserved and not touched. `None`
    /// if the kernel does not tell.
    ///
    /// The allocator is asked, under the locks of the allocator: not for threads of workers.
    pub fn measure(&self) -> Option<wire::Memory> {
        let resident = Resident::now()?;
        let on_heap = self.on_heap(&self.cache.stats(), self.router.memory_bytes());
        let named: u64 = on_heap.iter().map(|(_, bytes)| bytes).sum();
        let (arenas, heap, cells) = (self.arena_bytes(), Heap::now(), CellBytes::now());
        let allocator = heap.map(|heap| {
            // The index is partly in cells, partly on the heap.
            let (used, free) = (heap.used + cells.used, heap.free + cells.free);
            // For the allocator, memory that went back to the kernel is still free.
            let room = resident.all.saturating_sub(arenas + resident.files + used);
            [("heap_other", used.saturating_sub(named)), ("heap_free", free.min(room))]
        });
        let categories =
            self.outside_heap(resident).into_iter().chain(on_heap).chain(allocator.into_iter().flatten());
        Some(wire::Memory {
            resident_bytes: resident.all,
            categories: categories
                .map(|(category, bytes)| wire::MemoryCategory { category: category.into(), bytes })
                .collect(),
        })
    }

    /// The samples of a scrape, of which the exports take `exports_bytes`. The allocator is not asked: free and other heap, and
    /// stacks, are the rest.
    pub(super) fn samples(&self, cache: &CacheStats, exports_bytes: u64, out: &mut Samples) {
        let Some(resident) = Resident::now() else { return };
        let mut rest = resident.all;
        for (category, bytes) in
            self.outside_heap(resident).into_iter().chain(self.on_heap(cache, exports_bytes))
        {
            out.value(Metric::Memory, &[category], bytes);
            rest = rest.saturating_sub(bytes);
        }
        out.value(Metric::Memory, &["rest"], rest);
    }

    fn arena_bytes(&self) -> u64 {
        self.workers.iter().map(|worker| worker.pool.arena_bytes.get()).sum()
    }

    /// The texts that clients are being sent.
    fn text_bytes(&self) -> u64 {
        let of = |stats: &SharedTextStats| stats.text_bytes.load(Ordering::Relaxed);
        of(&self.api.scrapes).saturating_add(of(&self.api.tops))
    }

    /// The categories that neither the allocator nor the cells of leaves count.
    fn outside_heap(&self, resident: Resident) -> [Category; 3] {
        let program = resident.files.saturating_sub(resident.locked);
        [("arenas", self.arena_bytes()), ("mapped", resident.locked), ("program", program)]
    }

    /// The categories that the allocator and the cells of leaves count as in use.
    fn on_heap(&self, cache: &CacheStats, exports_bytes: u64) -> [Category; 8] {
        [
            ("index", cache.index_bytes.saturating_sub(cache.index_saved_bytes)),
            ("segments", cache.table_bytes),
            ("checksums", cache.checksum_bytes),
            ("exports", exports_bytes),
            ("block_cache", self.block_cache.as_ref().map_or(0, BlockCache::memory_bytes)),
            ("packs", self.volumes.as_ref().map_or(0, VolumeStore::memory_bytes)),
            ("disk_reads", self.shards.iter().map(|shard| shard.read_buffer_bytes.get()).sum()),
            ("api", self.text_bytes()),
        ]
    }
}
