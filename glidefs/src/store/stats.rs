//! Counters of requests to a store.
//!
//! Owns the counters. Does not own the names and help texts of metrics, which the metrics table has. Invariant: an update of a
//! counter is one relaxed addition, from any thread.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::health::Health;

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
}

/// Counters of all requests to a store. The owner of the options reads the counters at any time.
#[derive(Debug, Default)]
pub struct StoreStats {
    operations: [OperationStats; Operation::ALL.len()],
    /// What the store does.
    pub(super) health: Health,
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
    /// Objects that the last garbage collection could not read.
    pub gc_damaged: AtomicU64,
}

impl StoreStats {
    /// Counters of the requests of one kind.
    pub fn of(&self, operation: Operation) -> &OperationStats {
        &self.operations[operation as usize]
    }
}
