//! Traces that wait to be sent.
//!
//! Invariants: the traces that wait have at most [`SPANS_MAX`] spans and take at most [`BYTES_MAX`] bytes; a trace without room is refused,
//! and whoever brings a trace never waits; a batch has at most [`BATCH_SPANS_MAX`] spans, or one trace.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::locks::MutexExt;
use crate::observe::trace::{RequestTrace, StoreTrace};

/// Most spans that wait at a time.
pub(super) const SPANS_MAX: usize = 8192;
/// Most memory of the traces that wait.
pub(super) const BYTES_MAX: usize = 4 << 20;
/// Most spans of a batch.
pub(super) const BATCH_SPANS_MAX: usize = 512;

/// A trace that waits to be sent.
#[derive(Debug)]
pub(super) struct Waiting {
    /// When the request began, by the clock on the wall.
    pub began_unix_nanos: u64,
    pub trace: Trace,
}

/// A trace of either kind.
#[derive(Debug)]
pub(super) enum Trace {
    Request(Box<RequestTrace>),
    Store { trace: Box<StoreTrace>, export: Option<String> },
}

impl Waiting {
    /// Number of spans that the trace becomes.
    pub fn spans(&self) -> usize {
        match &self.trace {
            Trace::Request(trace) => 1 + trace.steps.iter().len(),
            Trace::Store { .. } => 1,
        }
    }

    /// Memory of the trace. The name in a trace of a request is shared.
    fn bytes(&self) -> usize {
        let own = match &self.trace {
            Trace::Request(_) => size_of::<RequestTrace>(),
            Trace::Store { trace, export } => {
                let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
                size_of::<StoreTrace>() + trace.key.capacity() + text(&trace.volume) + text(export)
            }
        };
        size_of::<Self>() + own
    }
}

/// The line of traces between those who gather and those who send.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    traces: VecDeque<Waiting>,
    spans: usize,
    bytes: usize,
    is_closed: bool,
}

impl Queue {
    /// Adds a trace. `false`: there is no room, and the trace is dropped.
    pub fn push(&self, trace: Waiting) -> bool {
        let (spans, bytes) = (trace.spans(), trace.bytes());
        let mut inner = self.inner.lock_whole();
        let has_room = inner.spans + spans <= SPANS_MAX && inner.bytes + bytes <= BYTES_MAX;
        if has_room {
            let before = inner.spans;
            inner.traces.push_back(trace);
            inner.spans += spans;
            inner.bytes += bytes;
            if before == 0 || (before < BATCH_SPANS_MAX && inner.spans >= BATCH_SPANS_MAX) {
                self.news.notify_one();
            }
        }
        has_room
    }

    /// No further traces come: batches no longer wait to be full.
    pub fn close(&self) {
        self.inner.lock_whole().is_closed = true;
        self.news.notify_one();
    }

    /// Number of spans that wait.
    pub fn spans(&self) -> usize {
        self.inner.lock_whole().spans
    }

    /// Memory of the traces that wait.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.inner.lock_whole().bytes
    }

    /// The next traces, when there are enough for a whole batch, or when the oldest ones have waited for `delay`. `None` behind the last
    /// ones of a closed queue. One task at a time calls this.
    pub async fn batch(&self, delay: Duration) -> Option<Vec<Waiting>> {
        let mut deadline = None;
        loop {
            {
                let mut inner = self.inner.lock_whole();
                let is_due = inner.is_closed || deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if inner.spans >= BATCH_SPANS_MAX || (inner.spans > 0 && is_due) {
                    return Some(inner.take());
                }
                if inner.is_closed {
                    return None;
                }
                if inner.spans > 0 && deadline.is_none() {
                    deadline = Some(Instant::now() + delay);
                }
            }
            match deadline {
                None => self.news.notified().await,
                // An error is the end of the time.
                Some(deadline) => drop(timeout_at(deadline, self.news.notified()).await),
            }
        }
    }
}

impl Inner {
    fn take(&mut self) -> Vec<Waiting> {
        let (mut batch, mut spans) = (Vec::new(), 0);
        while let Some(next) = self.traces.front()
            && (batch.is_empty() || spans + next.spans() <= BATCH_SPANS_MAX)
            && let Some(trace) = self.traces.pop_front()
        {
            spans += trace.spans();
            self.bytes = self.bytes.saturating_sub(trace.bytes());
            batch.push(trace);
        }
        self.spans = self.spans.saturating_sub(spans);
        batch
    }
}
