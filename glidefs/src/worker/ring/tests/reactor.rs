//! Completions that tests await.
//!
//! Owns the link between an operation and the waiting future, and a reactor which drives a ring of such operations on one
//! thread. Does not own memory: the ring has the memory of an operation under way, whether or not anybody waits.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::worker::ring::kernel::Ring;
use crate::worker::ring::operation::{Memory, Op};
use crate::worker::ring::under_way::{Completion, Event};

#[derive(Debug, Default)]
struct Shared {
    outcome: Option<(Memory, io::Result<usize>)>,
    waker: Option<Waker>,
}

/// A promise of a completion, to be the context of an operation, and the future which the promise resolves.
pub fn promise() -> (Promise, Pending) {
    let shared = Rc::new(RefCell::default());
    (Promise { shared: Rc::clone(&shared) }, Pending { shared })
}

/// The ring's end: to be resolved with the completion.
#[derive(Debug)]
pub struct Promise {
    shared: Rc<RefCell<Shared>>,
}

impl Promise {
    /// Hands the outcome to whoever waits. If nobody does any more, the memory is freed here.
    pub fn resolve(self, result: io::Result<usize>, memory: Memory) {
        let waker = {
            let mut shared = self.shared.borrow_mut();
            shared.outcome = Some((memory, result));
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The awaited end of an operation: gives the memory back, with the bytes moved or the cause of the failure.
///
/// Dropping the future neither cancels the operation nor frees the memory: both end with the completion.
#[must_use = "an operation goes on without its future, but nobody learns the result"]
#[derive(Debug)]
pub struct Pending {
    shared: Rc<RefCell<Shared>>,
}

impl Future for Pending {
    type Output = (Memory, io::Result<usize>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.shared.borrow_mut();
        if let Some(outcome) = shared.outcome.take() {
            return Poll::Ready(outcome);
        }
        if !shared.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            shared.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A ring whose operations are awaited, all on one thread. Clones share the ring.
///
/// Operations reach the kernel in batches, when the reactor [turns](Self::turn).
#[derive(Clone)]
pub struct Reactor {
    inner: Rc<Inner>,
}

struct Inner {
    ring: RefCell<Ring<Promise>>,
    events: RefCell<Vec<Event<Promise>>>,
}

impl Reactor {
    /// A reactor which drives the operations of `ring`.
    pub fn new(ring: Ring<Promise>) -> Self {
        Self { inner: Rc::new(Inner { ring: RefCell::new(ring), events: RefCell::default() }) }
    }

    /// Starts `op`, at the next turn at the latest.
    pub fn start(&self, op: Op) -> Pending {
        let (promise, pending) = promise();
        self.inner.ring.borrow_mut().start(op, promise);
        pending
    }

    /// Gives access to the ring, to register files or an arena.
    pub fn with_ring<T>(&self, work: impl FnOnce(&mut Ring<Promise>) -> T) -> T {
        work(&mut self.inner.ring.borrow_mut())
    }

    /// Submits the operations started, waits at most for `timeout` for a completion, and wakes the waiting futures.
    pub fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.ring.borrow_mut().submit_and_wait(timeout)?;
        self.inner.deliver();
        Ok(())
    }

    /// Drives `future` and its operations to the end.
    ///
    /// # Errors
    /// When the ring fails. A future which waits for anything else than operations of this reactor is never woken.
    pub fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        let mut future = pin!(future);
        // The future is polled after every turn, so nobody has to be woken.
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            self.turn(None)?;
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.inner.ring.borrow().under_way();
        f.debug_struct("Reactor").field("under_way", &under_way).finish_non_exhaustive()
    }
}

impl Inner {
    fn deliver(&self) {
        let mut events = std::mem::take(&mut *self.events.borrow_mut());
        self.ring.borrow_mut().drain(&mut events);
        // The ring is not borrowed here: a waker or a dropped buffer may come back into the reactor.
        for event in events.drain(..) {
            if let Event::Operation(Completion { context, result, memory }) = event {
                context.resolve(result, memory);
            }
        }
        *self.events.borrow_mut() = events;
    }
}
