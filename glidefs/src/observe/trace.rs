//! The requests that `glidefs trace` shows: a ring of those that ended last.
//!
//! Owns the ring, and the parts of a request's way. Does not own which requests are put into it (`worker/traces`), nor how they are shown
//! (`api/trace`). Invariants: the ring holds at most [`REQUESTS_MAX`] requests; a worker never waits for it, since a request that finds it
//! locked is dropped and counted; sequence numbers have no gaps, so a reader that asks for what came after the last one misses nothing
//! that is still there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};

use crate::locks::MutexExt;

/// Most requests in the ring.
pub const REQUESTS_MAX: usize = 2048;
/// Number of parts.
pub const PARTS: usize = 8;

/// A part of the way of a request. `TraceParts` of the API and docs/traces.md explain each.
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

/// A block request that has ended.
#[derive(Clone, Debug)]
pub struct TracedRequest {
    /// Name of the export.
    pub export: Arc<str>,
    /// Number of the device.
    pub device_id: u32,
    /// Number of the queue in the device.
    pub queue_id: u16,
    /// Place of the request in the queue.
    pub tag: u16,
    /// The word for READ, WRITE, …
    pub operation: &'static str,
    /// First byte of the device asked for.
    pub offset_bytes: u64,
    /// Number of bytes asked for.
    pub length_bytes: u64,
    /// Whether it is acknowledged only when stable.
    pub fua: bool,
    /// `ok`, or a word for the failure.
    pub result: &'static str,
    /// When the worker found it, nanoseconds since 1970.
    pub unix_nanos: u64,
    /// From then to the answer.
    pub total_nanos: u64,
    /// The time in each [`Part`]; the sum is the total.
    pub part_nanos: [u64; PARTS],
    /// Of a sample: the number of requests that it stands for. Otherwise it is here because it was slow.
    pub one_in: Option<u32>,
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
    /// Adds `request` in the place of the oldest one.
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
        newest.requests.push_back(request);
        newest.last += 1;
    }

    /// The requests after sequence number `since`, oldest first, each with its own number, and the number of the newest one.
    pub fn after(&self, since: u64) -> (Vec<(u64, TracedRequest)>, u64) {
        let newest = self.newest.lock_whole();
        let first = newest.last + 1 - newest.requests.len() as u64;
        let numbered = (first..).zip(&newest.requests).filter(|(sequence, _)| *sequence > since);
        (numbered.map(|(sequence, request)| (sequence, request.clone())).collect(), newest.last)
    }

    /// Number of requests that were dropped since the start, as the ring was locked.
    pub fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tag: u16) -> TracedRequest {
        TracedRequest {
            export: "vm-1".into(),
            device_id: 1,
            queue_id: 0,
            tag,
            operation: "read",
            offset_bytes: 0,
            length_bytes: 4096,
            fua: false,
            result: "ok",
            unix_nanos: 0,
            total_nanos: 7,
            part_nanos: [0; PARTS],
            one_in: None,
        }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_a_reader_that_asks_for_what_came_after_sees_each_once() {
        let ring = TraceRing::default();
        assert_eq!(ring.after(0).1, 0);
        let mut seen = Vec::new();
        let mut since = 0;
        for tag in 0..3000 {
            ring.push(request(tag));
            if tag % 1000 == 999 {
                let (requests, last) = ring.after(since);
                seen.extend(requests.iter().map(|(sequence, request)| (*sequence, request.tag)));
                since = last;
            }
        }
        assert_eq!(seen, (0..3000).map(|tag| (u64::from(tag) + 1, tag)).collect::<Vec<_>>());
        let (kept, last) = ring.after(0);
        assert_eq!((kept.len(), last, kept[0].0), (REQUESTS_MAX, 3000, 3001 - REQUESTS_MAX as u64));
    }

    #[test]
    fn a_request_that_meets_a_reader_is_missed_and_counted_and_takes_no_number() {
        let ring = TraceRing::default();
        let reading = ring.newest.lock().unwrap();
        ring.push(request(1));
        drop(reading);
        ring.push(request(2));
        assert_eq!((ring.missed(), ring.after(0).1), (1, 1));
    }
}
