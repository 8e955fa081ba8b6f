//! A request in a worker's hands, and the queue it came from.
//!
//! Owns what must travel with a request until it is committed: where it came from, when, and its buffer.
//! Invariant: an [`InFlight`] lives exactly as long as its tag holds a request, so its stable buffer is valid.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::QueueDriver;
use crate::buffer::Slot;
use crate::cache::Token;
use crate::export::{Export, Operation, Request};
use crate::observe::io::QueueStats;

/// A queue this worker serves.
pub struct HostedQueue {
    /// The kernel's side of it.
    pub driver: Box<dyn QueueDriver + Send>,
    /// The export behind it: the route, resolved once.
    pub export: Arc<Export>,
    /// Its counters.
    pub stats: Arc<QueueStats>,
    /// Tags the kernel has taken back.
    pub tags_gone: u16,
    /// Told when all of them are.
    pub gone: Option<oneshot::Sender<()>>,
}

/// A request without a buffer yet.
#[derive(Clone, Copy, Debug)]
pub struct Fetched {
    /// The queue's place in the worker's table.
    pub slot: u32,
    /// The tag that holds it.
    pub tag: u16,
    /// What it asks for.
    pub request: Request,
    /// When it was fetched.
    pub started: Instant,
}

impl Fetched {
    /// Bytes of data it moves; at most the largest request, which `Export::check` saw to.
    pub fn data_bytes(&self) -> usize {
        match self.request.operation {
            Operation::Read | Operation::Write => {
                self.request.range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
            }
            Operation::Flush | Operation::Discard | Operation::WriteZeroes => 0,
        }
    }
}

/// Where a request's bytes are.
pub enum Buffer {
    /// It has none.
    None,
    /// In a slot of the worker's pool.
    Slot(Slot),
    /// In the tag's own buffer (bounce mode).
    Stable(NonNull<[u8]>),
}

/// A request that the cache is working on.
pub struct InFlight {
    /// What was fetched.
    pub fetched: Fetched,
    /// Its bytes.
    pub buffer: Buffer,
}

impl Buffer {
    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Slot(slot) => slot,
            // SAFETY: the driver keeps the tag's buffer until it is dropped, which is after every tag is gone, and a tag
            // that holds a request is not gone. The kernel touches the buffer only between commit and fetch.
            Self::Stable(bytes) => unsafe { bytes.as_mut() },
        }
    }
}

impl Token for InFlight {
    type Part = Slot;

    fn buffer(&mut self) -> &mut [u8] {
        self.buffer.bytes()
    }

    fn lend(&mut self, bytes: usize) -> Option<Slot> {
        match std::mem::replace(&mut self.buffer, Buffer::None) {
            Buffer::Slot(mut slot) => {
                slot.shorten(bytes);
                Some(slot)
            }
            // A tag's own buffer is not the ring's to keep.
            other => {
                self.buffer = other;
                None
            }
        }
    }
}

/// Counts a request that was carried out.
pub(super) fn count(
    stats: &QueueStats,
    operation: Operation,
    bytes: u64,
    range_bytes: Option<u64>,
    nanos: u64,
) {
    match operation {
        Operation::Read => {
            stats.read_size.record(bytes);
            stats.read_latency.record(nanos);
        }
        Operation::Write => {
            stats.write_size.record(bytes);
            stats.write_latency.record(nanos);
        }
        Operation::Flush => {
            stats.flushes.add(1);
            stats.flush_latency.record(nanos);
        }
        Operation::Discard | Operation::WriteZeroes => {
            stats.zeroes.add(1);
            stats.zero_bytes.add(range_bytes.unwrap_or(0));
        }
    }
}
