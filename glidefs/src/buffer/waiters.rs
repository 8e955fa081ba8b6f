//! The queue of waiters for slots.
//!
//! Owns each waiter's size class, time of arrival and waker, and the order of grants. Does not own memory and runs no waker:
//! wakers are handed out, so that the caller can run and drop wakers outside every borrow.
//!
//! # The order which is guaranteed
//!
//! - The waiters of one owner are granted memory in the order of arrival, whatever their sizes.
//! - Owners are served by weighted fair queueing ([`crate::fair`]), with the bytes of the size class as the cost: of two owners who
//!   always wait, each gets bytes in proportion to the weight.
//! - One waiter is the next one. Memory is granted to nobody else until the next one has enough memory, so a large waiter is not
//!   starved by small ones. No later arrival takes the place of the next one.
//! - While anybody waits, nobody gets memory without waiting (`pool`).
//!
//! A waiter leaves by claiming the grant or by cancelling, and both give back the memory granted, so that neither memory nor a
//! place is lost.

use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use super::buddy::{Chunk, SizeClass};
use crate::fair::{Fair, Place};

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
    /// None once memory is granted.
    waker: Option<Waker>,
    wait: Wait,
}

#[derive(Debug)]
enum Wait {
    InQueue(Place),
    /// Memory for the waiter to claim.
    Granted(Chunk),
}

/// All waiters of a pool.
#[derive(Debug)]
pub(super) struct Waiters {
    slab: Slab<Waiter>,
    /// Keys of the slab, by owner.
    queue: Fair<u64, usize>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { slab: Slab::new(), queue: Fair::new() }
    }
}

impl Waiters {
    /// Whether nobody waits. A waiter with an unclaimed grant does not wait.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a waiter behind all others of `owner`.
    pub(super) fn join(&mut self, class: SizeClass, owner: u64, weight: u16, since: Instant) -> Ticket {
        let entry = self.slab.vacant_entry();
        let key = entry.key();
        let place = self.queue.push(owner, weight, class.bytes() as u64, key);
        entry.insert(Waiter { class, since, waker: None, wait: Wait::InQueue(place) });
        // Decides at once who is the next one, so that no later arrival is.
        self.queue.peek();
        Ticket(key)
    }

    /// The size class for which the next waiter waits.
    pub(super) fn next_class(&mut self) -> Option<SizeClass> {
        let (_, &key) = self.queue.peek()?;
        self.slab.get(key).map(|waiter| waiter.class)
    }

    /// Grants `chunk` to the next waiter: wake the waiter then. With nobody in the queue the chunk comes back.
    pub(super) fn grant(&mut self, chunk: Chunk) -> Result<Left, Chunk> {
        let Some(waiter) = self.queue.pop().and_then(|key| self.slab.get_mut(key)) else { return Err(chunk) };
        waiter.wait = Wait::Granted(chunk);
        Ok(Left { granted: None, since: waiter.since, waker: waiter.waker.take() })
    }

    /// Whether `waker` has to be set, because the waiter is not granted yet and would wake somebody else or nobody.
    pub(super) fn needs_waker(&self, ticket: &Ticket, waker: &Waker) -> bool {
        self.slab.get(ticket.0).is_some_and(|waiter| {
            matches!(waiter.wait, Wait::InQueue(_))
                && !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        })
    }

    /// Sets the waker of a waiter. Returns the waker not needed any more, to be dropped outside every borrow.
    pub(super) fn set_waker(&mut self, ticket: &Ticket, waker: Waker) -> Option<Waker> {
        match self.slab.get_mut(ticket.0).filter(|waiter| matches!(waiter.wait, Wait::InQueue(_))) {
            Some(waiter) => waiter.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Claims the grant, if there is one. The ticket is void then.
    pub(super) fn claim(&mut self, ticket: &Ticket) -> Option<Chunk> {
        let Wait::Granted(_) = self.slab.get(ticket.0)?.wait else { return None };
        let Wait::Granted(chunk) = self.slab.remove(ticket.0).wait else { return None };
        Some(chunk)
    }

    /// Gives up a place in the queue.
    pub(super) fn cancel(&mut self, ticket: &Ticket) -> Option<Left> {
        let Waiter { since, waker, wait, .. } = self.slab.try_remove(ticket.0)?;
        let granted = match wait {
            Wait::Granted(chunk) => Some(chunk),
            Wait::InQueue(place) => {
                self.queue.remove(&place);
                None
            }
        };
        Some(Left { granted, since, waker })
    }
}
