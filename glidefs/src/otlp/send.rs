//! Batches on their way to the collector.
//!
//! Owns tries, the pauses between tries, and the lines in the log. Does not own a request (`client`). Invariants: one batch is under way at a time;
//! a batch is given up after [`TRIES_MAX`] tries, so that no batch keeps others back for good; every span of a batch is counted once, as sent
//! or by the reason for the drop; the log has a line when sending begins to fail and one when sending works again, and none for each failure.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::client::{Collector, Outcome};
use super::proto::Resource;
use super::queue::{Queue, Waiting};
use super::spans::body;
use crate::api::SpanStats;
use crate::observe::repeat::Repeat;

/// Most characters of a reason in the log: the other side has a say in some reasons.
const REASON_CHARS_MAX: usize = 300;
/// Most tries of a batch.
const TRIES_MAX: u32 = 5;

/// How long forwarding waits, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Longest time that a trace waits for others of the same batch.
    pub delay: Duration,
    /// The pause behind the first failure: twice as long behind each further one.
    pub pause_min: Duration,
    /// The longest pause, also where the collector asks for a longer one.
    pub pause_max: Duration,
    /// From the end of tracing until the last spans are dropped.
    pub last: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_mins(1),
            last: Duration::from_secs(1),
        }
    }
}

/// The side of the queue from which batches leave.
pub(super) struct Sender<'a> {
    pub collector: &'a Collector,
    pub resource: &'a Resource,
    pub queue: &'a Queue,
    pub stats: &'a SpanStats,
    pub patience: Patience,
    /// Spans of the batch under way.
    pub under_way: &'a AtomicU64,
}

/// Whether sending works, and whether the log says so.
#[derive(Default)]
struct State {
    /// Failures one after the other.
    failures: u32,
    is_told: bool,
    repeat: Repeat,
}

impl Sender<'_> {
    /// Sends until the queue is closed and empty. Behind the end of tracing nothing is sent once a request has failed.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        let mut state = State::default();
        while let Some(batch) = self.queue.batch(self.patience.delay).await {
            self.stats.waiting.store(self.queue.spans() as u64, Relaxed);
            let is_taken = self.deliver(batch, &mut state, &mut stop).await;
            self.under_way.store(0, Relaxed);
            if !is_taken && *stop.borrow() {
                return;
            }
        }
    }

    /// Tries to send `batch`. Returns whether the collector has taken the spans.
    async fn deliver(
        &self,
        batch: Vec<Waiting>,
        state: &mut State,
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        let spans: u64 = batch.iter().map(|trace| trace.spans() as u64).sum();
        self.under_way.store(spans, Relaxed);
        let body = Bytes::from(body(self.resource, &batch));
        drop(batch);
        let mut tries = 0;
        loop {
            if state.failures > 0 && *stop.borrow() {
                // A collector that has failed costs the stop no time.
                self.stats.dropped_stop.fetch_add(spans, Relaxed);
                self.under_way.store(0, Relaxed);
                return false;
            }
            tries += 1;
            let (reason, pause, ended) = match self.collector.post(body.clone()).await {
                Outcome::Taken { rejected } => {
                    let rejected = rejected.min(spans);
                    self.stats.sent.fetch_add(spans - rejected, Relaxed);
                    self.stats.dropped_rejected.fetch_add(rejected, Relaxed);
                    self.works(state);
                    return true;
                }
                Outcome::Refused { reason } => (reason, None, Some(&self.stats.dropped_rejected)),
                Outcome::Failed { reason, pause } => {
                    let is_last = tries >= TRIES_MAX || *stop.borrow();
                    (reason, pause, is_last.then_some(&self.stats.dropped_failed))
                }
            };
            self.fails(state, &reason);
            if let Some(cell) = ended {
                cell.fetch_add(spans, Relaxed);
                // Counted: nothing of the batch is left when the pause is cut short.
                self.under_way.store(0, Relaxed);
            }
            let pause = self.pause(state.failures, pause);
            tokio::select! {
                biased;
                // An error is that of a daemon that stops.
                _ = stop.wait_for(|is_stopping| *is_stopping) => {}
                () = tokio::time::sleep(pause) => {}
            }
            if ended.is_some() {
                return false;
            }
        }
    }

    /// The pause behind so many failures: at random, so that many hosts do not ask a collector at once that has come back.
    fn pause(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
        let own = self.patience.pause_min.saturating_mul(doubled).min(self.patience.pause_max);
        let asked = asked.unwrap_or_default().min(self.patience.pause_max);
        own.mul_f64(rand::random_range(0.5..1.0)).max(asked)
    }

    fn fails(&self, state: &mut State, reason: &str) {
        self.stats.failures.fetch_add(1, Relaxed);
        state.failures = state.failures.saturating_add(1);
        // A collector that fails every other time has a line in ten seconds.
        if !state.is_told && state.repeat.pass().is_some() {
            state.is_told = true;
            let reason = cut(reason);
            tracing::warn!(collector = self.collector.url(), reason, "traces cannot be sent");
        }
    }

    fn works(&self, state: &mut State) {
        state.failures = 0;
        if std::mem::take(&mut state.is_told) {
            tracing::info!(collector = self.collector.url(), "traces are sent again");
        }
    }
}

/// The beginning of `reason`, for a line in the log.
fn cut(reason: &str) -> &str {
    let end = reason.char_indices().nth(REASON_CHARS_MAX).map_or(reason.len(), |(end, _)| end);
    reason.get(..end).unwrap_or(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_in_the_log_is_no_longer_than_a_few_lines() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(1000)), "é".repeat(REASON_CHARS_MAX));
    }
}
