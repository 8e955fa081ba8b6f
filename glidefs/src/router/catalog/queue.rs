//! The queue of changes on their way to the catalog's writer.
//!
//! Owns the sending side and how the answer is waited for. Does not own the receiving side (`writer`).

use std::path::Path;
use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;

use super::change::Change;
use super::error::CatalogError;

/// A change in the queue, with the sender of its answer.
#[derive(Debug)]
pub(super) struct QueuedChange {
    pub change: Change,
    pub done: oneshot::Sender<Result<(), CatalogError>>,
}

/// A message to the writer.
#[derive(Debug)]
pub(super) enum WriterMessage {
    Change(Box<QueuedChange>),
    Close,
}

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    queue: mpsc::Sender<WriterMessage>,
    /// The file of the catalog, for errors.
    path: Arc<Path>,
}

impl Changes {
    /// A queue for the catalog at `path`, with the receiving side for the writer.
    pub fn new(path: &Path) -> (Self, mpsc::Receiver<WriterMessage>) {
        let (queue, receiver) = mpsc::channel();
        (Self { queue, path: path.into() }, receiver)
    }

    /// Queues `change`. The answer comes after the transaction with the change, or after its failure.
    fn push(&self, change: Change) -> Result<oneshot::Receiver<Result<(), CatalogError>>, CatalogError> {
        let (done, answer) = oneshot::channel();
        let queued = WriterMessage::Change(Box::new(QueuedChange { change, done }));
        self.queue.send(queued).map_err(|_| self.closed())?;
        Ok(answer)
    }

    /// Queues `change` when the future is first polled, and waits for its transaction.
    pub async fn write(&self, change: Change) -> Result<(), CatalogError> {
        self.push(change)?.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// As [`Self::write`]; blocks the thread.
    pub fn write_blocking(&self, change: Change) -> Result<(), CatalogError> {
        self.push(change)?.blocking_recv().unwrap_or_else(|_| Err(self.closed()))
    }

    /// Queues `change` without waiting. A writer that has ended drops it.
    pub fn write_later(&self, change: Change) {
        let _: Result<_, CatalogError> = self.push(change);
    }

    /// Tells the writer to end after the changes that are queued already.
    pub fn close(&self) {
        let _: Result<(), _> = self.queue.send(WriterMessage::Close);
    }

    /// The error of a change that the writer did not answer, as it has ended.
    pub fn closed(&self) -> CatalogError {
        CatalogError::Closed { path: self.path.to_path_buf() }
    }
}
