//! Requests which only need the worker: requests that have just come, and requests whose wait has ended.
//!
//! Owns the length of a turn, and the order in which a turn takes requests: first in, first out for an export; weighted fair
//! queueing over exports, in bundles ([`crate::fair`]), where more is ready than one turn takes. Where exports share the worker, a turn
//! may end in the middle of a large WRITE ([`divided`](super::divided)): then turns with small requests of other exports and turns with
//! pieces of the WRITE alternate until the WRITE has all of its data. Does not own the steps of a request (`run/serve`). Invariants: a
//! turn takes requests of at most [`TURN_COST`]; a request in here is taken by one of the next turns, whatever happens elsewhere, and
//! holds at most the log space, the slot or the bytes from the store which the request has already, and the divided WRITE a part of
//! the data.
//!
//! Where everything that is ready fits in the turn, nothing is queued: the order is that of arrival. The same holds where everything is
//! of one queue and the line is at rest: the turn takes what fits, and the rest stays where it arrived.

use std::collections::VecDeque;

use super::divided::Divided;
use crate::buffer::Slot;
use crate::cache::{Fill, Reservation};
use crate::fair::Fair;
use crate::observe::trace::Part;
use crate::units::{ExportId, FRAME_BYTES, PIECE_BYTES, REQUEST_BYTES_MAX, REQUEST_COST_BYTES};
use crate::worker::queues::Queues;
use crate::worker::requests::{Errand, TagRequest};
use crate::worker::traces;

/// Most cost of the requests which a turn takes, bytes: one of the largest, or eleven of 4 KiB. A request of a neighbour beside one
/// greedy export waits for two turns at most: the one during which the request comes, and its own. With turns four times as long one
/// export alone was served 8 % more READs of 128 KiB, and fewer requests of other kinds (fio on an emulated processor, under the
/// instruction clock).
pub const TURN_COST: u64 = REQUEST_BYTES_MAX as u64 + REQUEST_COST_BYTES;

/// Most cost of the requests of other exports which a turn takes before the next piece of a divided WRITE.
const UNDIVIDED_COST: u64 = PIECE_BYTES as u64 + REQUEST_COST_BYTES;

/// Most cost of the requests of an export that count as one for the order, bytes: four of 4 KiB. Their answers mostly come together, so
/// that the client asks for more with one call: with 32 exports of depth 8, a sixth more requests a second than one by one, and bundles of
/// all eight gain nothing more (fio on two emulated processors, under the instruction clock).
const BUNDLE_COST: u64 = 4 * (FRAME_BYTES as u64 + REQUEST_COST_BYTES);

// A WRITE that may be divided is a bundle alone. With others in its bundle, its export would stay the next one in the line, and no other
// export would get a turn between the pieces.
const _: () = assert!(BUNDLE_COST <= PIECE_BYTES as u64 + 2 * REQUEST_COST_BYTES);

/// How far a request has come.
pub enum Stage {
    /// The client has sent the request.
    New,
    /// The limits of the export let the request go on.
    Allowed,
    /// A write which `Volume::pace` has let go on.
    Paced,
    /// A write which has log space.
    Admitted(Reservation),
    /// A READ with the data from the store, or without need of such data any more.
    Fetched(Option<Fill>),
    /// A READ or WRITE which has a slot.
    Granted(Errand, Slot),
    /// A WRITE with a part of its data.
    Divided(Divided),
}

/// A request, and the step to go on with.
type Work = (TagRequest, Stage);

/// Each request that is ready.
pub struct Ready {
    /// In the order of arrival: since the last turn, or longer while all are of one queue.
    arrived: VecDeque<Work>,
    arrived_cost: u64,
    /// The queue of the first one of `arrived`, and whether others of `arrived` are of other queues.
    first_queue: u32,
    is_mixed: bool,
    /// More than one turn can do.
    line: Fair<ExportId, Work>,
    /// Cost which this turn may still take.
    left: u64,
    /// The WRITE whose data is taken in pieces, with its export.
    divided: Option<(ExportId, Work)>,
    /// Whether the divided WRITE has let other exports go first, in this turn or, before a turn begins, in the last one.
    gave_way: bool,
    /// Whether the shard writes a record in pieces: then the turn takes small requests only, as a small WRITE has to wait for the rest
    /// of the record.
    has_rest: bool,
}

impl Ready {
    pub fn new() -> Self {
        Self {
            arrived: VecDeque::new(),
            arrived_cost: 0,
            first_queue: 0,
            is_mixed: false,
            line: Fair::in_bundles(BUNDLE_COST),
            left: 0,
            divided: None,
            gave_way: false,
            has_rest: false,
        }
    }

    /// Takes a request which is ready.
    #[inline]
    pub fn add(&mut self, request: TagRequest, stage: Stage) {
        if !matches!(stage, Stage::New) {
            traces::enter(request.tag, Part::Queue);
        }
        let queue = request.tag.queue_index;
        if self.arrived.is_empty() {
            (self.first_queue, self.is_mixed) = (queue, false);
        }
        self.is_mixed |= self.first_queue != queue;
        self.arrived_cost += cost(&request);
        self.arrived.push_back((request, stage));
    }

    /// Begins to give out the requests of a turn. Requests which have come since the last turn join the line, unless all of them
    /// fit in this turn or there is nobody to be fair to.
    #[inline]
    pub fn begin_turn(&mut self, queues: &Queues, has_rest: bool) {
        self.has_rest = has_rest;
        let gave_way = std::mem::take(&mut self.gave_way);
        self.left = match &self.divided {
            None if !has_rest => TURN_COST,
            // The divided WRITE goes on.
            Some(_) if gave_way && !has_rest => 1,
            // Between two pieces other exports get as much as a piece, with answers at once.
            _ => UNDIVIDED_COST,
        };
        // Else an export which was served ahead of others would keep that for as long as nobody passes the line.
        let is_alone = self.line.is_at_rest() && self.divided.is_none() && !self.is_mixed;
        if has_rest || (self.exceeds_turn() && !is_alone) {
            self.queue(queues);
        }
    }

    /// Whether requests are left from the last turn, or more came than one turn takes.
    #[inline]
    pub fn exceeds_turn(&self) -> bool {
        !self.line.is_empty() || self.arrived_cost > TURN_COST || self.divided.is_some()
    }

    #[cold]
    fn queue(&mut self, queues: &Queues) {
        for (request, stage) in self.arrived.drain(..) {
            let volume = queues.volume(request.tag);
            self.line.push(volume.id(), volume.weight(), cost(&request), (request, stage));
        }
        self.arrived_cost = 0;
    }

    /// The next request of this turn.
    #[inline]
    pub fn next(&mut self) -> Option<Work> {
        let left = self.left;
        if left == 0 {
            return None;
        }
        if let Some(cost) = self.arrived.front().map(|(request, _)| cost(request)) {
            if cost > left {
                return None;
            }
            self.left = left - cost;
            self.arrived_cost -= cost;
            return self.arrived.pop_front();
        }
        let divided = self.divided.as_ref().map(|(export, _)| *export);
        let next = self.line.pop_if(|export, (request, _)| cost(request) <= left && divided != Some(*export));
        match next {
            Some(work) => {
                self.left = left.saturating_sub(cost(&work.0));
                self.gave_way = divided.is_some();
                Some(work)
            }
            None if self.gave_way || self.has_rest => None,
            None => {
                let (_, work) = self.divided.take()?;
                self.left = 0;
                Some(work)
            }
        }
    }

    /// Whether a WRITE may be divided: one is at a time, and while the waits of an export are ended other requests are begun.
    pub fn may_divide(&self) -> bool {
        self.divided.is_none()
    }

    /// Ends the turn in the middle of a WRITE, which a later turn goes on with: after requests of other exports, and before any other
    /// of the same export.
    pub fn divide(&mut self, queues: &Queues, request: TagRequest, divided: Divided) {
        traces::enter(request.tag, Part::Queue);
        debug_assert!(self.divided.is_none(), "one WRITE is divided at a time");
        self.divided = Some((queues.volume(request.tag).id(), (request, Stage::Divided(divided))));
        self.left = 0;
    }

    /// Whether a later turn has requests to take.
    pub fn has_next(&self) -> bool {
        !self.line.is_empty() || !self.arrived.is_empty() || self.divided.is_some()
    }
}

/// Time which a request takes of a turn, as bytes.
fn cost(request: &TagRequest) -> u64 {
    REQUEST_COST_BYTES.saturating_add(request.data_bytes() as u64)
}
