//! The line of writes which wait for log space.
//!
//! Owns the order: first in, first out over all exports of the worker, because log space belongs to the shard and a small write
//! must not overtake a large one for ever. Does not own the space (`cache::Shard::admit`). Invariant: a write in the line has
//! neither a buffer nor log space.

use std::collections::VecDeque;
use std::time::Instant;

use super::stop;
use crate::cache::{Admission, Reservation, Shard};
use crate::worker::queues::Queues;
use crate::worker::requests::{InFlight, TagRequest};

/// Each WRITE, DISCARD and WRITE_ZEROES that waits for log space.
#[derive(Debug, Default)]
pub struct LogLine {
    line: VecDeque<TagRequest>,
    /// When to ask the cache again for the first write; `None` when the cache will wake the worker.
    ask_again: Option<Instant>,
}

/// A write which has left the line.
pub enum Left {
    /// The write has log space.
    Admitted(TagRequest, Reservation),
    /// The cache is full, and configured to fail writes then.
    Full(TagRequest),
}

impl LogLine {
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Puts a write at the end, and says whether the write is the first: ask [`next`](Self::next) then.
    #[inline]
    pub fn join(&mut self, request: TagRequest) -> bool {
        self.line.push_back(request);
        self.line.len() == 1
    }

    /// Asks the cache for log space for the first write. `None` when there is no write, or no space yet.
    #[inline]
    pub fn next(&mut self, shard: &mut Shard<InFlight>, now: Instant) -> Option<Left> {
        self.ask_again = None;
        let &request = self.line.front()?;
        let left = match shard.admit(request.data_bytes()) {
            Admission::Accept(reservation) => Left::Admitted(request, reservation),
            Admission::Full => Left::Full(request),
            Admission::Delay(pause) => {
                self.ask_again = Some(now + pause);
                return None;
            }
            Admission::Wait => return None,
        };
        self.line.pop_front();
        Some(left)
    }

    /// Whether to ask in this turn, which began at `now`: any turn may have made room, but a pause that the cache asked for is
    /// kept.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.line.is_empty() && self.ask_again.is_none_or(|due| due <= now)
    }

    /// Whether the line waits for room that a finished request may have made, and not for the end of a pause.
    pub fn waits_for_room(&self) -> bool {
        !self.line.is_empty() && self.ask_again.is_none()
    }

    /// The end of the pause that the cache asked for.
    pub fn due(&self) -> Option<Instant> {
        self.ask_again
    }

    /// Takes out the writes of exports whose waits are ended, oldest first.
    pub fn stop(&mut self, queues: &Queues) -> Vec<TagRequest> {
        // The cache was not asked for the write which is the first now.
        self.ask_again = None;
        let mut stopped = Vec::new();
        self.line.retain(|request| {
            let may_wait = stop::may_wait(queues.volume(request.tag));
            if !may_wait {
                stopped.push(*request);
            }
            may_wait
        });
        stopped
    }
}
