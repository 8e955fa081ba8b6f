//! The work that every reader of traces has: the clients' and the daemon's own.
//!
//! Owns the order in which workers are asked, the time of the next look, and the way of a session's counts into the counters of the daemon.
//! Does not own what becomes of a trace. Invariants: the traces of a busy worker keep no others back; a loss is counted once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::stats::TraceStats;
use crate::api::wire::TraceCounts;
use crate::observe::trace::{RequestTrace, Session};

/// Time until the next look behind one in which a worker had many traces.
pub const LOOK_BUSY: Duration = Duration::from_millis(2);
/// Traces of one worker in a look that are many: a quarter of the fewest that may wait.
const BUSY_TRACES: usize = 16;

/// The outcome of a look for traces of requests.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Number of traces that were taken, of all workers.
    pub taken: usize,
    /// Whether a worker had many.
    pub is_busy: bool,
}

/// Takes up to `most` traces of requests, of the workers in turns, and hands each to `take`.
pub fn look_at_workers(session: &Session, most: usize, mut take: impl FnMut(RequestTrace)) -> Look {
    let (mut taken, mut rounds, mut is_any) = (0, 0, true);
    while is_any && taken < most {
        is_any = false;
        rounds += 1;
        for side in session.workers() {
            if taken < most
                && let Some(trace) = side.ring.pop()
            {
                (is_any, taken) = (true, taken + 1);
                take(trace);
            }
        }
    }
    Look { taken, is_busy: rounds > BUSY_TRACES }
}

/// The counts of `session` so far.
pub fn counts_of(session: &Session) -> TraceCounts {
    TraceCounts {
        one_in: session.one_in(),
        requests: session.sum(|side| &side.requests),
        sampled: session.sum(|side| &side.sampled),
        not_traced: session.sum(|side| &side.not_traced),
        dropped: session.sum(|side| &side.dropped).saturating_add(session.store_dropped()),
    }
}

/// The counts of a session that are in the counters of the daemon.
#[derive(Debug, Default)]
pub struct Counted(TraceCounts);

impl Counted {
    /// Adds the news in `counts` to `stats`.
    pub fn add(&mut self, counts: TraceCounts, stats: &TraceStats) {
        let before = std::mem::replace(&mut self.0, counts);
        for (cell, now, before) in [
            (&stats.traces, counts.sampled, before.sampled),
            (&stats.not_traced, counts.not_traced, before.not_traced),
            (&stats.dropped, counts.dropped, before.dropped),
        ] {
            cell.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        }
    }
}
