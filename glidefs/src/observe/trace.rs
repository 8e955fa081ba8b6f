//! The requests that `glidefs trace` shows: a ring of those that ended last.
//!
//! Owns the ring, the parts of a request's way, and the form of both in the API. Does not own which requests are put into the ring
//! (`worker/traces`), nor which are shown (`api/system`). Invariants: the ring holds at most [`REQUESTS_MAX`] requests; a worker never
//! waits for it, since a request that finds it locked is dropped and counted; sequence numbers have no gaps, so a reader that asks for what
//! came after the last one misses nothing that is still there.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::locks::MutexExt;

/// Most requests in the ring.
pub const REQUESTS_MAX: usize = 2048;
/// Number of parts.
pub const PARTS: usize = 8;

/// A part of the way of a request. [`TraceParts`] and docs/traces.md explain each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Waits for the worker, or the worker decides where it goes on.
    Queue,
    /// Waits because of a limit of the export.
    Limit,
    /// Waits because data leaves more slowly than it comes.
    Brake,
    /// Waits for a buffer.
    Slot,
    /// The bytes go between client and worker.
    Copy,
    /// The log is written or read.
    Log,
    /// Waits until data is stable on the cache disk.
    Sync,
    /// Waits for the store.
    Store,
}

/// Requests that ended last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The requests, oldest first.
    pub requests: Vec<TracedRequest>,
    /// Sequence number of the newest request, shown or not; 0 before the first.
    pub last: u64,
    /// Requests that were not kept since the start, as another was being kept or read at the same moment.
    pub missed: u64,
}

/// A request of a device that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedRequest {
    /// Number of the request among those that were kept since the start, from 1.
    pub sequence: u64,
    /// When the worker found the request, nanoseconds since 1970-01-01 UTC.
    pub unix_nanoseconds: u64,
    /// Name of the export that the request was for.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    #[schema(value_type = String)]
    pub export: Arc<str>,
    /// Number of the device, N of `/dev/ublkbN`.
    pub device_id: u32,
    /// Number of the queue in the device.
    pub queue_id: u16,
    /// Place of the request in the queue.
    pub tag: u16,
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    #[schema(value_type = String)]
    pub operation: Cow<'static, str>,
    /// First byte of the device asked for.
    pub offset_bytes: u64,
    /// Number of bytes asked for.
    pub length_bytes: u64,
    /// Whether the request is acknowledged only when stable.
    pub fua: bool,
    /// `ok`, or a word for the failure.
    #[schema(value_type = String)]
    pub result: Cow<'static, str>,
    /// From the moment at which the worker found the request until the answer: the sum of `parts`.
    pub total_nanoseconds: u64,
    /// The time in each part of the way.
    pub parts: TraceParts,
    /// Of a sample, the number of requests of its worker that it stands for; left out where the request is shown as it was slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub one_in: Option<u32>,
}

/// The time of a request in each part of its way, nanoseconds. Parts without time are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TraceParts {
    /// Waits for the worker: behind other requests of a turn, or for a turn of the export among others.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue: u64,
    /// Waits because of a limit of the export.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
    /// Waits because data leaves more slowly than it comes: a bound on data at risk, packs to be merged, a share or the whole of the log,
    /// memory of the index.
    #[serde(skip_serializing_if = "is_zero")]
    pub brake: u64,
    /// Waits for memory for the data, a slot: `buffers.slots_per_worker`.
    #[serde(skip_serializing_if = "is_zero")]
    pub slot: u64,
    /// The bytes are copied between client and worker.
    #[serde(skip_serializing_if = "is_zero")]
    pub copy: u64,
    /// The record is appended to the log, with the wait for other appends or a free segment, or the content is read from the log.
    #[serde(skip_serializing_if = "is_zero")]
    pub log: u64,
    /// Waits until data is stable on the cache disk: a FLUSH, or a FUA WRITE.
    #[serde(skip_serializing_if = "is_zero")]
    pub sync: u64,
    /// Waits for the store: for content only in the store, or for the commit of a durable FLUSH.
    #[serde(skip_serializing_if = "is_zero")]
    pub store: u64,
}

impl From<[u64; PARTS]> for TraceParts {
    /// The times in the order of [`Part`].
    fn from([queue, limit, brake, slot, copy, log, sync, store]: [u64; PARTS]) -> Self {
        Self { queue, limit, brake, slot, copy, log, sync, store }
    }
}

fn as_text<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Arc::from)
}

/// Whether a figure may be left out of an answer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(figure: &u64) -> bool {
    *figure == 0
}

/// The requests of all workers that ended last.
#[derive(Debug, Default)]
pub struct TraceRing {
    newest: Mutex<Newest>,
    missed: AtomicU64,
}

#[derive(Debug, Default)]
struct Newest {
    requests: VecDeque<TracedRequest>,
    /// Sequence number of the newest one; the first one has 1.
    last: u64,
}

impl TraceRing {
    /// Adds `request` in the place of the oldest one, with the next sequence number.
    pub fn push(&self, request: TracedRequest) {
        let mut newest = match self.newest.try_lock() {
            Ok(newest) => newest,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(1, Relaxed);
                return;
            }
        };
        if newest.requests.len() == REQUESTS_MAX {
            newest.requests.pop_front();
        }
        newest.last += 1;
        let sequence = newest.last;
        newest.requests.push_back(TracedRequest { sequence, ..request });
    }

    /// The requests after sequence number `since`.
    pub fn after(&self, since: u64) -> Trace {
        let newest = self.newest.lock_whole();
        let requests = newest.requests.iter().filter(|request| request.sequence > since).cloned().collect();
        Trace { requests, last: newest.last, missed: self.missed.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tag: u16) -> TracedRequest {
        TracedRequest { tag, ..TracedRequest::default() }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_a_reader_that_asks_for_what_came_after_sees_each_once() {
        let ring = TraceRing::default();
        assert_eq!(ring.after(0).last, 0);
        let mut seen = Vec::new();
        let mut since = 0;
        for tag in 0..3000 {
            ring.push(request(tag));
            if tag % 1000 == 999 {
                let Trace { requests, last, .. } = ring.after(since);
                seen.extend(requests.iter().map(|request| (request.sequence, request.tag)));
                since = last;
            }
        }
        assert_eq!(seen, (0..3000).map(|tag| (u64::from(tag) + 1, tag)).collect::<Vec<_>>());
        let Trace { requests: kept, last, .. } = ring.after(0);
        assert_eq!((kept.len(), last, kept[0].sequence), (REQUESTS_MAX, 3000, 3001 - REQUESTS_MAX as u64));
    }

    #[test]
    fn a_request_that_meets_a_reader_is_missed_and_counted_and_takes_no_number() {
        let ring = TraceRing::default();
        let reading = ring.newest.lock().unwrap();
        ring.push(request(1));
        drop(reading);
        ring.push(request(2));
        let Trace { last, missed, .. } = ring.after(0);
        assert_eq!((missed, last), (1, 1));
    }
}
