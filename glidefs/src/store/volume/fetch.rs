//! Fetching blocks: one request for neighbours, and one for all that wait for the same block.
//!
//! Owns what is on its way. Does not own which blocks are needed, or keep them. Invariant: a block is on its way at most once,
//! for as long as somebody waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared, try_join_all};

use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{IndexEntry, PackRef};
use crate::store::ids::PackId;

/// Longest request for blocks, bytes of the data in them.
pub(super) const RUN_BYTES_MAX: usize = 4 << 20;

type RunResult = Result<Arc<[Bytes]>, Arc<StoreError>>;
type Run = Shared<BoxFuture<'static, RunResult>>;

/// A block: its pack, and where it is there.
type BlockId = (PackId, u64);

/// Where the data of a block will be: the request, and its place in the answer.
type Wait = (Run, usize);

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
    /// The data of `entries`, which ascend in the index of `pack` and are not zeroes.
    pub async fn blocks(
        &self,
        store: &Store,
        pack: &PackRef,
        entries: &[IndexEntry],
    ) -> Result<Vec<Bytes>, Arc<StoreError>> {
        let waits = self.join_or_begin(store, pack, entries);
        let data = waits.into_iter().map(|(run, place)| async move {
            // A run has a place for each of its blocks.
            run.await.map(|blocks| blocks.get(place).cloned().unwrap_or_default())
        });
        try_join_all(data).await
    }

    fn join_or_begin(&self, store: &Store, pack: &PackRef, entries: &[IndexEntry]) -> Vec<Wait> {
        let mut waits: Vec<Option<Wait>> = Vec::with_capacity(entries.len());
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            let flight = flights.blocks.get(&(pack.pack, entry.offset_bytes));
            waits.push(flight.and_then(|flight| Some((flight.run.upgrade()?, flight.place))));
        }
        let mut from = 0;
        while from < entries.len() {
            let until = if waits[from].is_some() { from + 1 } else { run_end(entries, &waits, from) };
            if waits[from].is_none() {
                let run = self.begin(&mut flights, store, pack, &entries[from..until]);
                for (place, wait) in waits[from..until].iter_mut().enumerate() {
                    *wait = Some((run.clone(), place));
                }
            }
            from = until;
        }
        drop(flights);
        waits.into_iter().flatten().collect()
    }

    fn begin(&self, flights: &mut Flights, store: &Store, pack: &PackRef, entries: &[IndexEntry]) -> Run {
        flights.runs += 1;
        let number = flights.runs;
        let blocks: Vec<BlockId> = entries.iter().map(|entry| (pack.pack, entry.offset_bytes)).collect();
        let landing = Landing { flights: Arc::downgrade(&self.flights), blocks: blocks.clone(), number };
        let (store, pack, entries) = (store.clone(), *pack, entries.to_vec());
        let run = async move {
            let _landing = landing;
            store.blocks(&pack, &entries).await.map(Arc::from).map_err(Arc::new)
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
}

/// Where the run that begins with the entry at `from` ends: before a block that is not its neighbour, is on its way, or
/// would make it too long.
fn run_end(entries: &[IndexEntry], waits: &[Option<Wait>], from: usize) -> usize {
    let mut bytes = entries[from].plain_bytes();
    let mut until = from + 1;
    while until < entries.len()
        && waits[until].is_none()
        && entries[until].offset_bytes == entries[until - 1].block().end
    {
        bytes += entries[until].plain_bytes();
        if bytes > RUN_BYTES_MAX {
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
