//! The requests with an idempotency key in the catalog, for the part of the router that owns the keys.
//!
//! Owns the order of changes: changes reach the disk in the order in which they were queued, and queueing never waits. Does not own
//! which requests are kept (`router::keys`).

use std::path::PathBuf;
#[cfg(test)]
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};

use tokio::sync::oneshot;

use super::change::{Change, RequestChange};
use super::error::CatalogError;
use super::queue::{Changes, WriterEnded};
use super::request_record::{RequestKey, RequestRecord};

/// Writes requests to the catalog. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::router) struct RequestJournal {
    changes: Changes,
    path: PathBuf,
    #[cfg(test)]
    refuses: Arc<AtomicBool>,
}

/// A change that is queued.
#[derive(Debug)]
#[must_use = "the change is on disk when this was waited for"]
pub(in crate::router) struct QueuedRequest {
    answer: Result<oneshot::Receiver<Result<(), CatalogError>>, WriterEnded>,
    path: PathBuf,
    #[cfg(test)]
    refused: bool,
}

impl RequestJournal {
    pub(super) fn new(changes: Changes, path: PathBuf, #[cfg(test)] refuses: Arc<AtomicBool>) -> Self {
        Self {
            changes,
            path,
            #[cfg(test)]
            refuses,
        }
    }

    /// Queues one transaction: the records of `removed` are removed, then `put` is added or replaced.
    pub fn queue(&self, put: Option<(RequestKey, RequestRecord)>, removed: Vec<RequestKey>) -> QueuedRequest {
        let path = self.path.clone();
        #[cfg(test)]
        if self.refuses.load(Ordering::SeqCst) {
            return QueuedRequest { answer: Err(WriterEnded), path, refused: true };
        }
        let answer = self.changes.push(Change::Request(RequestChange { put, removed }));
        QueuedRequest {
            answer,
            path,
            #[cfg(test)]
            refused: false,
        }
    }
}

impl QueuedRequest {
    /// Returns when the change is on disk.
    ///
    /// # Errors
    /// The error of the disk. The change is not in the file then.
    pub async fn written(self) -> Result<(), CatalogError> {
        #[cfg(test)]
        if self.refused {
            let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(CatalogError::Write { path: self.path, source: Arc::new(redb::Error::Io(source)) });
        }
        let closed = || CatalogError::Closed { path: self.path.clone() };
        self.answer.map_err(|_| closed())?.await.unwrap_or_else(|_| Err(closed()))
    }
}
