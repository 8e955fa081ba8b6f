//! Counters of the block cache and of reading ahead.
//!
//! Owns the counters. Does not own the names and help texts of metrics, which the metrics table has. Invariant: an update is one
//! relaxed addition, from any thread.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::locks::MutexExt;
use crate::store::stats::Count;

/// How seldom the same trouble is logged.
const LOG_INTERVAL_MIN: Duration = Duration::from_mins(1);

/// Present use of memory and disk by the block cache, and counts since the cache was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCacheFigures {
    /// Blocks that readers found in memory.
    pub memory_hits: u64,
    /// Blocks that readers found on disk.
    pub disk_hits: u64,
    /// Blocks that readers needed and the cache did not have. Some of these blocks were on their way already.
    pub misses: u64,
    /// Blocks read from the store for readers and taken in, bytes of their data.
    pub inserted_bytes: u64,
    /// Read from the store for readers and by reading ahead, bytes as stored.
    pub fetched_bytes: u64,
    /// Data of blocks written to disk, bytes.
    pub written_bytes: u64,
    /// Blocks that were not written because the disk was still busy with others, bytes.
    pub unwritten_bytes: u64,
    /// Blocks with a wrong length or checksum, which were fetched again.
    pub bad_blocks: u64,
    /// Failed reads and writes of the disk.
    pub errors: u64,
    /// Memory in use, bytes: blocks, regions, and the tables of the blocks on disk.
    pub memory_bytes: u64,
    /// Space of the disk in use, bytes.
    pub disk_bytes: u64,
    /// Windows that reading ahead fetched.
    pub ahead_windows: u64,
    /// Blocks fetched by reading ahead, bytes as stored.
    pub ahead_bytes: u64,
    /// Windows that were not read ahead, or only in part, because the store failed.
    pub ahead_errors: u64,
    /// Reads that would have started a window while too much was on its way.
    pub ahead_skipped: u64,
}

/// The counters that the cache and its readers add to.
#[derive(Debug, Default)]
pub(in crate::store) struct Counters {
    pub memory_hits: Count,
    pub disk_hits: Count,
    pub misses: Count,
    pub inserted_bytes: Count,
    pub fetched_bytes: Count,
    pub written_bytes: Count,
    pub unwritten_bytes: Count,
    pub bad_blocks: Count,
    pub errors: Count,
    pub ahead_windows: Count,
    pub ahead_bytes: Count,
    pub ahead_errors: Count,
    pub ahead_skipped: Count,
    logged: Mutex<Option<Instant>>,
}

impl Counters {
    /// Whether a failure may be logged now: at most one in [`LOG_INTERVAL_MIN`]. The caller logs on `true`.
    pub fn may_log(&self) -> bool {
        let mut logged = self.logged.lock_whole();
        let due = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL_MIN);
        if due {
            *logged = Some(Instant::now());
        }
        due
    }

    pub fn snapshot(&self, memory_bytes: u64, disk_bytes: u64) -> BlockCacheFigures {
        BlockCacheFigures {
            memory_hits: self.memory_hits.get(),
            disk_hits: self.disk_hits.get(),
            misses: self.misses.get(),
            inserted_bytes: self.inserted_bytes.get(),
            fetched_bytes: self.fetched_bytes.get(),
            written_bytes: self.written_bytes.get(),
            unwritten_bytes: self.unwritten_bytes.get(),
            bad_blocks: self.bad_blocks.get(),
            errors: self.errors.get(),
            memory_bytes,
            disk_bytes,
            ahead_windows: self.ahead_windows.get(),
            ahead_bytes: self.ahead_bytes.get(),
            ahead_errors: self.ahead_errors.get(),
            ahead_skipped: self.ahead_skipped.get(),
        }
    }
}
