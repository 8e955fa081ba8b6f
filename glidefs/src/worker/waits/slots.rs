//! Requests which wait for a slot of the worker's pool.
//!
//! Owns the pool and the requests whose wait has ended. A waiting request is a task of the executor with a place in the pool's
//! queue of waiters (`buffer`): first in, first out for an export, in order of the call of [`SlotWaits::wait`]; exports by
//! weighted fair queueing. Invariant: a WRITE in here has log space, which must be given back when the write fails.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::buffer::{Pool, Slot};
use crate::cache::Volume;
use crate::worker::executor::Executor;
use crate::worker::requests::{Errand, TagRequest};

/// A READ or WRITE whose wait for a slot has ended; without a slot when the waits of the export were ended.
pub type Granted = (TagRequest, Errand, Option<Slot>);

/// The pool, and each READ and WRITE that waits for a slot.
pub struct SlotWaits {
    pool: Pool,
    granted: Rc<RefCell<VecDeque<Granted>>>,
}

impl SlotWaits {
    pub fn new(pool: Pool) -> Self {
        Self { pool, granted: Rc::default() }
    }

    /// A slot for `bytes` bytes, if the pool has one at once and no request waits.
    #[inline]
    pub fn try_take(&self, bytes: usize) -> Option<Slot> {
        self.pool.try_acquire(bytes)
    }

    /// Has a request wait for a slot.
    pub fn wait(
        &self,
        executor: &Executor,
        request: TagRequest,
        errand: Errand,
        volume: &Arc<Volume>,
    ) -> io::Result<()> {
        let owner = u64::from(volume.id().0);
        let acquire = self.pool.acquire(request.data_bytes(), owner, volume.weight());
        let acquire = acquire.map_err(io::Error::other)?;
        // Made here: the waits of the volume may be ended before the task is polled first.
        let stop = volume.next_end_of_waits();
        let granted = Rc::clone(&self.granted);
        executor.spawn(async move {
            let slot = tokio::select! {
                biased;
                slot = acquire => Some(slot),
                () = stop => None,
            };
            granted.borrow_mut().push_back((request, errand, slot));
        });
        Ok(())
    }

    /// The request whose wait ended first.
    pub fn next(&self) -> Option<Granted> {
        self.granted.borrow_mut().pop_front()
    }

    /// Whether [`next`](Self::next) has a request.
    pub fn has_next(&self) -> bool {
        !self.granted.borrow().is_empty()
    }
}
