//! The queue of waiters for slots, oldest first.
//!
//! Owns each waiter's size class, time of arrival and waker. Does not own memory and runs no waker: wakers are handed out, so
//! that the caller can run and drop wakers outside every borrow. Invariants: grants are made in order of arrival only; a waiter
//! leaves by claiming the grant or by cancelling, and both give back the memory granted, so that neither memory nor a place is
//! lost.

use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use super::buddy::{Chunk, SizeClass};

/// A place in the queue, good until the waiter has claimed the grant or cancelled.
#[derive(Debug)]
pub(super) struct Ticket(usize);

/// The remains of a waiter who left the queue.
#[derive(Debug)]
pub(super) struct Left {
    /// Memory granted and not claimed.
    pub(super) granted: Option<Chunk>,
    pub(super) since: Instant,
    /// To be woken or dropped outside every borrow.
    pub(super) waker: Option<Waker>,
}

#[derive(Debug)]
struct Waiter {
    class: SizeClass,
    since: Instant,
    waker: Option<Waker>,
    /// Memory granted, for the waiter to claim. A waiter with a grant is out of the list.
    granted: Option<Chunk>,
    older: Option<usize>,
    newer: Option<usize>,
}

/// All waiters of a pool.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    slab: Slab<Waiter>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Waiters {
    /// Whether nobody waits. A waiter with an unclaimed grant does not wait.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    /// Adds a waiter at the end of the queue.
    pub(super) fn join(&mut self, class: SizeClass, since: Instant) -> Ticket {
        let older = self.newest;
        let key = self.slab.insert(Waiter { class, since, waker: None, granted: None, older, newer: None });
        self.link(older, Some(key));
        self.link(Some(key), None);
        Ticket(key)
    }

    /// The size class for which the oldest waiter waits.
    pub(super) fn oldest_class(&self) -> Option<SizeClass> {
        self.slab.get(self.oldest?).map(|waiter| waiter.class)
    }

    /// Grants `chunk` to the oldest waiter: wake the waiter then. With nobody in the queue the chunk comes back.
    pub(super) fn grant(&mut self, chunk: Chunk) -> Result<Left, Chunk> {
        let Some(waiter) = self.oldest.and_then(|key| self.slab.get_mut(key)) else { return Err(chunk) };
        waiter.granted = Some(chunk);
        let left = Left { granted: None, since: waiter.since, waker: waiter.waker.take() };
        let (older, newer) = (waiter.older, waiter.newer);
        self.link(older, newer);
        Ok(left)
    }

    /// Whether `waker` has to be set, because the waiter is not granted yet and would wake somebody else or nobody.
    pub(super) fn needs_waker(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.slab.get(ticket.0).is_some_and(|waiter| {
            waiter.granted.is_none() && !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        })
    }

    /// Sets the waker of a waiter. Returns the waker not needed any more, to be dropped outside every borrow.
    pub(super) fn set_waker(&mut self, ticket: &Ticket, waker: Waker) -> Option<Waker> {
        match self.slab.get_mut(ticket.0) {
            Some(waiter) => waiter.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Claims the grant, if there is one, together with the waker not needed any more. The ticket is void then.
    pub(super) fn claim(&mut self, ticket: &Ticket) -> Option<(Chunk, Option<Waker>)> {
        let chunk = self.slab.get_mut(ticket.0)?.granted.take()?;
        Some((chunk, self.slab.remove(ticket.0).waker))
    }

    /// Gives up a place in the queue.
    pub(super) fn cancel(&mut self, ticket: &Ticket) -> Option<Left> {
        let Waiter { since, waker, granted, older, newer, .. } = self.slab.try_remove(ticket.0)?;
        if granted.is_none() {
            self.link(older, newer);
        }
        Some(Left { granted, since, waker })
    }

    /// Makes two waiters neighbours; nobody stands for an end of the queue.
    fn link(&mut self, older: Option<usize>, newer: Option<usize>) {
        match older.and_then(|key| self.slab.get_mut(key)) {
            Some(waiter) => waiter.newer = newer,
            None => self.oldest = newer,
        }
        match newer.and_then(|key| self.slab.get_mut(key)) {
            Some(waiter) => waiter.older = older,
            None => self.newest = older,
        }
    }
}
