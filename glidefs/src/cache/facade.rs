//! The cache as the rest of the daemon sees the cache: volumes, shards, figures.
//!
//! Does not own how the cache is opened (`recovery`) or kept in order (`keeper`). Invariant: until an export is removed, the same
//! volume is handed out for the export.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cache::handoff::Hook;
use crate::cache::keeper::Keeper;
use crate::cache::log::disk::{Clock, Disk};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{VERSION_REPEATING, frame_crc};
use crate::cache::log::life::State;
use crate::cache::log::superblock::CACHE_VERSION;
use crate::cache::options::{Known, Options, Recovered};
use crate::cache::recovery;
use crate::cache::shard::{Shard, Token};
use crate::cache::shared::Shared;
use crate::cache::stats::{CacheStats, ShardStats};
use crate::cache::volume::Volume;
use crate::cache::volume::durability::Triggers;
use crate::cache::volume::layers::SeqMarks;
use crate::cache::volume::queue::WritebackQueue;
use crate::cache::writeback::cut::Cut;
use crate::cache::writeback::engine::Writeback;
use crate::store::WriterId;
use crate::store::volume::CutSource;
use crate::units::{ExportId, Seq};

/// The cache. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) shared: Arc<Shared>,
}

impl Cache {
    /// Opens the cache on `disk`, making a new one on an empty disk. Data of `exports` is brought back, as far as the exports'
    /// marks allow; data of any other export is forgotten. Takes writes once the [`Keeper`] runs.
    ///
    /// # Errors
    /// See [`CacheError`]; nothing stable is changed when this fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: Options,
        exports: Known,
    ) -> Result<(Self, Recovered), CacheError> {
        let (shared, recovered) = recovery::open(disk, clock, &options, exports)?;
        Ok((Self { shared: Arc::new(shared) }, recovered))
    }

    /// The writeback queue for volumes of this cache, with `runtime` for fetches.
    pub fn writeback_queue(&self, runtime: tokio::runtime::Handle) -> Arc<WritebackQueue> {
        let table = &self.shared.table;
        let size_bytes = u64::from(table.limit()).saturating_mul(table.segment_bytes());
        WritebackQueue::new(runtime, Arc::clone(&self.shared.clock), size_bytes)
    }

    /// The engine that carries data to the store, for the volumes linked to the store. Run it on the control threads. Call once.
    pub fn writeback(&self, queue: Arc<WritebackQueue>, triggers: Triggers) -> Writeback {
        self.shared.attach_store();
        Writeback::new(Arc::clone(&self.shared), queue, triggers)
    }

    /// The data of export `id`, without a history in the store: the recovered volume, or an empty one.
    pub fn volume(&self, id: ExportId) -> Arc<Volume> {
        self.shared.volume(id, || Volume::new(id))
    }

    /// The data of `volume` not in the store, as a cut for another volume of the store, when `volume` was lost to another writer.
    /// Data unreadable or in doubt is damaged in the cut.
    pub fn kept(&self, volume: &Arc<Volume>) -> Arc<dyn CutSource> {
        Arc::new(Cut::all(Arc::clone(&self.shared), Arc::clone(volume)))
    }

    /// The data of export `id`, whose history in the store goes up to `stored`: the recovered volume, or an empty one. Sequence
    /// numbers of an empty one go on after `stored`, so none is given out twice.
    pub fn begin(&self, id: ExportId, stored: Seq) -> Arc<Volume> {
        self.shared.volume(id, || Volume::at(id, SeqMarks { stored, evicted: Seq(0) }))
    }

    /// Whether the cache has a volume of export `id`: recovery found data or a doubt, or somebody has asked for the volume.
    pub fn has_volume(&self, id: ExportId) -> bool {
        self.shared.find_volume(id).is_some()
    }

    /// Forgets all data of export `id`, for ever: the id must not be used again, not even after a restart.
    pub fn remove(&self, id: ExportId) {
        let removed = self.shared.volumes().remove(&id);
        if let Some(volume) = removed {
            self.shared.bury(volume.remove(&self.shared.table));
            self.shared.signal.raise();
        }
    }

    /// A number to tell this cache directory from others, for marks visible to others. The id of the cache is secret, and cannot
    /// be found from this number.
    pub fn tag(&self) -> u32 {
        tag_of(self.shared.table.cache_id())
    }

    /// The [`tag`](Self::tag) of the cache on `disk`, which another process may have open; `None` without a readable superblock.
    pub fn tag_on(disk: &dyn Disk) -> Option<u32> {
        Some(tag_of(recovery::read_superblock(disk).ok()??.cache_id))
    }

    /// The newest version of a whole cache, which this program reads and may write.
    pub const VERSION: u16 = CACHE_VERSION;
    /// The same of records in the log.
    pub const RECORD_VERSION: u16 = VERSION_REPEATING;

    /// Whether this program can read the cache on `disk`, which another process may have open, as far as the superblock says. A
    /// directory without a superblock is a new cache.
    ///
    /// # Errors
    /// [`CacheError`] when the superblock is of a newer format, damaged or unreadable.
    pub fn check_format(disk: &dyn Disk) -> Result<(), CacheError> {
        recovery::read_superblock(disk).map(drop)
    }

    #[cfg(test)]
    pub(super) fn sharers(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// The writer of volumes in the store for which this cache directory stands.
    pub fn writer(&self) -> WriterId {
        WriterId::of(&self.shared.table.cache_id())
    }

    /// The part of the log for worker `index` (below [`Options::shards`]) to append to. Call once for each index.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn shard<T: Token>(&self, index: usize, stats: Arc<ShardStats>) -> Shard<T> {
        assert!(index < self.shared.ports.len(), "shard {index} of {}", self.shared.ports.len());
        Shard::new(Arc::clone(&self.shared), index, stats)
    }

    /// The lock that keeps other processes out. Register the lock with every ring that carries out
    /// [`Want::Append`](super::Want::Append), so no other process opens the cache while such a write is under way.
    pub fn lock_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.lock.fd()
    }

    /// The background work; run it on a thread of its own. Call once.
    pub fn keeper(&self) -> Keeper {
        Keeper::new(Arc::clone(&self.shared))
    }

    /// Sets `hook`, which is called, from any thread, when shard `shard` should take a turn and ask again for everything that had
    /// to wait. The hook must not block or call the cache; all the hook should do is wake the worker.
    pub fn on_progress(&self, shard: usize, hook: Hook) {
        if let Some(port) = self.shared.ports.get(shard) {
            port.set_hook(hook);
        }
    }

    /// Fails while another process has the cache on `disk` open.
    ///
    /// # Errors
    /// [`CacheError::InUse`], or why the cache cannot be locked.
    pub fn check_free(disk: &dyn Disk) -> Result<(), CacheError> {
        recovery::take_lock(disk).map(drop)
    }

    /// Figures at this moment. Takes time in proportion to the number of exports and segments.
    pub fn stats(&self) -> CacheStats {
        let Shared { table, figures, .. } = &*self.shared;
        let mut stats = CacheStats {
            segments: u64::from(table.limit()),
            corrupt_frames: figures.corrupt_frames.load(Ordering::Relaxed),
            lost_frames: figures.lost_frames.load(Ordering::Relaxed),
            bad_footers: figures.bad_footers.load(Ordering::Relaxed),
            checkpoints_written: figures.checkpoints_written.load(Ordering::Relaxed),
            checkpoints_refused: self.shared.recovered.checkpoints_refused,
            segments_cleaned: figures.segments_cleaned.load(Ordering::Relaxed),
            cleaned_bytes: figures.cleaned_bytes.load(Ordering::Relaxed),
            evicted_bytes: figures.evicted_bytes.load(Ordering::Relaxed),
            index_bytes_max: self.shared.budget.index.bytes_max(),
            log_bytes: self.shared.budget.log.bytes(),
            log_bytes_max: self.shared.has_store().then(|| self.shared.budget.log.bytes_max()),
            checksum_bytes: self.shared.sums.page_bytes(),
            checksums_restored: self.shared.sums.restores.load(Ordering::Relaxed),
            table_bytes: self.shared.heat.bytes() as u64,
            ..CacheStats::default()
        };
        for (_, info) in table.iter() {
            stats.checksum_bytes += info.crcs().as_ref().map_or(0, |crcs| crcs.bytes());
            stats.table_bytes += size_of_val(info) as u64;
            match info.state() {
                State::Quarantined => stats.segments_quarantined += 1,
                _ if info.is_poisoned() => stats.segments_poisoned += 1,
                State::Free => stats.segments_free += 1,
                State::Open => stats.segments_open += 1,
                State::Closed | State::Sealed => stats.segments_sealed += 1,
            }
        }
        for volume in self.shared.all_volumes() {
            let figures = volume.figures();
            stats.extents += figures.extents;
            stats.index_bytes += figures.index_bytes;
            stats.index_saved_bytes += figures.index_saved_bytes;
            stats.dirty_bytes += figures.dirty_bytes;
            stats.clean_bytes += figures.clean_bytes;
            stats.doubted_exports += u64::from(figures.doubted);
        }
        stats.limit_bytes = stats.segments * table.segment_bytes();
        stats.used_bytes = (stats.segments - stats.segments_free) * table.segment_bytes();
        stats
    }
}

/// A tag made from the id of a cache, one way only.
fn tag_of(cache_id: [u8; 16]) -> u32 {
    let mut marked = [0; 24];
    marked[..8].copy_from_slice(b"tag\0\0\0\0\0");
    marked[8..].copy_from_slice(&cache_id);
    frame_crc(&marked)
}
