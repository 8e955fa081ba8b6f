//! Slots: who may have memory, and in which order.
//!
//! Owns the order of service and the counters. Does not own memory ([`super::arena`]) or the choice of where in it
//! ([`super::buddy`]). Invariants: while anybody waits, memory that comes free goes to the oldest waiter and to nobody
//! else, at the moment it comes free; no waker is run, cloned or dropped while the state is borrowed, because a waker may
//! come back into the pool.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::arena::{Arena, Lease, Lender};
use super::buddy::{Buddy, Chunk, SizeClass};
use super::waiters::{Left, Ticket, Waiters};
use super::{BufferError, SLOTS_MAX};
use crate::observe::io::WorkerStats;

/// A worker's buffer pool. Clones share it; it stays on the thread that made it.
#[derive(Clone)]
pub struct Pool {
    arena: Rc<Arena<Ledger>>,
}

/// Who has memory and who waits for it.
struct Ledger {
    stats: Arc<WorkerStats>,
    state: RefCell<State>,
}

struct State {
    free: Buddy,
    waiters: Waiters,
}

impl Pool {
    /// Makes a pool of `slots` × 128 KiB and touches every page of it from this thread, which decides where the memory is:
    /// call it on the worker's thread after pinning. The counters are `stats.pool`.
    pub fn new(slots: usize, stats: Arc<WorkerStats>) -> Result<Self, BufferError> {
        // The arena refuses a count beyond the limit.
        let blocks = u32::try_from(slots.min(SLOTS_MAX)).map_err(|_| BufferError::SlotCount { slots })?;
        let state = RefCell::new(State { free: Buddy::new(blocks), waiters: Waiters::default() });
        let arena = Arena::new(slots, Ledger { stats, state })?;
        arena.lender().stats.pool.arena_bytes.add(arena.extent().1 as u64);
        Ok(Self { arena })
    }

    /// A slot for `len` bytes, if there is one at once and nobody waits. `None` also for a length of 0 or above
    /// [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX): [`acquire`](Self::acquire) tells that apart.
    #[inline]
    pub fn try_acquire(&self, len: usize) -> Option<Slot> {
        let class = SizeClass::for_len(len).ok()?;
        self.arena.lender().try_take(class).map(|chunk| slot(&self.arena, chunk))
    }

    /// A slot for `len` bytes when its turn comes, strictly in the order in which this was *called*: the place in the
    /// queue is taken here, not at the first poll. So the future must be polled or dropped; dropping it passes the turn on.
    ///
    /// # Errors
    /// When `len` is 0 or above [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX).
    pub fn acquire(&self, len: usize) -> Result<Acquire, BufferError> {
        let class = SizeClass::for_len(len)?;
        let ledger = self.arena.lender();
        let state = match ledger.try_take(class) {
            Some(chunk) => AcquireState::Ready(slot(&self.arena, chunk)),
            None => AcquireState::Waiting(ledger.join(class)),
        };
        Ok(Acquire { arena: Rc::clone(&self.arena), state })
    }

    /// Address and length in bytes of the arena, to register it with a ring. It stays where it is while the pool or any
    /// slot lives.
    pub fn arena(&self) -> (*const u8, usize) {
        self.arena.extent()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("arena_bytes", &self.arena().1)
            .field("live_bytes", &self.arena.lender().stats.pool.live_bytes.get())
            .finish_non_exhaustive()
    }
}

impl Ledger {
    /// Takes memory past no waiter.
    #[inline]
    fn try_take(&self, class: SizeClass) -> Option<Chunk> {
        let mut state = self.state.borrow_mut();
        if !state.waiters.is_empty() {
            return None;
        }
        self.take(&mut state, class)
    }

    /// Takes memory and counts it.
    #[inline]
    fn take(&self, state: &mut State, class: SizeClass) -> Option<Chunk> {
        let chunk = state.free.take(class)?;
        let pool = &self.stats.pool;
        pool.live_bytes.add(class.bytes() as u64);
        pool.live_bytes_max.raise(pool.live_bytes.get());
        Some(chunk)
    }

    #[cold]
    fn join(&self, class: SizeClass) -> Ticket {
        self.stats.pool.waits.add(1);
        self.state.borrow_mut().waiters.join(class, Instant::now())
    }

    /// Gives memory back and lets the oldest waiters have it.
    #[inline]
    fn give(&self, chunk: Chunk) {
        self.stats.pool.live_bytes.sub(chunk.class().bytes() as u64);
        let waited_for = {
            let mut state = self.state.borrow_mut();
            state.free.give(chunk);
            !state.waiters.is_empty()
        };
        if waited_for {
            self.serve();
        }
    }

    /// Grants memory to waiters, oldest first, until one has to wait on or none is left.
    #[cold]
    fn serve(&self) {
        while let Some(served) = self.serve_one() {
            self.count_wait(served.since);
            if let Some(waker) = served.waker {
                waker.wake();
            }
        }
    }

    /// Grants memory to the oldest waiter, unless nobody waits or the memory does not suffice.
    fn serve_one(&self) -> Option<Left> {
        let mut state = self.state.borrow_mut();
        let class = state.waiters.oldest_class()?;
        let chunk = self.take(&mut state, class)?;
        match state.waiters.grant(chunk) {
            Ok(served) => Some(served),
            Err(chunk) => {
                self.stats.pool.live_bytes.sub(chunk.class().bytes() as u64);
                state.free.give(chunk);
                None
            }
        }
    }

    /// What `ticket` was granted; if nothing was yet, `waker` will be woken when it is.
    fn fetch(&self, ticket: &Ticket, waker: &Waker) -> Option<Chunk> {
        // The borrows are apart, because cloning and dropping a waker runs code that is not ours.
        let needs_waker = self.state.borrow().waiters.needs_waker(ticket, waker);
        if needs_waker {
            let fresh = waker.clone();
            let stale = self.state.borrow_mut().waiters.set_waker(ticket, fresh);
            drop(stale);
        }
        let fetched = self.state.borrow_mut().waiters.fetch(ticket);
        fetched.map(|(chunk, _unused_waker)| chunk)
    }

    /// Gives up a place in the queue, and whatever it was granted.
    fn cancel(&self, ticket: &Ticket) {
        let left = self.state.borrow_mut().waiters.cancel(ticket);
        let Some(left) = left else { return };
        drop(left.waker);
        if let Some(chunk) = left.granted {
            self.give(chunk);
        } else {
            self.count_wait(left.since);
            // It may have been the head, and the next one may ask for less.
            self.serve();
        }
    }

    fn count_wait(&self, since: Instant) {
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats.pool.wait_nanos.add(nanos);
    }
}

impl Lender for Ledger {
    #[inline]
    fn returned(&self, chunk: Chunk) {
        self.give(chunk);
    }
}

/// Memory of one size class, the sole access to it until it is dropped: then the oldest waiters have it.
///
/// It reads as whatever its last holder left there, be that another export's data: hand on only bytes you have written.
/// It keeps the arena alive, so it may outlive its pool.
pub struct Slot {
    lease: Lease<Ledger>,
    /// Bytes of it that are shown.
    len: usize,
}

/// Makes the slot of memory that was taken.
#[inline]
fn slot(arena: &Rc<Arena<Ledger>>, chunk: Chunk) -> Slot {
    arena.lender().stats.pool.acquires.add(1);
    let lease = arena.lease(chunk);
    Slot { len: lease.len(), lease }
}

impl Slot {
    /// Shows only the first `len` bytes from now on, where it shows more. It takes as much of the arena as before.
    #[inline]
    pub fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes it takes: 4, 16, 64 or 128 KiB.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.lease.len()
    }

    /// Distance in bytes from the start of the arena.
    #[inline]
    pub fn offset(&self) -> usize {
        self.lease.offset()
    }
}

impl Deref for Slot {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // Never more than the lease has.
        &self.lease[..self.len]
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.lease[..self.len]
    }
}

impl AsMut<[u8]> for Slot {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("offset", &self.offset())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// A place in the queue for a slot, from [`Pool::acquire`]. Dropping it passes the turn on, and with it memory that was
/// granted and not fetched yet.
#[must_use = "it holds a place in the queue, and everybody behind it waits until it is polled or dropped"]
pub struct Acquire {
    arena: Rc<Arena<Ledger>>,
    state: AcquireState,
}

enum AcquireState {
    Ready(Slot),
    Waiting(Ticket),
    Done,
}

impl Future for Acquire {
    type Output = Slot;

    /// # Panics
    /// When polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Slot> {
        let this = &mut *self;
        if let AcquireState::Waiting(ticket) = &this.state {
            let Some(chunk) = this.arena.lender().fetch(ticket, cx.waker()) else { return Poll::Pending };
            this.state = AcquireState::Done;
            return Poll::Ready(slot(&this.arena, chunk));
        }
        match std::mem::replace(&mut this.state, AcquireState::Done) {
            AcquireState::Ready(slot) => Poll::Ready(slot),
            AcquireState::Waiting(_) | AcquireState::Done => panic!("Acquire was polled after it was ready"),
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let AcquireState::Waiting(ticket) = &self.state {
            self.arena.lender().cancel(ticket);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            AcquireState::Ready(_) => "ready",
            AcquireState::Waiting(_) => "waiting",
            AcquireState::Done => "done",
        };
        f.debug_struct("Acquire").field("state", &state).finish_non_exhaustive()
    }
}
