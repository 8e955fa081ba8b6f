//! Fetching blocks: one GET for blocks near each other, and one GET for all readers of the same block.
//!
//! Owns the GETs under way. Does not own which blocks are needed, nor where blocks are kept. Invariant: a block is in one GET of
//! these at a time at most, for as long as somebody waits for the block; and the block cache has the block before the GET counts as
//! ended. A merge that copies whole blocks has GETs of its own (`pack_reader`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared, try_join_all};

use crate::locks::MutexExt;
use crate::store::block_cache::{BlockCache, BlockId};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{IndexEntry, PackRef};

/// Longest GET for blocks, bytes: data of the blocks, and the gaps between them.
pub(in crate::store::volume) const GET_BYTES_MAX: usize = 4 << 20;
/// Longest gap between two blocks of a GET, bytes: reading the gap takes a store less time than another GET.
const GAP_BYTES_MAX: u64 = 128 << 10;
/// Most bytes of gaps in a GET, in lengths of the stored blocks.
const GAP_RATIO_MAX: u64 = 3;

type GetResult = Result<Arc<[Bytes]>, Arc<StoreError>>;
type SharedGet = Shared<BoxFuture<'static, GetResult>>;

/// The place where the data of a block is or will be.
#[derive(Clone)]
enum Wait {
    /// The block cache got the block a moment ago.
    Here(Bytes),
    /// The answer to this GET has the block, at this position.
    Coming(SharedGet, usize),
}

/// The pack that blocks are fetched from, and the cache that keeps blocks.
#[derive(Clone, Copy)]
pub(in crate::store::volume) struct Supply<'a> {
    pub store: &'a Store,
    pub pack: &'a PackRef,
    /// `None`: blocks are not kept.
    pub block_cache: Option<&'a BlockCache>,
}

/// GETs for blocks under way.
#[derive(Debug, Default)]
pub(in crate::store::volume) struct Fetcher {
    pending: Arc<Mutex<PendingGets>>,
}

/// Blocks on their way. A block stands here until its GET has ended and the block cache has the block. If the readers of a GET give up
/// before, its blocks stay until another GET takes their place, or they are swept.
type PendingGets = HashMap<BlockId, PendingBlock>;

#[derive(Debug)]
struct PendingBlock {
    get: WeakShared<BoxFuture<'static, GetResult>>,
    position: usize,
}

impl Fetcher {
    /// Data of `entries`, which ascend in the index of the pack and are not zeroes.
    pub async fn blocks(
        &self,
        supply: Supply<'_>,
        entries: &[IndexEntry],
    ) -> Result<Vec<Bytes>, Arc<StoreError>> {
        let (waits, _) = self.join_or_begin(supply, entries);
        if let Some(block_cache) = supply.block_cache {
            let here = waits.iter().filter(|wait| matches!(wait, Wait::Here(_))).count();
            block_cache.counters().misses.add((entries.len() - here) as u64);
        }
        let data = waits.into_iter().map(|wait| async move {
            match wait {
                Wait::Here(block) => Ok(block),
                // A GET has a position for each of its blocks.
                Wait::Coming(get, position) => {
                    get.await.map(|blocks| blocks.get(position).cloned().unwrap_or_default())
                }
            }
        });
        try_join_all(data).await
    }

    /// Fetches those of `entries` that are neither in the block cache nor under way. Returns the stored bytes fetched.
    pub async fn keep(&self, supply: Supply<'_>, entries: &[IndexEntry]) -> Result<u64, Arc<StoreError>> {
        let is_here = |entry: &IndexEntry| {
            supply.block_cache.is_some_and(|block_cache| block_cache.has(supply.pack.pack, entry))
        };
        let missing: Vec<IndexEntry> = entries.iter().filter(|entry| !is_here(entry)).copied().collect();
        let (_, begun) = self.join_or_begin(supply, &missing);
        let bytes: u64 = begun.iter().map(|(_, stored_bytes)| stored_bytes).sum();
        try_join_all(begun.into_iter().map(|(get, _)| get)).await?;
        Ok(bytes)
    }

    /// Where each of `entries` is or will be; and the GETs begun for those that were neither in memory nor under way, each with its
    /// length in stored bytes.
    fn join_or_begin(
        &self,
        supply: Supply<'_>,
        entries: &[IndexEntry],
    ) -> (Vec<Wait>, Vec<(SharedGet, u64)>) {
        let mut waits: Vec<Option<Wait>> = Vec::with_capacity(entries.len());
        let mut begun = Vec::new();
        let mut pending = self.pending.lock_whole();
        for entry in entries {
            // The GET for this block may have ended after the caller looked into the block cache.
            let here = || {
                supply
                    .block_cache
                    .and_then(|block_cache| block_cache.get_here(supply.pack.pack, entry))
                    .map(Wait::Here)
            };
            waits.push(wait(&pending, supply.pack, entry).or_else(here));
        }
        let mut first = 0;
        while first < entries.len() {
            if waits[first].is_some() {
                first += 1;
                continue;
            }
            let until = first + get_length(&entries[first..], |next| waits[first + next].is_none());
            let wanted = &entries[first..until];
            let get = self.begin(&mut pending, supply, wanted);
            for (position, wait) in waits[first..until].iter_mut().enumerate() {
                *wait = Some(Wait::Coming(get.clone(), position));
            }
            begun.push((get, wanted.iter().map(|entry| u64::from(entry.stored_bytes)).sum::<u64>()));
            first = until;
        }
        (waits.into_iter().flatten().collect(), begun)
    }

    fn begin(&self, pending: &mut PendingGets, supply: Supply<'_>, entries: &[IndexEntry]) -> SharedGet {
        if pending.len() + entries.len() > pending.capacity() {
            pending.retain(|_, block| block.get.upgrade().is_some());
        }
        let (store, block_cache) = (supply.store.clone(), supply.block_cache.cloned());
        let (pack, needed, gets) = (*supply.pack, entries.to_vec(), Arc::clone(&self.pending));
        let get = async move {
            let result = store.blocks(&pack, &needed).await.map_err(Arc::new);
            if let (Some(block_cache), Ok(blocks)) = (block_cache, &result) {
                block_cache.keep(pack.pack, &needed, blocks);
            }
            let mut pending = gets.lock_whole();
            for entry in &needed {
                // A block in a GET that a reader waits for is in no other GET.
                pending.remove(&(pack.pack, entry.offset_bytes));
            }
            result.map(Arc::from)
        };
        let get: SharedGet = get.boxed().shared();
        for (position, entry) in entries.iter().enumerate() {
            // The future was not polled yet, so a weak handle exists.
            if let Some(get) = get.downgrade() {
                pending.insert((supply.pack.pack, entry.offset_bytes), PendingBlock { get, position });
            }
        }
        get
    }
}

/// Where to wait for a block, if a GET for the block is under way.
fn wait(pending: &PendingGets, pack: &PackRef, entry: &IndexEntry) -> Option<Wait> {
    let block = pending.get(&(pack.pack, entry.offset_bytes))?;
    Some(Wait::Coming(block.get.upgrade()?, block.position))
}

/// How many of `entries`, which are not empty, go into one GET: all before the first entry that is too far behind its
/// predecessor, is not `wanted`, or would make the GET too long.
pub(super) fn get_length(entries: &[IndexEntry], wanted: impl Fn(usize) -> bool) -> usize {
    let stored = |entry: &IndexEntry| u64::from(entry.stored_bytes);
    let (mut plain_bytes, mut stored_bytes, mut gap_bytes) =
        (entries[0].plain_bytes() as u64, stored(&entries[0]), 0);
    let mut until = 1;
    while until < entries.len() && wanted(until) {
        let (previous, next) = (entries[until - 1].block(), &entries[until]);
        // Entries ascend in a valid index. An entry that does not ascend gets its own GET, and its check fails there.
        let Some(gap) = next.offset_bytes.checked_sub(previous.end) else { break };
        plain_bytes += next.plain_bytes() as u64;
        stored_bytes += stored(next);
        gap_bytes += gap.min(GET_BYTES_MAX as u64);
        if gap > GAP_BYTES_MAX
            || gap_bytes > GAP_RATIO_MAX * stored_bytes
            || plain_bytes + gap_bytes > GET_BYTES_MAX as u64
        {
            break;
        }
        until += 1;
    }
    until
}
