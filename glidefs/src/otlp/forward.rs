//! Begin and end of forwarding.
//!
//! Owns the task that gathers and sends, both at once. Invariants: forwarding ends within [`Patience::last`] and a moment; spans left then are
//! dropped and counted; a dropped [`Forwarder`] traces nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::client::Collector;
use super::gather::Gatherer;
use super::proto::Resource;
use super::queue::Queue;
use super::send::{Patience, Sender};
use super::spans::resource;
use crate::api::{ReaderSeat, TraceHub};
use crate::config::TracesSection;
use crate::observe::trace::{Ask, Kinds};

/// How much longer than [`Patience::last`] the end of the task is waited for.
const GRACE: Duration = Duration::from_millis(500);

/// The forwarding of spans, while it runs. Dropped, forwarding ends without the last batch.
#[derive(Debug)]
pub struct Forwarder {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    patience: Patience,
}

impl Forwarder {
    /// Begins to send traces to `collector`, the one of `config`. Reads no file. Called once in the life of a daemon.
    pub fn begin(collector: Collector, config: &TracesSection, traces: &TraceHub, host_name: &str) -> Self {
        Self::begin_with(collector, config, traces, host_name, Patience::default())
    }

    pub(super) fn begin_with(
        collector: Collector,
        config: &TracesSection,
        traces: &TraceHub,
        host_name: &str,
        patience: Patience,
    ) -> Self {
        let slower_than = config.slower_than.0;
        // What is slow is known at the end only.
        let one_in = config.one_in.unwrap_or(u32::from(!slower_than.is_zero()));
        let seat = traces.open_own(Ask { kinds: Kinds::All, export: None, slower_than, one_in });
        tracing::info!(collector = collector.url(), "traces are sent to a collector");
        let (stop, stopped) = watch::channel(false);
        let resource = resource(&config.service_name, host_name.trim());
        let task = tokio::spawn(run(seat, collector, resource, patience, stopped));
        Self { stop, task, patience }
    }

    /// Ends tracing, and sends the last spans, for no longer than [`Patience::last`]. May be called again.
    pub async fn end(&mut self) {
        self.stop.send_replace(true);
        if self.task.is_finished() {
            return;
        }
        // The task counts and drops the last spans by itself, unless the daemon has no time for it.
        if tokio::time::timeout(self.patience.last + GRACE, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    seat: ReaderSeat,
    collector: Collector,
    resource: Resource,
    patience: Patience,
    mut stop: watch::Receiver<bool>,
) {
    let (stats, queue, under_way) = (Arc::clone(&seat.stats), Queue::default(), AtomicU64::new(0));
    let sender = Sender {
        collector: &collector,
        resource: &resource,
        queue: &queue,
        stats: &stats.spans,
        patience,
        under_way: &under_way,
    };
    let gatherer = Gatherer::new(seat, &queue);
    let work = async {
        let sending = async {
            sender.run(stop.clone()).await;
        };
        tokio::join!(gatherer.run(stop.clone()), sending);
    };
    let mut stopped = stop.clone();
    let end = async {
        // An error is that of a daemon that stops.
        let _ = stopped.wait_for(|is_stopping| *is_stopping).await;
        tokio::time::sleep(patience.last).await;
    };
    tokio::select! {
        () = work => {}
        () = end => {}
    }
    let _ = stop.borrow_and_update();
    let left = (queue.spans() as u64).saturating_add(under_way.load(Relaxed));
    stats.spans.dropped_stop.fetch_add(left, Relaxed);
    stats.spans.waiting.store(0, Relaxed);
}
