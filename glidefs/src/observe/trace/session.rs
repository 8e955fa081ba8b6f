//! One reader of traces: what the reader wants, and the lines on which traces come.
//!
//! Owns filter, counts, and one request in how many is traced. Does not own who makes the traces. Invariants: each worker has a line and
//! counts of its own; the reader alone changes one in how many, and each worker learns of the change with its next choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::request::RequestTrace;
use super::ring::Ring;
use super::store::StoreTrace;
use crate::observe::counter::Counter;

/// Most traces that wait for a reader, of all workers together, where there are not very many workers.
const RING_TRACES: usize = 2048;
/// Fewest traces that may wait of one worker.
const RING_TRACES_MIN: usize = 64;

/// Which traces a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Block requests of devices alone.
    Requests,
    /// Requests to the store alone.
    Store,
    /// Block requests, and requests to the store.
    All,
}

/// What a reader asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The kinds of requests that the reader wants.
    pub kinds: Kinds,
    /// The name of the only export, if not all.
    pub export: Option<String>,
    /// Only requests that took at least so long.
    pub slower_than: Duration,
    /// One request in so many is traced, on average.
    pub one_in: u32,
}

/// A worker's side of a session.
#[derive(Debug)]
pub struct WorkerSide {
    /// Finished traces that wait for the reader.
    pub ring: Ring<RequestTrace>,
    /// Requests that passed the filter.
    pub requests: Counter,
    /// Requests chosen among these, and given a row of the worker's table.
    pub sampled: Counter,
    /// Requests chosen and not traced, as no row was left.
    pub not_traced: Counter,
    /// Traces dropped because the reader was behind.
    pub dropped: Counter,
}

/// The state that a reader and those who make traces share.
#[derive(Debug)]
pub struct Session {
    ask: Ask,
    one_in: AtomicU32,
    workers: Box<[WorkerSide]>,
    store: Option<Ring<StoreTrace>>,
    store_dropped: AtomicU64,
}

impl Session {
    /// A session for `workers` workers.
    pub fn new(ask: Ask, workers: usize) -> Self {
        let places = (RING_TRACES / workers.max(1)).max(RING_TRACES_MIN);
        let has_requests = ask.kinds != Kinds::Store;
        let side = |_| WorkerSide {
            ring: Ring::new(if has_requests { places } else { 1 }),
            requests: Counter::default(),
            sampled: Counter::default(),
            not_traced: Counter::default(),
            dropped: Counter::default(),
        };
        let store = (ask.kinds != Kinds::Requests).then(|| Ring::new(super::store::STORE_TRACES_MAX));
        Self {
            one_in: AtomicU32::new(ask.one_in.max(1)),
            ask,
            workers: (0..workers).map(side).collect(),
            store,
            store_dropped: AtomicU64::new(0),
        }
    }

    /// What the reader asked for.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Whether a request of the export `name` may be traced.
    pub fn wants_requests_of(&self, name: &str) -> bool {
        self.ask.kinds != Kinds::Store && self.ask.export.as_deref().is_none_or(|export| export == name)
    }

    /// One request in so many is traced.
    pub fn one_in(&self) -> u32 {
        self.one_in.load(Relaxed)
    }

    /// Changes how many requests are chosen.
    pub fn set_one_in(&self, one_in: u32) {
        self.one_in.store(one_in.max(1), Relaxed);
    }

    /// The side of worker `index`.
    pub fn worker(&self, index: usize) -> Option<&WorkerSide> {
        self.workers.get(index)
    }

    /// The sides of all workers, by number.
    pub fn workers(&self) -> &[WorkerSide] {
        &self.workers
    }

    /// Takes the trace of a request to the store, if the reader wants such. One thread at a time calls this.
    pub(super) fn push_store(&self, trace: &StoreTrace) {
        if let Some(ring) = &self.store
            && !ring.push(trace.clone())
        {
            self.store_dropped.fetch_add(1, Relaxed);
        }
    }

    /// The oldest trace of a request to the store.
    pub fn pop_store(&self) -> Option<StoreTrace> {
        self.store.as_ref()?.pop()
    }

    /// Number of dropped traces of requests to the store.
    pub fn store_dropped(&self) -> u64 {
        self.store_dropped.load(Relaxed)
    }

    /// The sum of one count over all workers.
    pub fn sum(&self, count: impl Fn(&WorkerSide) -> &Counter) -> u64 {
        self.workers.iter().map(|side| count(side).get()).fold(0, u64::wrapping_add)
    }
}

/// Those who make traces: the workers and the store.
pub trait Source: Send + Sync {
    /// Number of workers that serve the host's devices.
    fn workers(&self) -> usize;

    /// Begins with traces for `session`. The session's traces may come a moment later.
    fn begin(&self, session: &Arc<Session>);

    /// Ends the traces for `session`.
    fn end(&self, session: &Arc<Session>);

    /// Number of block requests of all exports since the start.
    fn requests(&self) -> u64;

    /// The volumes of the exports that are in use, as they are written in keys, with the names of the exports. May take milliseconds.
    fn volumes(&self) -> Vec<(String, String)>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(kinds: Kinds, export: Option<&str>) -> Ask {
        Ask { kinds, export: export.map(Into::into), slower_than: Duration::ZERO, one_in: 0 }
    }

    #[test]
    fn a_session_wants_the_requests_of_its_export_and_none_where_only_the_store_is_asked_for() {
        let wants = |kinds, export| {
            let session = Session::new(ask(kinds, export), 2);
            ["vm-1", "vm-10"].map(|name| session.wants_requests_of(name))
        };
        assert_eq!(wants(Kinds::All, None), [true, true]);
        assert_eq!(wants(Kinds::Requests, Some("vm-1")), [true, false]);
        assert_eq!(wants(Kinds::Store, Some("vm-1")), [false, false]);
    }

    #[test]
    fn one_in_zero_counts_as_one_in_one() {
        let session = Session::new(ask(Kinds::All, None), 1);
        assert_eq!(session.one_in(), 1);
        session.set_one_in(0);
        assert_eq!(session.one_in(), 1);
    }
}
