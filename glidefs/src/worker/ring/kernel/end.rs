//! The end of a ring: operations under way end before the ring, or the ring leaks their memory.

use std::io;
use std::time::{Duration, Instant};

use super::Ring;
use crate::worker::ring::under_way::{Event, OpId};

/// How long a dropped ring waits for operations under way, before the ring leaks their memory.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

impl<C> Ring<C> {
    /// Cancels all operations, waits for their completions at most for `patience`, and moves the completions to `into`.
    pub fn shut_down(&mut self, patience: Duration, into: &mut Vec<Event<C>>) -> io::Result<()> {
        let ids: Vec<_> = self
            .under_way
            .iter()
            .filter_map(|(key, op)| Some(OpId { key: u32::try_from(key).ok()?, generation: op.generation }))
            .collect();
        for id in ids {
            self.cancel(id)?;
        }
        let deadline = Instant::now() + patience;
        loop {
            self.drain(into);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.under_way.is_empty() || left.is_zero() {
                return Ok(());
            }
            self.submit_and_wait(Some(left))?;
        }
    }
}

impl<C> Drop for Ring<C> {
    /// The kernel goes on with operations after a ring is closed, so the operations have to end first.
    fn drop(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let ended = self.shut_down(DROP_PATIENCE, &mut Vec::new());
        if !self.under_way.is_empty() {
            tracing::error!(
                operations = self.under_way.len(),
                ?ended,
                "operations did not end: leaking their memory"
            );
            std::mem::forget(std::mem::take(&mut self.under_way));
            std::mem::forget(self.arena.take());
        }
    }
}
