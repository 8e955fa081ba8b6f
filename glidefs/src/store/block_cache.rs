//! The block cache: blocks of packs that readers fetched, in memory and on local disk, for all volumes of a daemon.
//!
//! Owns which blocks stay, and the check of each block before a reader gets the block. Does not own the fetching
//! (`volume/view/fetch`). Invariant: a block that the cache returns has the length and the checksum that the index of the pack
//! says. A reader fetches from the store whatever the cache does not return.
//!
//! ```text
//!             get: memory ─> disk ─> None                   keep: a fetched block, once
//!                   │  ^      ^ │                                  │
//!                   │  └──────┼─┘ checked                          ├─> memory (foyer, S3-FIFO) ── leaves ─┐
//!                   checked   │                                    └─> disk (regions, FIFO) <─────────────┘
//!                             └ read off the runtime's threads          unless it is there, and not old
//! ```
//!
//! The pack and the offset in the pack identify a block. Packs never change and pack ids are random, so no block here is ever
//! stale. Nobody asks for blocks of packs that garbage collection has removed from the store; such blocks leave in time.
//!
//! **Why not all of foyer.** A failed write ends the writer of foyer 0.22's disk tier with a panic, and a panic ends the daemon.
//! Only the memory of foyer is used here. On disk lies a file of our own, which needs no index on disk: any block is checked
//! against the index of the pack.
//!
//! **Memory.** Two regions of the file, and the blocks, stay within [`BlockCacheOptions::memory_bytes_max`]. The table of the
//! blocks on disk comes on top: up to 70 bytes a block of up to 64 KiB, and never more than 510 blocks in 4 MiB of disk. Blocks
//! that a reader still holds come on top as well.

mod disk;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod region;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use foyer_common::event::{Event, EventListener};
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};
use tokio::runtime::Handle;

use self::disk::Disk;
use self::region::{FILE_BYTES_MIN, Geometry};
use crate::checksum::crc32c;
use crate::locks::MutexExt;
use crate::observe::repeat::Repeat;
use crate::store::format::{Codec, IndexEntry};
use crate::store::ids::PackId;
use crate::store::stats::Count;

/// A block: the pack, and the offset of the block in the pack.
pub(super) type BlockId = (PackId, u64);

/// Memory that a block takes beside the data, bytes.
const ENTRY_BYTES: usize = 256;
/// Least memory for blocks, bytes.
const BLOCKS_BYTES_MIN: usize = 1 << 20;
/// Full memory gives up blocks that were not used again first, while such blocks fill more than this share. Blocks that were read
/// ahead need the room until they are read.
const SMALL_QUEUE_RATIO: f64 = 0.25;
/// Memory behind one lock, bytes.
const SHARD_BYTES: usize = 8 << 20;
const SHARDS_MAX: usize = 16;

/// How much the block cache may take, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCacheOptions {
    /// Where the file is. The directory is made if missing. `None`: blocks are kept in memory only.
    pub directory: Option<PathBuf>,
    /// Memory for blocks and for buffers of the file, bytes.
    pub memory_bytes_max: usize,
    /// Longest the file may be, bytes. Regions that still fit keep their blocks after a change, unless the length of a
    /// region changes: then the file starts empty.
    pub disk_bytes_max: u64,
}

/// Why there is no block cache.
#[derive(Debug, thiserror::Error)]
pub enum BlockCacheError {
    /// Buffers and a few blocks need more.
    #[error("{found} bytes of memory are too few for the block cache: give it {needed} or more")]
    TooLittleMemory {
        /// Memory that was given, bytes.
        found: usize,
        /// Least memory that would do, bytes.
        needed: usize,
    },
    /// A few regions need more.
    #[error(
        "{found} bytes of disk are too few for the block cache: give it {needed} or more, or no directory"
    )]
    TooLittleDisk {
        /// Disk that was given, bytes.
        found: u64,
        /// Least disk that would do, bytes.
        needed: u64,
    },
    /// The file cannot be made, read or written.
    #[error("the directory {} cannot be used for the block cache: choose one this user may write to", .directory.display())]
    Directory {
        /// The directory that cannot be used.
        directory: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// What the cache and its readers count.
#[derive(Debug, Default)]
pub struct BlockCacheCounters {
    /// Blocks that readers found in memory.
    pub memory_hits: Count,
    /// Blocks that readers found on disk.
    pub disk_hits: Count,
    /// Blocks that readers needed and the cache did not have. Some of these blocks were on their way already.
    pub misses: Count,
    /// Blocks taken in, bytes of their data.
    pub inserted_bytes: Count,
    /// Read from the store for readers and by reading ahead, bytes as stored.
    pub fetched_bytes: Count,
    /// Blocks fetched by reading ahead, bytes as stored.
    pub ahead_bytes: Count,
    /// Blocks with a wrong length or checksum, which were fetched again.
    pub bad_blocks: Count,
    /// Failed reads and writes of the disk.
    pub errors: Count,
    /// Lets one of many log lines about a failing disk pass.
    troubles: Repeat,
}

/// The cached blocks. Cheap to clone.
#[derive(Clone)]
pub struct BlockCache(Arc<Inner>);

struct Inner {
    memory: Cache<BlockId, Bytes>,
    disk: Option<Arc<Leaving>>,
    counters: Arc<BlockCacheCounters>,
}

crate::units::debug_by_name!(BlockCache);

/// Receives blocks that leave memory.
struct Leaving {
    disk: Arc<Disk>,
    /// Takes the blocks while the cache is being closed, to be written one by one. Else the disk takes them, unless it is busy.
    gathered: Mutex<Option<Vec<(u64, Bytes)>>>,
}

impl EventListener for Leaving {
    type Key = BlockId;
    type Value = Bytes;

    fn on_leave(&self, reason: Event, key: &BlockId, block: &Bytes) {
        if reason != Event::Evict {
            return;
        }
        match &mut *self.gathered.lock_whole() {
            Some(blocks) => blocks.push((digest(key), block.clone())),
            None => self.disk.put(digest(key), block),
        }
    }
}

impl BlockCache {
    /// Opens the cache with the blocks that the file holds. Needs a tokio runtime, and uses the blocking threads of the runtime
    /// from now on.
    ///
    /// A damaged file starts empty. A directory that cannot be used at all is an error.
    pub async fn open(options: BlockCacheOptions) -> Result<Self, BlockCacheError> {
        let counters = Arc::<BlockCacheCounters>::default();
        let BlockCacheOptions { directory, memory_bytes_max, disk_bytes_max } = options;
        let too_little = BlockCacheError::TooLittleDisk { found: disk_bytes_max, needed: FILE_BYTES_MIN };
        let within = || Geometry::within(disk_bytes_max).ok_or(too_little);
        let geometry = directory.as_ref().map(|_| within()).transpose()?;
        let buffers_bytes = geometry.map_or(0, |geometry| 2 * geometry.region_bytes as usize);
        let needed = buffers_bytes + BLOCKS_BYTES_MIN;
        if memory_bytes_max < needed {
            return Err(BlockCacheError::TooLittleMemory { found: memory_bytes_max, needed });
        }
        let blocks_bytes_max = memory_bytes_max - buffers_bytes;
        let mut disk = None;
        if let (Some(directory), Some(geometry)) = (directory, geometry) {
            let opened = Disk::open(&directory, geometry, Arc::clone(&counters), Handle::current()).await;
            let opened = opened.map_err(|source| BlockCacheError::Directory { directory, source })?;
            disk = Some(Arc::new(Leaving { disk: opened, gathered: Mutex::default() }));
        }
        let mut builder = CacheBuilder::new(blocks_bytes_max)
            .with_name("glidefs-clean")
            .with_shards((blocks_bytes_max / SHARD_BYTES).clamp(1, SHARDS_MAX))
            .with_weighter(|_: &BlockId, block: &Bytes| block.len() + ENTRY_BYTES)
            .with_eviction_config(S3FifoConfig {
                small_queue_capacity_ratio: SMALL_QUEUE_RATIO,
                ..S3FifoConfig::default()
            });
        if let Some(leaving) = &disk {
            builder = builder.with_event_listener(Arc::clone(leaving) as Arc<_>);
        }
        Ok(Self(Arc::new(Inner { memory: builder.build(), disk, counters })))
    }

    /// Counts since the cache was opened.
    pub fn counters(&self) -> &BlockCacheCounters {
        &self.0.counters
    }

    /// Memory in use, bytes: blocks, regions, and the tables of the blocks on disk.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory.usage() as u64 + self.disk().map_or(0, |disk| disk.memory_bytes())
    }

    /// Writes the blocks that are in memory only, so that a restarted daemon has these blocks. The caller may drop the future at
    /// any time; blocks that were not written are fetched again later.
    pub async fn close(&self) {
        let Some(leaving) = &self.0.disk else { return };
        *leaving.gathered.lock_whole() = Some(Vec::new());
        self.0.memory.evict_all();
        let blocks = leaving.gathered.lock_whole().take();
        leaving.disk.settle(&blocks.unwrap_or_default()).await;
    }

    fn disk(&self) -> Option<&Arc<Disk>> {
        self.0.disk.as_ref().map(|leaving| &leaving.disk)
    }

    /// Whether the disk is busy, so that blocks that leave memory now are lost.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        self.disk().is_some_and(|disk| disk.is_busy())
    }

    pub(super) fn blocks_bytes_max(&self) -> usize {
        self.0.memory.capacity()
    }

    /// The data of a block, if the cache has the block.
    pub(super) async fn get(&self, pack: PackId, entry: &IndexEntry) -> Option<Bytes> {
        if let Some(block) = self.get_here(pack, entry) {
            return Some(block);
        }
        let disk = self.disk()?;
        let key = (pack, entry.offset_bytes);
        let digest = digest(&key);
        let block = disk.get(digest, entry.plain_bytes()).await?;
        if !self.is_good(entry, &block) {
            disk.forget(digest);
            return None;
        }
        self.0.counters.disk_hits.add(1);
        self.0.memory.insert(key, block.clone());
        Some(block)
    }

    /// The data of a block, if the block is in memory.
    pub(super) fn get_here(&self, pack: PackId, entry: &IndexEntry) -> Option<Bytes> {
        let key = (pack, entry.offset_bytes);
        let block = self.0.memory.get(&key)?.value().clone();
        if !self.is_good(entry, &block) {
            self.0.memory.remove(&key);
            return None;
        }
        self.0.counters.memory_hits.add(1);
        Some(block)
    }

    /// Whether a block may be here.
    pub(super) fn has(&self, pack: PackId, entry: &IndexEntry) -> bool {
        let key = (pack, entry.offset_bytes);
        self.0.memory.contains(&key) || self.disk().is_some_and(|disk| disk.has(digest(&key)))
    }

    /// Takes in fetched and checked data: `blocks` are the data of `entries` of a pack.
    pub(super) fn keep(&self, pack: PackId, entries: &[IndexEntry], blocks: &[Bytes]) {
        let counters = &self.0.counters;
        counters.fetched_bytes.add(entries.iter().map(|entry| u64::from(entry.stored_bytes)).sum());
        for (entry, block) in entries.iter().zip(blocks) {
            let key = (pack, entry.offset_bytes);
            // An uncompressed block is a slice of the whole answer of the store, and would keep the answer in memory.
            let block =
                if entry.codec == Codec::Stored { Bytes::copy_from_slice(block) } else { block.clone() };
            counters.inserted_bytes.add(block.len() as u64);
            if let Some(disk) = self.disk() {
                disk.put(digest(&key), &block);
            }
            self.0.memory.insert(key, block);
        }
    }

    fn is_good(&self, entry: &IndexEntry, block: &Bytes) -> bool {
        let good = block.len() == entry.plain_bytes() && crc32c(block) == entry.plain_crc;
        if !good {
            self.0.counters.bad_blocks.add(1);
            if let Some(suppressed) = self.0.counters.troubles.pass() {
                tracing::warn!(suppressed, "blocks in the block cache are damaged, and fetched again");
            }
        }
        good
    }
}

/// A number for a block. Packs have random ids, so two blocks hardly ever have the same; blocks of a pack never do.
fn digest((pack, offset_bytes): &BlockId) -> u64 {
    let fold = |digest: u64, half: &[u8; 8]| digest.rotate_left(32) ^ u64::from_le_bytes(*half);
    let spread = offset_bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    pack.0.as_chunks().0.iter().fold(spread, fold)
}

#[cfg(test)]
mod tests;
