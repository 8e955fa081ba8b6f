//! Requests which wait for a slot of the worker's pool, or for data from the store.
//!
//! Owns the pool, and the requests whose wait has ended, in the order of the ends. A waiting request is a task of the executor. One for
//! a slot has a place in the pool's queue of waiters (`buffer`): first in, first out for an export, in order of the call of
//! [`TaskWaits::for_slot`]; exports by weighted fair queueing. One for data has no slot; the GET itself runs on the control threads
//! (`Volume::fetch`). Invariant: a WRITE in here has log space, which must be given back when the write fails.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::stop;
use crate::buffer::{Pool, Slot};
use crate::cache::{Fill, IoError, Volume};
use crate::worker::executor::Executor;
use crate::worker::requests::{Errand, TagRequest};

/// A request whose wait has ended.
pub enum Waited {
    /// A READ or WRITE which waited for a slot; without a slot when the waits of the export were ended.
    Slot(TagRequest, Errand, Option<Slot>),
    /// A READ which waited for the store, with the data.
    Store(TagRequest, Result<Fill, IoError>),
}

/// Each request that waits as a task.
pub struct TaskWaits {
    pool: Pool,
    executor: Executor<Waited>,
    ended: VecDeque<Waited>,
}

impl TaskWaits {
    /// `notify` is called as [`Executor::new`] says.
    pub fn new(pool: Pool, notify: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { pool, executor: Executor::new(notify), ended: VecDeque::new() }
    }

    /// A slot for `bytes` bytes, if the pool has one at once and no request waits.
    #[inline]
    pub fn try_take(&self, bytes: usize) -> Option<Slot> {
        self.pool.try_acquire(bytes)
    }

    /// Has a request wait for a slot.
    pub fn for_slot(&self, request: TagRequest, errand: Errand, volume: &Volume) -> io::Result<()> {
        let owner = u64::from(volume.id().0);
        let acquire = self.pool.acquire(request.data_bytes(), owner, volume.weight());
        let acquire = acquire.map_err(io::Error::other)?;
        // Made here: the waits of the volume may be ended before the task is polled first.
        let stop = volume.next_end_of_waits();
        self.executor.spawn(async move {
            let slot = tokio::select! {
                biased;
                slot = acquire => Some(slot),
                () = stop => None,
            };
            Waited::Slot(request, errand, slot)
        });
        Ok(())
    }

    /// Fetches from the store the data of `request` that is not here. `false` when a write has brought the data meanwhile: then the
    /// request does not wait.
    pub fn for_store(&self, request: TagRequest, volume: &Arc<Volume>) -> bool {
        let Some(answer) = volume.fetch(request.range) else { return false };
        let volume = Arc::clone(volume);
        self.executor.spawn(async move {
            let answer = tokio::select! {
                biased;
                answer = answer => match answer {
                    Ok(answer) => answer,
                    // The daemon stops. The READ stays the kernel's, which gives it to the next daemon.
                    Err(_) => std::future::pending().await,
                },
                () = volume.waits_ended() => Err(stop::STOPPED),
            };
            Waited::Store(request, answer)
        });
        true
    }

    /// Goes on with the tasks that are ready. Must be the last call before the worker sleeps.
    pub fn run_ready(&mut self) {
        let Self { executor, ended, .. } = self;
        executor.run_ready(|waited| ended.push_back(waited));
    }

    /// The request whose wait ended first.
    pub fn next(&mut self) -> Option<Waited> {
        self.ended.pop_front()
    }

    /// Whether [`next`](Self::next) has a request.
    pub fn has_next(&self) -> bool {
        !self.ended.is_empty()
    }
}
