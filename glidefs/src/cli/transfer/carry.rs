//! A running copy: the thread, progress on a terminal, and Ctrl-C.
//!
//! Invariant: the first signal makes the copy stop between two pieces; the second signal returns without waiting for the copy.

use std::fs;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::interval;

use super::copy::{CopyOptions, CopyProgress, Report, copy};
use super::ends::{CopySource, CopyTarget};
use super::fault::CopyError;
use crate::cli::progress::TerminalBar;

/// So many requests to stop end even work that a single request must not interrupt.
pub(super) const PATIENCE: u32 = 2;
/// How often progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);
const BAR: &str = "{wide_bar} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// Requests to stop. From [`Stop::listen`] on, signals do not end the process.
pub(super) struct Stop {
    requests: UnboundedReceiver<()>,
    seen: u32,
}

impl Stop {
    /// Takes the signals over: each signal is a request. A signal that the process ignores, as under `nohup`, stays ignored.
    pub fn listen() -> io::Result<Self> {
        let (sender, requests) = unbounded_channel();
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            if ignored & 1 << (kind.as_raw_value() - 1) != 0 {
                continue;
            }
            let mut signals = signal(kind)?;
            let sender = sender.clone();
            tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} });
        }
        Ok(Self::new(requests))
    }

    /// Takes requests from a channel.
    pub const fn new(requests: UnboundedReceiver<()>) -> Self {
        Self { requests, seen: 0 }
    }

    /// Does `work` unless `patience` requests have come, counted from the start.
    pub async fn unless<T>(&mut self, patience: u32, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(()) = self.requests.recv() => {
                    self.seen += 1;
                    if self.seen >= patience {
                        return None;
                    }
                }
                done = &mut work => return Some(done),
            }
        }
    }

    /// Whether there was a request.
    fn was_requested(&mut self) -> bool {
        while self.requests.try_recv().is_ok() {
            self.seen += 1;
        }
        self.seen > 0
    }
}

/// The set of ignored signals of a process, bit 0 for signal 1, from `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Copies `source` to `target` on a thread, and shows progress unless `is_quiet`.
pub(super) async fn carry(
    source: Box<dyn CopySource>,
    mut target: Box<dyn CopyTarget>,
    options: CopyOptions,
    is_quiet: bool,
    stop: &mut Stop,
) -> Result<Report, CopyError> {
    if stop.was_requested() {
        return Err(CopyError::Stopped);
    }
    let progress = Arc::new(CopyProgress::default());
    let (done, mut end) = oneshot::channel();
    let shared = Arc::clone(&progress);
    thread::Builder::new()
        .name("copy-write".into())
        .spawn(move || {
            let copied = copy(source, &mut *target, options, &shared);
            // The target is closed before the caller hears of the end.
            drop(target);
            let _ = done.send(copied);
        })
        .map_err(CopyError::Thread)?;
    let bar = TerminalBar::new(BAR, options.length_bytes, !is_quiet);
    let mut tick = interval(SHOW_INTERVAL);
    loop {
        tokio::select! {
            copied = &mut end => return copied.unwrap_or(Err(CopyError::ThreadEnded)),
            Some(()) = stop.requests.recv() => {
                stop.seen += 1;
                if stop.seen >= PATIENCE {
                    return Err(CopyError::Stopped);
                }
                progress.stop();
            }
            _ = tick.tick() => bar.show(progress.done_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_seen_in_the_status_of_the_process() {
        let status = "Name:\tglidefs\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let hangup = 1 << (SignalKind::hangup().as_raw_value() - 1);
        assert_eq!((ignored(status) & hangup, ignored(status) & 2, ignored("")), (1, 0, 0));
    }
}
