//! Requests over a limit of their export.
//!
//! Owns the order: of one export first in, first out, READs and writes apart. Does not own the count (`export::Throttle`), which
//! all queues of an export share. Only the first request of a line has an allotment in the buckets, so the lines of several
//! workers take turns. Invariants: a waiting request of one export keeps no other export waiting; a waiting request has neither
//! a buffer nor log space, and nothing was promised for the request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stop;
use crate::export::{Allotment, Export, Operation, Throttle};
use crate::units::ExportId;
use crate::worker::requests::TagRequest;

/// Shortest sleep of a worker with nothing else to do: requests which come due within the time go on together. The burst makes up
/// for the delay.
const SLEEP_MIN: Duration = Duration::from_micros(500);
/// Longest time between two looks whether the limits have changed.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The requests of one worker which wait because of limits.
#[derive(Debug, Default)]
pub struct LimitedRequests {
    /// No line in here is without requests.
    lines: HashMap<LineKey, Line>,
    /// When to look at the first request of each line, earliest first: one entry a line.
    looks: BinaryHeap<Reverse<(Instant, LineKey)>>,
    /// The last look at the lines.
    looked: Option<Instant>,
}

/// An export, and whether the line has the READs of the export.
type LineKey = (ExportId, bool);

/// The waiting READs, or the waiting writes, of one export.
#[derive(Debug)]
struct Line {
    export: Arc<Export>,
    requests: VecDeque<TagRequest>,
    /// The place of the first request in the buckets.
    first: Allotment,
}

impl LimitedRequests {
    /// Keeps a request which may not go on at once. `false` when the request may go on: then the request was not kept.
    #[inline]
    pub fn holds_back(&mut self, request: &TagRequest, export: &Arc<Export>, now: Instant) -> bool {
        export.throttle().is_some_and(|throttle| self.keeps(request, export, throttle, now))
    }

    fn keeps(
        &mut self,
        request: &TagRequest,
        export: &Arc<Export>,
        throttle: &Throttle,
        now: Instant,
    ) -> bool {
        // Requests of a device which is being removed do not wait for a limit.
        if request.operation == Operation::Flush || !stop::may_wait(export.volume()) {
            return false;
        }
        let key = (export.id(), request.operation == Operation::Read);
        if let Some(line) = self.lines.get_mut(&key) {
            line.requests.push_back(*request);
            return true;
        }
        let first = allot(throttle, request, now);
        if first.due <= now {
            return false;
        }
        let line = Line { export: Arc::clone(export), requests: VecDeque::from([*request]), first };
        self.lines.insert(key, line);
        self.look_at(key, first.due, now);
        true
    }

    /// When to call [`next`](Self::next) again.
    pub fn due(&self) -> Option<Instant> {
        let Reverse((due, _)) = self.looks.peek()?;
        Some(self.looked.map_or(*due, |looked| (*due).max(looked + SLEEP_MIN)))
    }

    /// A request which may go on now: of several exports, of the one whose request has been due for longest.
    pub fn next(&mut self, now: Instant) -> Option<TagRequest> {
        while let Some(&Reverse((due, key))) = self.looks.peek() {
            if due > now {
                break;
            }
            self.looks.pop();
            if let Some(request) = self.look(key, now) {
                return Some(request);
            }
        }
        self.looked = Some(now);
        None
    }

    /// Looks at the first request of a line, and takes the request out if due.
    fn look(&mut self, key: LineKey, now: Instant) -> Option<TagRequest> {
        let line = self.lines.get_mut(&key)?;
        let (throttle, first) = (line.export.throttle()?, line.requests.front()?);
        if !throttle.holds(&line.first) {
            line.first = allot(throttle, first, now);
        }
        let due = line.first.due;
        if due > now {
            self.look_at(key, due, now);
            return None;
        }
        let request = line.requests.pop_front()?;
        throttle.waited(line.first.limit, now.saturating_duration_since(request.started));
        if let Some(second) = line.requests.front() {
            line.first = allot(throttle, second, now);
            let due = line.first.due;
            self.look_at(key, due, now);
        } else {
            self.lines.remove(&key);
        }
        Some(request)
    }

    fn look_at(&mut self, key: LineKey, due: Instant, now: Instant) {
        self.looks.push(Reverse((due.min(now + LOOK_AGAIN), key)));
    }

    /// Takes out the requests of exports whose waits are ended, each line in order.
    pub fn stop(&mut self) -> Vec<TagRequest> {
        let mut stopped = Vec::new();
        self.lines.retain(|_, line| {
            let may_wait = stop::may_wait(line.export.volume());
            if !may_wait {
                stopped.extend(line.requests.drain(..));
            }
            may_wait
        });
        self.looks.retain(|Reverse((_, key))| self.lines.contains_key(key));
        stopped
    }
}

fn allot(throttle: &Throttle, request: &TagRequest, now: Instant) -> Allotment {
    throttle.allot(request.operation, request.data_bytes(), now)
}

#[cfg(test)]
mod tests;
