//! A line to a store that takes bytes more slowly than a writer makes them. Tests turn the clock by hand.
//!
//! Owns the clock, and the times at which creations arrive. Does not own the created objects. Invariant: creations arrive one
//! after the other, and in no time more bytes arrive than the line lets through.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::locks::MutexExt;

/// The line of a [`super::FaultyStore`]. Time is counted in bytes: the bytes that a writer can write in the time.
#[derive(Debug, Default)]
pub struct Line {
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    now: u64,
    /// How much longer a byte takes than the writer needs for one; 0: no time.
    times: u64,
    /// When all sent creations have arrived.
    free_at: u64,
    /// When each creation on its way arrives.
    arrivals: BTreeSet<u64>,
    arrived_bytes: u64,
}

/// A creation on its way. Dropped when the creation has arrived or was given up.
struct Creation<'a> {
    line: &'a Line,
    arrival: u64,
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        self.line.state().arrivals.remove(&self.arrival);
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock_whole()
    }

    /// Lets creations take `times` as long as the writer needs for as many bytes.
    pub fn slow_down(&self, times: u64) {
        self.state().times = times;
    }

    /// Lets creations take no time any more, those on their way too.
    pub fn recover(&self) {
        self.state().times = 0;
        self.moved.notify_waiters();
    }

    /// Whether creations take time.
    pub fn is_slow(&self) -> bool {
        self.state().times > 0
    }

    /// The time since the begin.
    pub fn now(&self) -> u64 {
        self.state().now
    }

    /// Bytes of creations that have arrived on the slow line.
    pub fn arrived_bytes(&self) -> u64 {
        self.state().arrived_bytes
    }

    /// Lets time pass: the time in which the writer writes `bytes`.
    pub fn advance(&self, bytes: u64) {
        self.state().now += bytes;
        self.moved.notify_waiters();
    }

    /// Lets time pass until a creation has arrived. `false`: no creation is on its way, and no time passes.
    pub fn advance_to_arrival(&self) -> bool {
        let mut state = self.state();
        let Some(arrival) = state.arrivals.first().copied() else { return false };
        state.now = state.now.max(arrival);
        drop(state);
        self.moved.notify_waiters();
        true
    }

    /// Ends when a creation of so many bytes has arrived.
    pub(super) async fn pass(&self, bytes: u64) {
        let place = {
            let mut state = self.state();
            if state.times == 0 {
                return;
            }
            state.free_at = state.free_at.max(state.now) + bytes * state.times;
            let arrival = state.free_at;
            state.arrivals.insert(arrival);
            Creation { line: self, arrival }
        };
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            {
                let mut state = self.state();
                if state.times == 0 {
                    return;
                }
                if state.now >= place.arrival {
                    state.arrived_bytes += bytes;
                    return;
                }
            }
            moved.await;
        }
    }
}
