//! The worker's loop: completions in, requests through the cache, results out.
//!
//! Owns the order of a turn. Does not own the waiting places, each of which is a part with a type of its own.
//!
//! # Where a request waits
//!
//! From the client's call until the worker's answer a request is in one of these places, or on the way between two of them.
//! `Loop` is [`Loop`], `Shard` is [`Loop::shard`] (`cache/shard`) and `Ring` is [`Loop::ring`]. The last two columns tell the fate
//! of a waiting request when the export's device is removed ([`Loop::end_waits`]), and when the export is lost (fenced, or two
//! histories).
//!
//! ```text
//!  waits for                owner                      woken by                    order               removed   lost
//!  ───────────────────────  ─────────────────────────  ──────────────────────────  ──────────────────  ────────  ────────
//!  a free tag               the kernel: queue of the   an answer in the queue      the kernel's        goes on   goes on
//!                           block device               (`Queues::answer`)          scheduler
//!  the next turn            the kernel: completion     any completion              first in, first     goes on   goes on
//!                           queue, then `Ring::seen`                               out
//!  a part of a turn         `Loop::ready`              nobody: the next turn       in turns; all that  goes on   goes on
//!                                                      begins at once              fits as it came
//!  the next piece of a      `Ready::divided`           nobody: the next turn       before others of    goes on   goes on
//!  large WRITE                                         begins at once              the export
//!  a limit of the export    `Loop::limited`            `LimitedRequests::due`: a  first in, first     goes on   goes on
//!  (R, W)                                              reservation, or 250 ms     out in an export;
//!                                                                                 READs and writes
//!                                                                                 apart
//!  less at risk, packs      `Loop::held`               `HeldWrites::due`: a pause  first in, first     refused   goes on
//!  merged, memory for the                              or 10 ms, longer            out in an export;
//!  index, or log share (W)                             beside 1,000 held exports   exports rotate
//!  log space (W)            `Loop::log_line`           the inbox (a segment, room  in turns            fails     goes on
//!                                                      given back); a pause
//!  a slot (R, WRITE)        `Loop::tasks`: a task, and a slot that is dropped      in turns (the call  fails     goes on
//!                           a place in the pool's                                  of `Pool::acquire`)
//!                           `Waiters`
//!  the store's data (R)     `Loop::tasks`: a task      the answer of the control   as answers come     fails     fails
//!                                                      threads (`Volume::fetch`)
//!  this turn, with a slot   `TaskWaits::ended`         nobody: emptied each turn   first in, first out goes on   goes on
//!  or data
//!  the end of the turn (W)  `Shard`: `Lane::open`      `Shard::turn`; when all     first in, first     goes on   goes on
//!                                                      headers are under way, an   out, as one record
//!                                                      append that ends
//!  a segment (W)            `Shard`: `Log::backlog`    the inbox (`Port::offer`)   first in, first out fails     goes on
//!  an append (W)            `Shard`: `Flights::steps`  `Shard::append_done`; of a  places in a segment goes on   goes on
//!                                                      record in pieces nobody:
//!                                                      the next turn begins at
//!                                                      once
//!  a sync (FLUSH, FUA)      `Shard`: `Syncs::waiters`  `Shard::sync_done`; the     as segments become  goes on   goes on
//!                                                      inbox (another's sync)      stable
//!  the store's commit       `Shard`: `Syncs::stored`   the inbox (`Port::tell`:    none: all of the    fails     fails
//!  (FLUSH, FUA)                                        progress of the export)     export are asked
//!  the disk (R)             `Shard`: `Reads::queue`,   `Shard::read_done`          starts in turns, 32 goes on   goes on
//!                           then `Reads::waiting`                                  reads and 2 MiB at
//!                                                                                  a time
//!  an operation (append,    `Ring::under_way`          the kernel                  the kernel's        goes on   goes on
//!  sync, read)
//!  the answer               `Shard::done`,             nobody: emptied each turn   first in, first out goes on   goes on
//!                           `Loop::done`
//!  the answer's submission  the kernel: submission     `Ring::submit_and_wait`,    first in, first out goes on   goes on
//!                           queue of the ring          which begins each turn;     in a queue
//!                                                      `Loop::answer_first` before
//!                                                      a full turn
//! ```
//!
//! R is a READ, W a WRITE, DISCARD or WRITE_ZEROES. A worker without anything to go on with sleeps in `Ring::submit_and_wait`.
//!
//! - *in turns*: first in, first out for the requests of one export; weighted fair queueing over exports, by bytes ([`crate::fair`]).
//! - *fails*: with `IoError::Detached` when the device is removed, with `IoError::Fenced` or `IoError::Diverged` when the export
//!   is lost. *refused* is the same failure, without `Volume::settled`, because no bytes were promised.
//! - *goes on*: the wait is not ended. In most places the wait cannot last: only the disk, this worker or requests with a buffer
//!   are waited for. A request which comes to the shard after the loss fails there; a write which the shard took before is still
//!   appended, and acknowledged unless the write is FUA and waits for the store. Writes of a lost export in `log_line` and
//!   `Log::backlog` wait for log space like all others, until the device is removed.
//! - When the daemon stops, a request in any place stays the kernel's, which gives the request to the next daemon.

pub mod setup;

mod operations;
mod serve;
mod stop;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::company::Company;
use super::engine::Engine;
use super::inbox::Inbox;
use super::queues::Queues;
use super::requests::InFlight;
use super::ring::{Event, Ring};
use super::traces;
use super::waits::held::HeldWrites;
use super::waits::limits::LimitedRequests;
use super::waits::log_line::LogLine;
use super::waits::ready::Ready;
use super::waits::tasks::TaskWaits;
use crate::cache::{IoError, Shard};
use crate::observe::io::WorkerStats;
use operations::Purpose;

/// One worker: the parts between which a request moves.
struct Loop {
    ring: Ring<Purpose>,
    queues: Queues,
    /// Decides whether large requests are carried out in pieces.
    company: Company,
    limited: LimitedRequests,
    held: HeldWrites,
    log_line: LogLine,
    ready: Ready,
    tasks: TaskWaits,
    shard: Shard<InFlight>,
    /// Requests which the cache has ended in this turn; kept for its room.
    done: Vec<(InFlight, Result<(), IoError>)>,
    engine: Engine,
    /// Whether the ring appends from registered buffers.
    is_fixed: bool,
    inbox: Arc<Inbox>,
    /// Begin of the turn.
    now: Instant,
    /// Whether this turn ended a request.
    advanced: bool,
    stats: Arc<WorkerStats>,
}

impl Loop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            let patience = self.patience();
            self.ring.submit_and_wait(patience)?;
            self.now = Instant::now();
            traces::begin_turn(self.now);
            self.stats.turns.add(1);
            self.advanced = false;
            self.ring.drain(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Command { token, result } => self.command_ended(token, result)?,
                    Event::Operation(completion) => self.complete(completion)?,
                }
            }
            self.resume_limited();
            self.resume_held()?;
            if self.log_line.due().is_some_and(|due| due <= self.now) {
                self.ask_for_log_space()?;
            }
            self.tasks.run_ready();
            self.resume_waited()?;
            if self.ready.exceeds_turn() {
                self.answer_first()?;
            }
            self.serve_ready()?;
            self.append()?;
            self.submit_wants();
            self.finish_completed()?;
        }
    }

    /// How long the ring may wait for completions: not at all while a request can be carried on.
    fn patience(&mut self) -> Option<Duration> {
        // The last turn may have freed slots for which requests wait.
        self.tasks.run_ready();
        if self.ready.has_next() || self.shard.has_rest() || self.tasks.has_next() {
            return Some(Duration::ZERO);
        }
        let due = self.log_line.due().into_iter().chain(self.held.due()).chain(self.limited.due()).min();
        due.map(|due| due.saturating_duration_since(Instant::now()))
    }
}
