//! Fetching blocks: one request for those that lie near each other, and one for all that wait for the same block.
//!
//! Owns what is on its way. Does not own which blocks are needed, or where they are kept. Invariant: a block is on its way at most
//! once, for as long as somebody waits for it, and the clean cache has it before it is not on its way any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared, try_join_all};

use crate::store::block_cache::{BlockCache, BlockId};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{IndexEntry, PackRef};

/// Longest request for blocks, bytes of the data in them and of what is read through between them.
pub(super) const RUN_BYTES_MAX: usize = 4 << 20;
/// What lies between two blocks is read through up to this length, bytes: a store takes longer for another request.
const GAP_BYTES_MAX: u64 = 128 << 10;
/// How much of that a request may have at most, in lengths of what is wanted.
const GAP_RATIO_MAX: u64 = 3;

type RunResult = Result<Arc<[Bytes]>, Arc<StoreError>>;
type Run = Shared<BoxFuture<'static, RunResult>>;

/// Where the data of a block is or will be.
#[derive(Clone)]
enum Wait {
    /// Someone fetched it a moment ago.
    Here(Bytes),
    /// In the answer to this request, at this place.
    Coming(Run, usize),
}

/// From where blocks of a pack are fetched, and where they are kept.
#[derive(Clone, Copy)]
pub(super) struct Supply<'a> {
    pub store: &'a Store,
    pub pack: &'a PackRef,
    /// `None`: nothing is kept.
    pub clean: Option<&'a BlockCache>,
}

/// Blocks on their way.
#[derive(Debug, Default)]
pub(super) struct Fetcher {
    flights: Arc<Mutex<Flights>>,
}

#[derive(Debug, Default)]
struct Flights {
    blocks: HashMap<BlockId, Flight>,
    runs: u64,
}

#[derive(Debug)]
struct Flight {
    run: WeakShared<BoxFuture<'static, RunResult>>,
    place: usize,
    /// Which run, to know it again.
    number: u64,
}

impl Fetcher {
    /// The data of `entries`, which ascend in the index of the pack and are not zeroes.
    pub async fn blocks(
        &self,
        supply: Supply<'_>,
        entries: &[IndexEntry],
    ) -> Result<Vec<Bytes>, Arc<StoreError>> {
        let waits = self.join_or_begin(supply, entries);
        let data = waits.into_iter().map(|wait| async move {
            match wait {
                Wait::Here(block) => Ok(block),
                // A run has a place for each of its blocks.
                Wait::Coming(run, place) => {
                    run.await.map(|blocks| blocks.get(place).cloned().unwrap_or_default())
                }
            }
        });
        try_join_all(data).await
    }

    /// Has those of `entries` kept that neither are nor are on their way. How long they are in the store, bytes.
    pub async fn keep(&self, supply: Supply<'_>, entries: &[IndexEntry]) -> Result<u64, Arc<StoreError>> {
        let (runs, bytes) = self.begin_missing(supply, entries);
        try_join_all(runs).await?;
        Ok(bytes)
    }

    fn begin_missing(&self, supply: Supply<'_>, entries: &[IndexEntry]) -> (Vec<Run>, u64) {
        // Given up only when the lock is: the last one who waits for a run locks to strike it off.
        let mut under_way = Vec::new();
        let (mut runs, mut bytes) = (Vec::new(), 0);
        let mut flights = self.lock();
        let mut missing = Vec::new();
        for entry in entries {
            match flights.wait(supply.pack, entry) {
                Some(wait) => under_way.push(wait),
                None if supply.clean.is_some_and(|clean| clean.has(supply.pack.pack, entry)) => {}
                None => missing.push(*entry),
            }
        }
        let mut rest = &missing[..];
        while !rest.is_empty() {
            let (run, behind) = rest.split_at(run_end(rest, |_| true));
            bytes += run.iter().map(|entry| u64::from(entry.stored_bytes)).sum::<u64>();
            runs.push(self.begin(&mut flights, supply, run));
            rest = behind;
        }
        drop(flights);
        (runs, bytes)
    }

    fn join_or_begin(&self, supply: Supply<'_>, entries: &[IndexEntry]) -> Vec<Wait> {
        let mut waits: Vec<Option<Wait>> = Vec::with_capacity(entries.len());
        let mut flights = self.lock();
        for entry in entries {
            // One that is not on its way any more may have come since it was looked for.
            let here =
                || supply.clean.and_then(|clean| clean.get_here(supply.pack.pack, entry)).map(Wait::Here);
            waits.push(flights.wait(supply.pack, entry).or_else(here));
        }
        if let Some(clean) = supply.clean {
            let here = waits.iter().flatten().filter(|wait| matches!(wait, Wait::Here(_))).count();
            clean.counters().misses.add((entries.len() - here) as u64);
        }
        let mut first = 0;
        while first < entries.len() {
            if waits[first].is_some() {
                first += 1;
                continue;
            }
            let until = first + run_end(&entries[first..], |next| waits[first + next].is_none());
            let run = self.begin(&mut flights, supply, &entries[first..until]);
            for (place, wait) in waits[first..until].iter_mut().enumerate() {
                *wait = Some(Wait::Coming(run.clone(), place));
            }
            first = until;
        }
        drop(flights);
        waits.into_iter().flatten().collect()
    }

    fn begin(&self, flights: &mut Flights, supply: Supply<'_>, entries: &[IndexEntry]) -> Run {
        flights.runs += 1;
        let number = flights.runs;
        let blocks: Vec<BlockId> =
            entries.iter().map(|entry| (supply.pack.pack, entry.offset_bytes)).collect();
        let landing = Landing { flights: Arc::downgrade(&self.flights), blocks: blocks.clone(), number };
        let (store, clean) = (supply.store.clone(), supply.clean.cloned());
        let (pack, entries) = (*supply.pack, entries.to_vec());
        let run = async move {
            let _landing = landing;
            let blocks = store.blocks(&pack, &entries).await.map_err(Arc::new)?;
            if let Some(clean) = clean {
                clean.keep(pack.pack, &entries, &blocks);
            }
            Ok(Arc::from(blocks))
        };
        let run: Run = run.boxed().shared();
        for (place, block) in blocks.into_iter().enumerate() {
            // It was not polled yet, so there is something to share.
            if let Some(run) = run.downgrade() {
                flights.blocks.insert(block, Flight { run, place, number });
            }
        }
        run
    }

    fn lock(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flights {
    /// Where to wait for a block, if it is on its way.
    fn wait(&self, pack: &PackRef, entry: &IndexEntry) -> Option<Wait> {
        let flight = self.blocks.get(&(pack.pack, entry.offset_bytes))?;
        Some(Wait::Coming(flight.run.upgrade()?, flight.place))
    }
}

/// How many of `entries`, of which there is at least one, are a run: all before one that is too far behind the one before it,
/// is not `wanted`, or would make it too long.
fn run_end(entries: &[IndexEntry], wanted: impl Fn(usize) -> bool) -> usize {
    let stored = |entry: &IndexEntry| u64::from(entry.stored_bytes);
    let (mut plain_bytes, mut stored_bytes, mut gap_bytes) =
        (entries[0].plain_bytes() as u64, stored(&entries[0]), 0);
    let mut until = 1;
    while until < entries.len() && wanted(until) {
        let (previous, next) = (entries[until - 1].block(), &entries[until]);
        // They ascend. What does not is read by itself, and found out there.
        let Some(gap) = next.offset_bytes.checked_sub(previous.end) else { break };
        plain_bytes += next.plain_bytes() as u64;
        stored_bytes += stored(next);
        gap_bytes += gap.min(RUN_BYTES_MAX as u64);
        if gap > GAP_BYTES_MAX
            || gap_bytes > GAP_RATIO_MAX * stored_bytes
            || plain_bytes + gap_bytes > RUN_BYTES_MAX as u64
        {
            break;
        }
        until += 1;
    }
    until
}

/// Strikes a run off when it has ended, or nobody waits for it any more.
struct Landing {
    flights: Weak<Mutex<Flights>>,
    blocks: Vec<BlockId>,
    number: u64,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let Some(flights) = self.flights.upgrade() else { return };
        let mut flights = flights.lock().unwrap_or_else(PoisonError::into_inner);
        for block in &self.blocks {
            if flights.blocks.get(block).is_some_and(|flight| flight.number == self.number) {
                flights.blocks.remove(block);
            }
        }
    }
}
