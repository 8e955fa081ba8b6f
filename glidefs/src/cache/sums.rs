//! What readers of checksums share: memory for pages, what shards ask of the keeper, and restored checksums.
//!
//! Does not own how checksums are found (`verify`), or the pages of a shard (`shard/sums`). Invariant: memory for pages and for restored
//! checksums is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cache::log::sums::Crcs;
use crate::cache::log::sums::pages::Pages;
use crate::cache::log::table::SegmentTable;
use crate::locks::MutexExt;

/// Divisor: the part of the memory for pages that readers off the workers have, and as much again for restored checksums.
const SHARE: u64 = 8;

/// Checksums for all readers but the shards.
#[derive(Debug)]
pub(super) struct Sums {
    bytes_max: u64,
    pub pages: Mutex<Pages>,
    /// Segment numbers and ids.
    asked: Mutex<VecDeque<(u32, u64)>>,
    /// Oldest first.
    restored: Mutex<VecDeque<Restored>>,
    /// Memory taken by the pages of all shards.
    pub shard_bytes: AtomicU64,
    /// How often the sums of a segment could not be used.
    pub restores: AtomicU64,
}

/// Checksums brought back to memory.
#[derive(Debug)]
struct Restored {
    number: u32,
    crcs: Arc<Crcs>,
    /// Some are missing: the checksums leave memory at this time.
    until: Option<Duration>,
}

impl Sums {
    /// Room for pages of `bytes_max` bytes, those of all shards included.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            pages: Mutex::new(Pages::new(bytes_max / SHARE)),
            asked: Mutex::default(),
            restored: Mutex::default(),
            shard_bytes: AtomicU64::new(0),
            restores: AtomicU64::new(0),
        }
    }

    /// Bytes of pages for each of `shards` shards.
    pub fn bytes_for_shard(&self, shards: usize) -> u64 {
        let rest = self.bytes_max - self.bytes_max / SHARE;
        rest / (shards as u64).max(1)
    }

    pub fn page_bytes(&self) -> u64 {
        self.pages.lock_whole().bytes() + self.shard_bytes.load(Ordering::Relaxed)
    }

    /// Whether a shard waits for the keeper.
    pub fn is_asked(&self) -> bool {
        !self.asked.lock_whole().is_empty()
    }

    /// Asks the keeper to bring back the checksums of a segment. The caller has pinned the segment, and asks again in each turn until
    /// the checksums are there.
    pub fn ask(&self, number: u32, segment_id: u64) {
        let mut asked = self.asked.lock_whole();
        if !asked.contains(&(number, segment_id)) {
            asked.push_back((number, segment_id));
        }
    }

    /// The segment for which a shard asked first, by number and id. The segment counts as asked for no more.
    pub fn next_asked(&self) -> Option<(u32, u64)> {
        self.asked.lock_whole().pop_front()
    }

    /// Remembers that `crcs` of segment number `number` were brought back to memory, where the checksums stay for a time, but not
    /// longer than `until`.
    pub fn restored(&self, number: u32, crcs: Arc<Crcs>, until: Option<Duration>) {
        self.restored.lock_whole().push_back(Restored { number, crcs, until });
    }

    /// Forgets restored checksums: those whose time is over, and the oldest ones while all take more than their share. The newest
    /// checksums stay: a shard may be waiting for these.
    pub fn forget(&self, table: &SegmentTable, now: Duration) {
        let mut restored = self.restored.lock_whole();
        restored.retain(|kept| {
            let stays = kept.until.is_none_or(|until| now < until);
            if !stays {
                table.get(kept.number).drop_crcs(&kept.crcs);
            }
            stays
        });
        let mut bytes: u64 = restored.iter().map(|kept| kept.crcs.bytes()).sum();
        while restored.len() > 1
            && bytes > self.bytes_max / SHARE
            && let Some(oldest) = restored.pop_front()
        {
            bytes = bytes.saturating_sub(oldest.crcs.bytes());
            table.get(oldest.number).drop_crcs(&oldest.crcs);
        }
    }
}
