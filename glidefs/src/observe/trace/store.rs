//! Traces of requests to the store, and the readers who want such traces.
//!
//! Does not own requests (`store`). Invariant: without a reader a request costs one relaxed load, and makes no trace.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::session::{Kinds, Session};
use crate::locks::MutexExt;

/// Most traces of requests to the store that wait for a reader.
pub const STORE_TRACES_MAX: usize = 512;

/// A request to the store that has ended, with all tries.
#[derive(Clone, Debug)]
pub struct StoreTrace {
    /// `get`, `put`, `list`, `delete` or `head`.
    pub operation: &'static str,
    /// The key of the object, or the folder.
    pub key: String,
    /// The volume in the key, or the volume whose reader asked.
    pub volume: Option<String>,
    /// Whether a READ waits for the request, or reads ahead.
    pub is_read: bool,
    /// Bytes of the object that were sent or received; for a PUT that failed, those meant.
    pub bytes: u64,
    /// When the first try of the request began.
    pub began: Instant,
    /// From the begin to the end of the last try, with pauses.
    pub took: Duration,
    /// The part of `took` in which the request waited for its turn among READs, and in pauses between tries.
    pub waited: Duration,
    /// Number of tries, the first one included.
    pub tries: u32,
    /// `ok`, or a word for the failure.
    pub result: &'static str,
}

/// The readers who want traces of requests to the store.
#[derive(Debug, Default)]
pub struct StoreWatchers {
    count: AtomicUsize,
    sessions: Mutex<Vec<Arc<Session>>>,
}

impl StoreWatchers {
    /// Whether any reader wants traces.
    #[inline]
    pub fn are_wanted(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Has `session` get traces from now on, if the session wants such.
    pub fn begin(&self, session: &Arc<Session>) {
        if session.ask().kinds == Kinds::Requests {
            return;
        }
        let mut sessions = self.sessions.lock_whole();
        sessions.push(Arc::clone(session));
        self.count.store(sessions.len(), Relaxed);
    }

    /// Ends the traces for `session`.
    pub fn end(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock_whole();
        sessions.retain(|other| !Arc::ptr_eq(other, session));
        self.count.store(sessions.len(), Relaxed);
    }

    /// Gives `trace` to all readers.
    pub fn push(&self, trace: &StoreTrace) {
        // The lock makes this thread the only one that pushes.
        for session in &*self.sessions.lock_whole() {
            session.push_store(trace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Ask;
    use super::*;

    fn session(kinds: Kinds) -> Arc<Session> {
        let ask = Ask { kinds, export: None, slower_than: Duration::ZERO, one_in: 1 };
        Arc::new(Session::new(ask, 1))
    }

    fn trace(key: &str) -> StoreTrace {
        StoreTrace {
            operation: "put",
            key: key.into(),
            volume: None,
            is_read: false,
            bytes: 1,
            began: Instant::now(),
            took: Duration::ZERO,
            waited: Duration::ZERO,
            tries: 1,
            result: "ok",
        }
    }

    #[test]
    fn traces_are_wanted_from_the_first_reader_to_the_last_and_dropped_beyond_the_room() {
        let traces = StoreWatchers::default();
        let (all, requests) = (session(Kinds::All), session(Kinds::Requests));
        traces.begin(&requests);
        assert!(!traces.are_wanted());
        traces.begin(&all);
        assert!(traces.are_wanted());
        for number in 0..STORE_TRACES_MAX + 3 {
            traces.push(&trace(&number.to_string()));
        }
        assert_eq!(all.store_dropped(), 3);
        assert_eq!(all.pop_store().unwrap().key, "0");
        assert!(requests.pop_store().is_none());
        traces.end(&all);
        assert!(!traces.are_wanted());
    }
}
