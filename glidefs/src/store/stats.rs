//! Counters of requests to a store.
//!
//! Owns the counters, and the reason why requests of each kind have no answer at present. Does not own the names and help texts
//! of metrics, which the metrics table has. Invariant: an update of a counter is one relaxed addition, from any thread.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::locks::MutexExt;
use crate::observe::repeat::Repeat;

/// The kinds of requests that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read an object, or a part of one.
    Get,
    /// Create an object if absent.
    Put,
    /// List the keys of a folder.
    List,
    /// Delete one or more objects.
    Delete,
    /// Ask for the length of an object, by reading its first byte.
    Head,
}

impl Operation {
    /// All kinds, in the order of the counters.
    pub const ALL: [Self; 5] = [Self::Get, Self::Put, Self::List, Self::Delete, Self::Head];

    /// The label of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Head => "head",
        }
    }
}

/// As a verb, for messages.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "read",
            Self::Put => "create",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Head => "look for",
        })
    }
}

/// A counter. Any thread may add.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The sum of all additions.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts of one kind of request.
#[derive(Debug, Default)]
pub struct OperationStats {
    /// Tries. A try is one request, or for listings and deletions a run of requests.
    pub requests: Count,
    /// Payload of successful requests, bytes.
    pub bytes: Count,
    /// Tries after the first of the same request.
    pub retries: Count,
    /// Requests that failed in the end. The answers "missing" and "exists already" are no failures.
    pub errors: Count,
    /// Why the last try had no answer; `None` after an answer.
    trouble: Mutex<Option<String>>,
}

impl OperationStats {
    /// Records the reason why a try had no answer, or an answer (`None`).
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        // The lock guards one value, which a panic elsewhere cannot leave half written.
        *self.trouble.lock_whole() = trouble;
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock_whole().clone()
    }
}

/// Counters of all requests to a store. The owner of the options reads the counters at any time.
#[derive(Debug, Default)]
pub struct StoreStats {
    operations: [OperationStats; Operation::ALL.len()],
    /// Why the place was not found to be the store; `None` once it was, and before the first answer.
    away: Mutex<Option<String>>,
    /// Objects that failed their check.
    pub damaged: Count,
    /// Answers that the store has taken back: "missing" of what was there, or "exists" of what was not.
    pub taken_back: Count,
    /// Late GETs that got a second request.
    pub hedges: Count,
    /// Second requests that were answered before the first.
    pub hedges_won: Count,
    /// Requests that the store refused because of credentials or permissions.
    pub refused: Count,
    /// Lets one of many log lines about refused requests pass.
    pub(super) refusals: Repeat,
    /// Objects that the last garbage collection could not read.
    pub gc_damaged: AtomicU64,
}

impl StoreStats {
    /// Why requests of writeback have no answer at present.
    pub fn trouble(&self) -> Option<String> {
        let of_writeback = [Operation::Put, Operation::List, Operation::Get, Operation::Head];
        self.away().or_else(|| of_writeback.into_iter().find_map(|operation| self.of(operation).trouble()))
    }

    /// Why the place was not found to be the store.
    pub fn away(&self) -> Option<String> {
        self.away.lock_whole().clone()
    }

    pub(super) fn set_away(&self, away: Option<String>) {
        *self.away.lock_whole() = away;
    }

    /// Counters of the requests of one kind.
    pub fn of(&self, operation: Operation) -> &OperationStats {
        &self.operations[operation as usize]
    }
}
