//! The queue of changes on their way to the catalog's writer.
//!
//! Owns the sending side and how the answer is waited for. Does not own the receiving side (`writer`).

use std::io;
use std::sync::mpsc;

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
pub(super) struct Changes(mpsc::Sender<WriterMessage>);

/// The writer has ended.
#[derive(Debug)]
pub(super) struct WriterEnded;

impl Changes {
    /// A queue, with the receiving side for the writer.
    pub fn new() -> (Self, mpsc::Receiver<WriterMessage>) {
        let (sender, receiver) = mpsc::channel();
        (Self(sender), receiver)
    }

    /// Queues `change`. The answer comes after the transaction with the change, or after its failure.
    pub fn push(&self, change: Change) -> Result<oneshot::Receiver<Result<(), CatalogError>>, WriterEnded> {
        let (done, answer) = oneshot::channel();
        let queued = WriterMessage::Change(Box::new(QueuedChange { change, done }));
        self.0.send(queued).map_err(|_| WriterEnded)?;
        Ok(answer)
    }

    /// Queues `change` when the future is first polled, and waits for its transaction.
    pub async fn write(&self, change: Change) -> Result<Result<(), CatalogError>, WriterEnded> {
        self.push(change)?.await.map_err(|_| WriterEnded)
    }

    /// As [`Self::write`]; blocks the thread.
    pub fn write_blocking(&self, change: Change) -> io::Result<()> {
        let answer = self.push(change)?.blocking_recv().map_err(|_| WriterEnded)?;
        Ok(answer?)
    }

    /// Queues `change` without waiting. A writer that has ended drops it.
    pub fn write_later(&self, change: Change) {
        let _: Result<_, WriterEnded> = self.push(change);
    }

    /// Tells the writer to end after the changes that are queued already.
    pub fn close(&self) {
        let _: Result<(), _> = self.0.send(WriterMessage::Close);
    }
}

impl From<WriterEnded> for io::Error {
    fn from(_: WriterEnded) -> Self {
        Self::other("the catalog is closed: the daemon is stopping")
    }
}
