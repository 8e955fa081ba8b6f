//! The line of writes which wait for log space.
//!
//! Owns the order: first in, first out for an export; weighted fair queueing over exports, by bytes ([`crate::fair`]). The space
//! belongs to the shard, so while the space does not suffice for the next write nobody else is admitted: a small write must not
//! overtake a large one for ever. Does not own the space (`cache::Shard::admit`). Invariants: a write in the line has neither a buffer
//! nor log space; while the next write was refused, the cache is asked when the cache wakes the worker or a pause ends, and other
//! turns, such as those of READs, cost the line nothing.

use std::sync::Arc;
use std::time::Instant;

use super::stop;
use crate::cache::{Admission, Reservation, Shard, Volume};
use crate::fair::Fair;
use crate::observe::io::WorkerStats;
use crate::units::{ExportId, FRAME_BYTES};
use crate::worker::queues::Queues;
use crate::worker::requests::{InFlight, TagRequest};

/// Each WRITE, DISCARD and WRITE_ZEROES that waits for log space.
#[derive(Debug)]
pub struct LogLine {
    line: Fair<ExportId, TagRequest>,
    /// When to ask the cache again for the next write; `None` when the cache will wake the worker.
    ask_again: Option<Instant>,
    stats: Arc<WorkerStats>,
}

/// A write which is not, or not any more, in the line.
pub enum Left {
    /// The write has log space.
    Admitted(TagRequest, Reservation),
    /// The cache is full, and configured to fail writes then.
    Full(TagRequest),
    /// The write would have to wait, and no request of the export may.
    Stopped(TagRequest),
}

impl LogLine {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        Self { line: Fair::new(), ask_again: None, stats }
    }

    /// Asks the cache for log space for a write which has just come, unless others wait. `None` when the write waits now.
    #[inline]
    pub fn enter(
        &mut self,
        shard: &mut Shard<InFlight>,
        request: TagRequest,
        volume: &Arc<Volume>,
        now: Instant,
    ) -> Option<Left> {
        if self.line.is_empty() {
            match ask(shard, request, now) {
                Ok(left) => return Some(left),
                Err(ask_again) => self.ask_again = ask_again.filter(|_| stop::may_wait(volume)),
            }
        }
        if !stop::may_wait(volume) {
            return Some(Left::Stopped(request));
        }
        let bytes = request.data_bytes().saturating_add(FRAME_BYTES) as u64;
        self.line.push(volume.id(), volume.weight(), bytes, request);
        self.publish();
        None
    }

    /// Asks the cache for log space for the next write. `None` when there is no write, or no space yet.
    #[inline]
    pub fn next(&mut self, shard: &mut Shard<InFlight>, now: Instant) -> Option<Left> {
        self.ask_again = None;
        let (_, &request) = self.line.peek()?;
        let left = match ask(shard, request, now) {
            Ok(left) => {
                self.line.pop();
                Some(left)
            }
            Err(ask_again) => {
                self.ask_again = ask_again;
                None
            }
        };
        self.publish();
        left
    }

    /// Publishes how many writes wait for room. Those that wait for the end of a pause are slowed down only.
    fn publish(&self) {
        let waiting = if self.ask_again.is_none() { self.line.len() as u64 } else { 0 };
        self.stats.log_line.set(waiting);
    }

    /// The end of the pause that the cache asked for.
    pub fn due(&self) -> Option<Instant> {
        self.ask_again
    }

    /// Takes out the writes of exports whose waits are ended, oldest first within an export.
    pub fn stop(&mut self, queues: &Queues) -> Vec<TagRequest> {
        // The cache was not asked for the write which is the next now.
        self.ask_again = None;
        let mut stopped = Vec::new();
        self.line.remove_all(
            |request| !stop::may_wait(queues.volume(request.tag)),
            |request| stopped.push(request),
        );
        self.publish();
        stopped
    }
}

/// Asks the cache for log space. An error when there is none yet: when to ask again, `None` when the cache will wake the worker.
#[inline]
fn ask(shard: &mut Shard<InFlight>, request: TagRequest, now: Instant) -> Result<Left, Option<Instant>> {
    match shard.admit(request.data_bytes()) {
        Admission::Accept(reservation) => Ok(Left::Admitted(request, reservation)),
        Admission::Full => Ok(Left::Full(request)),
        Admission::Delay(pause) => Err(Some(now + pause)),
        Admission::Wait => Err(None),
    }
}
