//! What was asked of a store, counted.
//!
//! Owns the cells, and what keeps requests of each kind from being answered at present; names and help texts of metrics live in the
//! metrics table. Invariant: an update of a count is one relaxed addition, from any thread.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::observe::repeat::Repeat;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read an object, or a part of one.
    Get,
    /// Create an object.
    Put,
    /// List keys.
    List,
    /// Delete objects.
    Delete,
    /// Ask for the length of an object.
    Head,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Get, Self::Put, Self::List, Self::Delete, Self::Head];

    /// A name for labels.
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

/// A count that any thread may add to.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts of one kind of request.
#[derive(Debug, Default)]
pub struct OperationStats {
    /// Tries, each a request or, for listings and deletions, a run of them.
    pub requests: Count,
    /// Payload of those that succeeded, bytes.
    pub bytes: Count,
    /// Tries after the first of the same request.
    pub retries: Count,
    /// Requests that failed in the end. A missing object and one that exists already are answers, not failures.
    pub errors: Count,
    /// Why the last try had no answer, if it had none.
    trouble: Mutex<Option<String>>,
}

impl OperationStats {
    /// Takes note of why a try had no answer, or that it had one.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        // A value is whole between its own assignments.
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Counts of everything asked of a store. The caller owns them and reads them whenever it likes.
#[derive(Debug, Default)]
pub struct StoreStats {
    operations: [OperationStats; Operation::ALL.len()],
    /// Objects that were read and were not what they should be.
    pub damaged: Count,
    /// GETs that were late and sent a second time.
    pub hedges: Count,
    /// Those whose second request was answered first.
    pub hedges_won: Count,
    /// Requests that the store refused because of who asked.
    pub refused: Count,
    /// What lets one of many log lines about them pass.
    pub(super) refusals: Repeat,
    /// Objects that the last garbage collection could not read.
    pub gc_damaged: AtomicU64,
}

impl StoreStats {
    /// Why the store does not answer at present what a flush asks.
    pub fn trouble(&self) -> Option<String> {
        let of_a_flush = [Operation::Put, Operation::List, Operation::Get, Operation::Head];
        of_a_flush.into_iter().find_map(|operation| self.of(operation).trouble())
    }

    /// Counts of `operation`.
    pub fn of(&self, operation: Operation) -> &OperationStats {
        &self.operations[operation as usize]
    }
}
