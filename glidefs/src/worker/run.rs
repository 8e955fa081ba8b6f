//! The worker's loop: completions in, requests through the cache, results out.
//!
//! Owns the order of a turn. A request that can be served at once passes through [`Loop::serve`] and
//! [`Loop::finish`] without an allocation; one that lacks a slot waits in the executor, one that lacks log space waits in
//! `stalled`, first in, first out; one that needs the store gives its slot back and asks for another when its bytes have
//! come.

mod ending;
mod queues;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use slab::Slab;

use super::QueueGone;
use super::affinity::{self, Cpu};
use super::driver::{Failure, QueueDriver, TagEvent};
use super::engine::Appends;
use super::executor::Executor;
use super::held::HeldWrites;
use super::inbox::{Inbox, Message};
use super::requests::{Buffer, Fetched, HostedQueue, InFlight, count};
use super::ring::{self, Completion, Event, Memory, Op, Ring, Target};
use super::waiting::{TagId, Waiting};
use crate::buffer::{Pool, Slot};
use crate::cache::{Admission, Cache, Fill, IoError, Reservation, Shard, ShardStats, Token, Want};
use crate::export::{Export, Operation};
use crate::observe::io::WorkerStats;
use crate::units::FRAME_BYTES;

/// Memory for record headers: pieces of 4 KiB of the arena. Each append that is under way takes two; beyond those requests
/// gather in larger batches.
const HEADERS: usize = 32;
/// Bytes of an eventfd's counter.
const INBOX_COUNT_BYTES: usize = 8;

/// What a worker is made of.
pub struct Setup {
    pub index: usize,
    pub cpu: Cpu,
    pub slots: usize,
    pub queues_max: u32,
    pub appends: Appends,
    pub cache: Cache,
    pub inbox: Arc<Inbox>,
    pub stats: Arc<WorkerStats>,
    pub shard_stats: Arc<ShardStats>,
}

/// Says whether the worker could be set up, with the step that failed.
type Ready = Sender<Result<(), (&'static str, io::Error)>>;

/// Ends the process if a worker unwinds or returns: its devices would hang for ever.
struct AbortOnEnd;

impl Drop for AbortOnEnd {
    fn drop(&mut self) {
        tracing::error!(
            "a worker has ended: ending the daemon, so that the next one can take over the devices"
        );
        std::process::abort();
    }
}

/// The thread's body. Returns only when set-up fails.
pub fn main(setup: Setup, ready: &Ready) {
    match Loop::new(setup) {
        Err(failure) => drop(ready.send(Err(failure))),
        Ok(mut worker) => {
            let _abort = AbortOnEnd;
            drop(ready.send(Ok(())));
            if let Err(error) = worker.run() {
                tracing::error!(error = &error as &dyn std::error::Error, "the worker's ring failed");
            }
        }
    }
}

/// What a request that needs a buffer brings along.
enum Errand {
    /// The log space that a WRITE holds.
    Write(Reservation),
    /// What was fetched from the store for a READ.
    Read(Option<Fill>),
}

/// A request whose slot has come, or that gave up waiting for one.
type Granted = (Fetched, Errand, Option<Slot>);
/// A READ whose bytes have come from the store, or are here after all.
type Arrived = (Fetched, Result<Option<Fill>, IoError>);

struct Loop {
    ring: Ring<Waiting>,
    queues: Slab<HostedQueue>,
    queues_max: u32,
    shard: Shard<InFlight>,
    pool: Pool,
    appends: Appends,
    executor: Executor,
    /// Requests whose slot has come, or that gave up waiting for one.
    granted: Rc<RefCell<VecDeque<Granted>>>,
    /// READs whose bytes have come from the store.
    arrived: Rc<RefCell<VecDeque<Arrived>>>,
    /// Writes whose export has as much at risk as it may.
    held: HeldWrites,
    /// Writes that wait for log space, first in, first out.
    stalled: VecDeque<Fetched>,
    /// When to ask again for the first of them; `None` when the cache will say.
    ask_again: Option<Instant>,
    /// Whether the last turn finished a request, and so may have made room for one that waits.
    advanced: bool,
    /// Requests the cache is done with; kept for its room.
    done: Vec<(InFlight, Result<(), IoError>)>,
    inbox: Arc<Inbox>,
    now: Instant,
    stats: Arc<WorkerStats>,
}

impl Loop {
    fn new(setup: Setup) -> Result<Self, (&'static str, io::Error)> {
        affinity::pin(setup.cpu).map_err(|error| ("pinning the thread", error))?;
        // After pinning, so that the first touch places the arena on the local NUMA node.
        let pool = Pool::new(setup.slots, Arc::clone(&setup.stats))
            .map_err(|error| ("making the buffer pool", io::Error::other(error)))?;
        // One file more than queues: the lock of the cache.
        let files_max = setup.queues_max.saturating_add(1);
        let options = ring::Options { files_max, ..ring::Options::default() };
        let mut ring = Ring::new(&options).map_err(|error| ("setting up io_uring", error))?;
        let mut appends = setup.appends;
        if let Err(error) = ring.register_arena(&pool) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "running without registered buffers: raise LimitMEMLOCK above the size of the buffers"
            );
            appends = appends.without_registered_buffers();
        }
        let mut shard = setup.cache.shard(setup.index, setup.shard_stats);
        if appends != Appends::Pwrite {
            if let Some(lock) = setup.cache.lock_fd() {
                ring.register_file(setup.queues_max, lock.as_raw_fd())
                    .map_err(|error| ("registering the lock of the cache", error))?;
            }
            shard.defer_appends((0..HEADERS).map_while(|_| pool.try_acquire(FRAME_BYTES)).collect());
        }
        setup.stats.cpu.add(setup.cpu.0 as u64);
        let notify = {
            let inbox = Arc::clone(&setup.inbox);
            Arc::new(move || inbox.wake()) as Arc<dyn Fn() + Send + Sync>
        };
        setup.cache.on_progress(setup.index, Arc::clone(&notify));
        let mut this = Self {
            ring,
            queues: Slab::new(),
            queues_max: setup.queues_max,
            shard,
            pool,
            appends,
            executor: Executor::new(notify),
            granted: Rc::default(),
            arrived: Rc::default(),
            stalled: VecDeque::new(),
            held: HeldWrites::new(Arc::clone(&setup.stats)),
            ask_again: None,
            advanced: false,
            done: Vec::new(),
            inbox: setup.inbox,
            now: Instant::now(),
            stats: setup.stats,
        };
        this.arm_inbox(vec![0; INBOX_COUNT_BYTES]);
        Ok(this)
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            let patience = self.patience();
            self.ring.submit_and_wait(patience)?;
            self.now = Instant::now();
            self.stats.turns.add(1);
            self.ring.drain(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Command { token, result } => self.tag_event(TagId::decode(token), result)?,
                    Event::Operation(completion) => self.complete(completion)?,
                }
            }
            while let Some(fetched) = self.held.next(self.now) {
                self.stall(fetched)?;
            }
            // Any turn may have made room; a pause that was asked for is kept.
            if !self.stalled.is_empty() && self.ask_again.is_none_or(|due| due <= self.now) {
                self.resume_stalled()?;
            }
            self.executor.run_ready();
            self.resume_arrived()?;
            self.resume_granted()?;
            self.shard.turn();
            self.submit_wants();
            self.finish_completed()?;
        }
    }

    /// How long the ring may wait: not at all while there is something to do.
    fn patience(&mut self) -> Option<Duration> {
        // Slots freed by the last turn may have been granted to waiters.
        self.executor.run_ready();
        let may_go_on = self.advanced && !self.stalled.is_empty() && self.ask_again.is_none();
        if may_go_on || !self.granted.borrow().is_empty() || !self.arrived.borrow().is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.ask_again.into_iter().chain(self.held.due()).min();
        due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn complete(&mut self, completion: Completion<Waiting>) -> io::Result<()> {
        let Completion { context, result, memory } = completion;
        match (context, memory) {
            (Waiting::Inbox, Memory::Heap(count)) => {
                result?;
                while let Some(message) = self.inbox.take() {
                    match message {
                        Message::Attach { driver, armed } => drop(armed.send(self.attach(driver))),
                        Message::EndWaits(told) => {
                            self.end_waits()?;
                            // Who asked may have gone away.
                            let _ = told.send(());
                        }
                        Message::Ping(pong) => drop(pong.send(())),
                    }
                }
                self.arm_inbox(count);
                self.resume_stalled()
            }
            (Waiting::Append(op), Memory::Slots(parts)) => {
                let wanted: usize = parts.iter().map(|part| part.len()).sum();
                let done = result.and_then(|bytes| {
                    if bytes == wanted { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
                });
                self.shard.append_done(op, done, parts);
                Ok(())
            }
            (Waiting::Sync(op), _) => {
                self.shard.sync_done(op, result.map(drop));
                Ok(())
            }
            (Waiting::Read(op), Memory::Heap(buffer)) => {
                let done = result.and_then(|bytes| {
                    if bytes == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
                });
                self.shard.read_done(op, done, buffer);
                Ok(())
            }
            (context, _) => Err(io::Error::other(format!("{context:?} came back without its buffer"))),
        }
    }

    /// Has the ring read the inbox's eventfd. A failure shows in the completion.
    fn arm_inbox(&mut self, count: Vec<u8>) {
        let inbox = Arc::clone(&self.inbox) as Arc<dyn AsFd>;
        self.ring.start(Op::read(Target::Open(inbox), 0, count), Waiting::Inbox);
    }

    fn tag_event(&mut self, TagId { slot, tag }: TagId, result: i32) -> io::Result<()> {
        let Some(queue) = self.queues.get_mut(slot as usize) else {
            return Err(io::Error::other(format!("completion for queue slot {slot}, which is empty")));
        };
        match queue.driver.event(tag, result) {
            TagEvent::Request => {
                self.stats.requests.add(1);
                queue.stats.in_flight.add(1);
                let request = queue.driver.request(tag).and_then(|request| {
                    queue.export.check(&request)?;
                    Ok(request)
                });
                match request {
                    Ok(request) => self.serve(Fetched { slot, tag, request, started: self.now }),
                    Err(failure) => {
                        self.report(slot, tag, None, &failure);
                        self.commit(slot, tag, Err(&failure))
                    }
                }
            }
            TagEvent::Gone => self.tags_gone(slot, 1),
        }
    }

    /// Starts a request that has just been fetched.
    fn serve(&mut self, fetched: Fetched) -> io::Result<()> {
        match fetched.request.operation {
            Operation::Read => self.take_buffer(fetched, Errand::Read(None)),
            Operation::Flush => {
                let volume = self.queues[fetched.slot as usize].export.volume();
                self.shard.flush(volume, InFlight { fetched, buffer: Buffer::None });
                Ok(())
            }
            Operation::Write | Operation::Discard | Operation::WriteZeroes => {
                let volume = self.queues[fetched.slot as usize].export.volume();
                if volume.are_waits_ended() {
                    return self.write_at_once(fetched);
                }
                if self.held.holds_back(fetched, volume, self.now) { Ok(()) } else { self.stall(fetched) }
            }
        }
    }

    /// Puts a write at the end of those that wait for log space.
    fn stall(&mut self, fetched: Fetched) -> io::Result<()> {
        self.stalled.push_back(fetched);
        if self.stalled.len() == 1 { self.resume_stalled() } else { Ok(()) }
    }

    /// Asks the cache for log space, for one write after the other, until it has none.
    fn resume_stalled(&mut self) -> io::Result<()> {
        self.ask_again = None;
        while let Some(&fetched) = self.stalled.front() {
            match self.shard.admit(fetched.data_bytes()) {
                Admission::Accept(reservation) => {
                    self.stalled.pop_front();
                    self.reserved(fetched, reservation)?;
                }
                Admission::Delay(pause) => {
                    self.ask_again = Some(self.now + pause);
                    break;
                }
                Admission::Wait => break,
                Admission::Full => {
                    self.stalled.pop_front();
                    self.finish(InFlight { fetched, buffer: Buffer::None }, Err(Failure::Full))?;
                }
            }
        }
        Ok(())
    }

    /// Goes on with a WRITE, DISCARD or WRITE_ZEROES that has its log space.
    fn reserved(&mut self, fetched: Fetched, reservation: Reservation) -> io::Result<()> {
        if fetched.request.operation == Operation::Write {
            return self.take_buffer(fetched, Errand::Write(reservation));
        }
        let volume = self.queues[fetched.slot as usize].export.volume();
        let token = InFlight { fetched, buffer: Buffer::None };
        self.shard.zero(volume, fetched.request.range, fetched.request.fua, reservation, token);
        Ok(())
    }

    /// Gives a READ or WRITE its buffer, now or when its turn comes.
    fn take_buffer(&mut self, fetched: Fetched, errand: Errand) -> io::Result<()> {
        // What the ring writes must be the ring's to keep, and a tag's own buffer is not.
        let is_lent = matches!(errand, Errand::Write(_)) && self.appends != Appends::Pwrite;
        let stable = self.queues[fetched.slot as usize].driver.stable_buffer(fetched.tag);
        if let Some(stable) = stable.filter(|_| !is_lent) {
            return self.transfer(fetched, errand, Buffer::Stable(stable));
        }
        let len = fetched.data_bytes();
        if let Some(slot) = self.pool.try_acquire(len) {
            return self.transfer(fetched, errand, Buffer::Slot(slot));
        }
        let acquire = self.pool.acquire(len).map_err(io::Error::other)?;
        // Made here, as waits may be ended before the task is polled first.
        let ended = self.queues[fetched.slot as usize].export.volume().next_end_of_waits();
        let granted = Rc::clone(&self.granted);
        self.executor.spawn(async move {
            let slot = tokio::select! {
                biased;
                slot = acquire => Some(slot),
                () = ended => None,
            };
            granted.borrow_mut().push_back((fetched, errand, slot));
        });
        Ok(())
    }

    fn resume_granted(&mut self) -> io::Result<()> {
        loop {
            let next = self.granted.borrow_mut().pop_front();
            match next {
                None => return Ok(()),
                Some((fetched, errand, Some(slot))) => self.transfer(fetched, errand, Buffer::Slot(slot))?,
                Some((fetched, errand, None)) => {
                    if let Errand::Write(reservation) = errand {
                        self.shard.cancel(reservation);
                    }
                    self.fail_waiting(fetched)?;
                }
            }
        }
    }

    /// Has what a READ lacks fetched from the store.
    fn fetch(&mut self, fetched: Fetched) {
        let volume = Arc::clone(self.queues[fetched.slot as usize].export.volume());
        let Some(answer) = volume.fetch(fetched.request.range) else {
            // It has been written meanwhile: the next turn reads it.
            return self.arrived.borrow_mut().push_back((fetched, Ok(None)));
        };
        let arrived = Rc::clone(&self.arrived);
        self.executor.spawn(async move {
            let answer = tokio::select! {
                biased;
                answer = answer => match answer {
                    Ok(answer) => answer.map(Some),
                    // The daemon stops: the request stays the kernel's, which asks the next daemon.
                    Err(_) => return,
                },
                () = volume.waits_ended() => Err(IoError::Detached),
            };
            arrived.borrow_mut().push_back((fetched, answer));
        });
    }

    fn resume_arrived(&mut self) -> io::Result<()> {
        loop {
            let next = self.arrived.borrow_mut().pop_front();
            match next {
                None => return Ok(()),
                Some((fetched, Ok(fill))) => self.take_buffer(fetched, Errand::Read(fill))?,
                Some((fetched, Err(error))) => {
                    self.finish(InFlight { fetched, buffer: Buffer::None }, Err(Failure::Cache(error)))?;
                }
            }
        }
    }

    /// Hands a READ or WRITE with its buffer to the cache.
    fn transfer(&mut self, fetched: Fetched, errand: Errand, buffer: Buffer) -> io::Result<()> {
        let queue = &self.queues[fetched.slot as usize];
        let volume = queue.export.volume();
        let mut token = InFlight { fetched, buffer };
        let reservation = match errand {
            Errand::Write(reservation) => reservation,
            Errand::Read(fill) => {
                self.shard.read(volume, fetched.request.range, fill.as_ref(), token);
                return Ok(());
            }
        };
        if let Buffer::Slot(slot) = &mut token.buffer {
            let bytes = &mut slot[..fetched.data_bytes()];
            let copied = match queue.driver.stable_buffer(fetched.tag) {
                Some(stable) => copy(&Buffer::Stable(stable).bytes()[..bytes.len()], bytes),
                None => queue.driver.copy_in(fetched.tag, bytes),
            };
            if let Err(error) = copied {
                self.shard.cancel(reservation);
                return self.finish(token, Err(Failure::Copy(error)));
            }
        }
        self.shard.write(volume, fetched.request.range, fetched.request.fua, reservation, token);
        Ok(())
    }

    fn submit_wants(&mut self) {
        for want in self.shard.wants() {
            match want {
                Want::Append { op, file, offset, parts } => {
                    let target = Target::SegmentAppend(file);
                    let write = match self.appends {
                        Appends::RingFixed => Op::writev_fixed(target, offset, parts),
                        Appends::Pwrite | Appends::Ring => Op::writev(target, offset, parts),
                    };
                    self.ring.start(write.whole(), Waiting::Append(op))
                }
                Want::Sync { op, file } => self.ring.start(Op::sync_data(file), Waiting::Sync(op)),
                Want::Read { op, file, offset, buffer } => {
                    self.ring.start(Op::read(file, offset, buffer).whole(), Waiting::Read(op))
                }
            };
        }
    }

    fn finish_completed(&mut self) -> io::Result<()> {
        let mut done = std::mem::take(&mut self.done);
        done.extend(self.shard.completed());
        self.advanced = !done.is_empty();
        for (token, result) in done.drain(..) {
            match result {
                Err(IoError::Remote) => {
                    let fetched = token.fetched;
                    drop(token);
                    self.fetch(fetched);
                }
                result => self.finish(token, result.map_err(Failure::Cache))?,
            }
        }
        self.done = done;
        Ok(())
    }

    /// Gives a request's result to the kernel and lets go of its buffer.
    fn finish(&mut self, mut token: InFlight, mut result: Result<(), Failure>) -> io::Result<()> {
        let Fetched { slot, tag, request, started } = token.fetched;
        let bytes = token.fetched.data_bytes();
        let queue = &self.queues[slot as usize];
        if result.is_ok() && request.operation == Operation::Read && matches!(token.buffer, Buffer::Slot(_)) {
            result = queue.driver.copy_out(tag, &token.buffer()[..bytes]).map_err(Failure::Copy);
        }
        drop(token);
        if request.operation == Operation::Write {
            queue.export.volume().settled(bytes as u64);
        }
        let nanos = u64::try_from(self.now.elapsed().saturating_add(self.now - started).as_nanos())
            .unwrap_or(u64::MAX);
        match &result {
            Ok(()) => count(&queue.stats, request.operation, bytes as u64, request.range.bytes(), nanos),
            Err(failure) => self.report(slot, tag, Some(request.operation), failure),
        }
        // REQUEST_BYTES_MAX fits in 32 bits.
        let moved = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.commit(slot, tag, result.as_ref().map(|()| moved))
    }

    fn commit(&mut self, slot: u32, tag: u16, result: Result<u32, &Failure>) -> io::Result<()> {
        let queue = &mut self.queues[slot as usize];
        queue.stats.in_flight.sub(1);
        let commit = queue.driver.commit(tag, slot, result);
        self.command(commit, TagId { slot, tag })
    }

    fn report(&self, slot: u32, tag: u16, operation: Option<Operation>, failure: &Failure) {
        let queue = &self.queues[slot as usize];
        let (device_id, queue_id) = queue.driver.ids();
        match operation {
            Some(Operation::Read) => queue.stats.read_errors.add(1),
            Some(Operation::Flush) => queue.stats.flush_errors.add(1),
            _ => queue.stats.write_errors.add(1),
        }
        if matches!(failure, Failure::Cache(IoError::Detached)) {
            // Said once for all of them.
            return;
        }
        log_failure(&queue.export, (device_id, queue_id, tag), operation, failure);
    }
}

/// Logs that a request of `export` failed, one of many.
pub(super) fn log_failure(
    export: &Export,
    (device_id, queue_id, tag): (u32, u16, u16),
    operation: Option<Operation>,
    failure: &Failure,
) {
    let Some(suppressed) = export.failures().pass() else { return };
    tracing::error!(
        export = export.name(),
        device_id,
        queue_id,
        tag,
        operation = ?operation,
        error = failure as &dyn std::error::Error,
        suppressed,
        "request failed"
    );
}

#[expect(clippy::unnecessary_wraps, reason = "as the other way to copy, which can fail")]
fn copy(from: &[u8], to: &mut [u8]) -> io::Result<()> {
    to.copy_from_slice(from);
    Ok(())
}
