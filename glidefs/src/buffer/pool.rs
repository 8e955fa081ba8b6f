//! Slots: who may have memory, and in which order.
//!
//! Owns the order of service and the counters. Does not own memory ([`super::arena`]) or the choice of pages ([`super::buddy`]).
//! Invariants: while a request waits, freed memory goes to the next waiter (`waiters`) and to nobody else, at the moment the memory
//! comes free; no waker is run, cloned or dropped while the state is borrowed, because a waker may come back into the pool.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::arena::{Arena, Lease, Lender};
use super::buddy::{Buddy, Chunk, SizeClass};
use super::limits::{BufferError, SLOTS_MAX};
use super::waiters::{Left, Ticket, Waiters};
use crate::observe::io::WorkerStats;

/// A worker's buffer pool. Clones share the pool, which stays on the thread that made the pool.
#[derive(Clone)]
pub struct Pool {
    arena: Rc<Arena<Ledger>>,
}

/// The owners of memory, and the waiters.
struct Ledger {
    stats: Arc<WorkerStats>,
    state: RefCell<State>,
}

struct State {
    free: Buddy,
    waiters: Waiters,
}

impl Pool {
    /// Makes a pool of `slots` × 128 KiB and touches every page from this thread, which places the memory: call this on the
    /// worker's thread after pinning. The counters are `stats.pool`.
    pub fn new(slots: usize, stats: Arc<WorkerStats>) -> Result<Self, BufferError> {
        // The arena refuses a count beyond the limit.
        let tiles = u32::try_from(slots.min(SLOTS_MAX)).map_err(|_| BufferError::SlotCount { slots })?;
        let state = RefCell::new(State { free: Buddy::new(tiles), waiters: Waiters::default() });
        let arena = Arena::new(slots, Ledger { stats, state })?;
        arena.lender.stats.pool.arena_bytes.add(arena.extent().1 as u64);
        Ok(Self { arena })
    }

    /// A slot for `len` bytes, if there is one at once and nobody waits. `None` also for a length of 0 or above
    /// [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX): [`acquire`](Self::acquire) tells the cases apart.
    #[inline]
    pub fn try_acquire(&self, len: usize) -> Option<Slot> {
        let class = SizeClass::for_len(len).ok()?;
        self.arena.lender.try_take(class).map(|chunk| slot(&self.arena, chunk))
    }

    /// A slot for `len` bytes for `owner`. The slots of one owner come strictly in the order of *calls* of this function; owners
    /// who wait take turns by `weight`. A call takes the place in the queue, not the first poll. So the future must be polled or
    /// dropped; dropping the future gives the place up.
    ///
    /// # Errors
    /// When `len` is 0 or above [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX).
    pub fn acquire(&self, len: usize, owner: u64, weight: u16) -> Result<Acquire, BufferError> {
        let class = SizeClass::for_len(len)?;
        let ledger = &self.arena.lender;
        let state = match ledger.try_take(class) {
            Some(chunk) => AcquireState::Ready(slot(&self.arena, chunk)),
            None => AcquireState::Waiting(ledger.join(class, owner, weight)),
        };
        Ok(Acquire { arena: Rc::clone(&self.arena), state })
    }

    /// Address and length in bytes of the arena, for the registration with a ring. The arena does not move while the pool or any
    /// slot lives.
    pub fn arena(&self) -> (*const u8, usize) {
        self.arena.extent()
    }
}

crate::units::debug_by_name!(Pool);

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

    /// Takes memory and counts the memory.
    #[inline]
    fn take(&self, state: &mut State, class: SizeClass) -> Option<Chunk> {
        let chunk = state.free.take(class)?;
        let pool = &self.stats.pool;
        pool.live_bytes.add(class.bytes() as u64);
        pool.live_bytes_max.raise(pool.live_bytes.get());
        Some(chunk)
    }

    #[cold]
    fn join(&self, class: SizeClass, owner: u64, weight: u16) -> Ticket {
        self.stats.pool.waits.add(1);
        self.state.borrow_mut().waiters.join(class, owner, weight, Instant::now())
    }

    /// Grants memory to one waiter after the other, until one has to wait on or none is left.
    #[cold]
    fn serve(&self) {
        while let Some(served) = self.serve_one() {
            self.count_wait(served.since);
            if let Some(waker) = served.waker {
                waker.wake();
            }
        }
    }

    /// Grants memory to the next waiter, unless nobody waits or the memory does not suffice.
    fn serve_one(&self) -> Option<Left> {
        let mut state = self.state.borrow_mut();
        let class = state.waiters.next_class()?;
        let chunk = self.take(&mut state, class)?;
        match state.waiters.grant(chunk) {
            Ok(served) => Some(served),
            Err(chunk) => {
                self.stats.pool.live_bytes.sub(chunk.class.bytes() as u64);
                state.free.give(chunk);
                None
            }
        }
    }

    /// The memory granted to `ticket`; if none was granted yet, the grant will wake `waker`.
    fn claim(&self, ticket: &Ticket, waker: &Waker) -> Option<Chunk> {
        // Three borrows, because cloning and dropping a waker runs foreign code.
        let needs_waker = self.state.borrow().waiters.needs_waker(ticket, waker);
        if needs_waker {
            let fresh = waker.clone();
            let stale = self.state.borrow_mut().waiters.set_waker(ticket, fresh);
            drop(stale);
        }
        self.state.borrow_mut().waiters.claim(ticket)
    }

    /// Gives up a place in the queue, and the memory granted.
    fn cancel(&self, ticket: &Ticket) {
        let left = self.state.borrow_mut().waiters.cancel(ticket);
        let Some(left) = left else { return };
        drop(left.waker);
        if let Some(chunk) = left.granted {
            self.returned(chunk);
        } else {
            self.count_wait(left.since);
            // The leaver may have been the next waiter, and the one behind may ask for less.
            self.serve();
        }
    }

    fn count_wait(&self, since: Instant) {
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats.pool.wait_nanos.add(nanos);
    }
}

impl Lender for Ledger {
    /// Gives memory back, and serves waiters.
    #[inline]
    fn returned(&self, chunk: Chunk) {
        self.stats.pool.live_bytes.sub(chunk.class.bytes() as u64);
        let waited_for = {
            let mut state = self.state.borrow_mut();
            state.free.give(chunk);
            !state.waiters.is_empty()
        };
        if waited_for {
            self.serve();
        }
    }
}

/// Memory of one size class. A slot is the sole access to its memory until dropped: then the next waiters have the memory.
///
/// A new slot holds the bytes of its last holder, perhaps another export's data: hand on only bytes you have written. A slot
/// keeps the arena alive, so a slot may outlive the pool.
pub struct Slot {
    lease: Lease<Ledger>,
    /// Number of bytes shown.
    len: usize,
}

/// Makes a slot of the memory taken.
#[inline]
fn slot(arena: &Rc<Arena<Ledger>>, chunk: Chunk) -> Slot {
    arena.lender.stats.pool.acquires.add(1);
    let lease = arena.lease(chunk);
    Slot { len: lease.len(), lease }
}

impl Slot {
    /// Shows at most the first `len` bytes from now on. The slot takes as much of the arena as before.
    #[inline]
    pub fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
impl Slot {
    /// Bytes of the arena which the slot takes: 4, 16, 64 or 128 KiB.
    pub fn capacity(&self) -> usize {
        self.lease.len()
    }

    /// Distance in bytes from the start of the arena.
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

crate::units::debug_by_name!(Slot);

/// A place in the queue for a slot, from [`Pool::acquire`]. Dropping the future gives the place up, and any memory granted but
/// not claimed yet.
#[must_use = "an Acquire holds a place in the queue: everybody behind waits until the Acquire is polled or dropped"]
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
    /// When polled again after the slot was handed out.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Slot> {
        let this = &mut *self;
        if let AcquireState::Waiting(ticket) = &this.state {
            let Some(chunk) = this.arena.lender.claim(ticket, cx.waker()) else { return Poll::Pending };
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
            self.arena.lender.cancel(ticket);
        }
    }
}

crate::units::debug_by_name!(Acquire);
