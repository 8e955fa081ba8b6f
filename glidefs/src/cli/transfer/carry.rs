//! A copy under way: its thread, progress on a terminal, and Ctrl-C.
//!
//! Invariant: the first signal has the copy stop between two pieces; a second one does not wait for it.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::interval;

use super::copy::{CopyError, Options, Report, Source, Target, Watch, copy};

/// How often progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

/// Signals that ask to stop. From here on they do not end the process.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stop {
    /// Takes the signals over.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns when a signal has come.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Copies `source` to `target` on a thread, and shows how far it is unless `is_quiet`.
pub(super) async fn carry(
    source: Box<dyn Source>,
    mut target: Box<dyn Target>,
    options: Options,
    is_quiet: bool,
    stop: &mut Stop,
) -> Result<Report, CopyError> {
    let watch = Arc::new(Watch::default());
    let (done, mut end) = oneshot::channel();
    let theirs = Arc::clone(&watch);
    thread::Builder::new()
        .name("copy-write".into())
        .spawn(move || {
            let copied = copy(source, &mut *target, options, &theirs);
            // Closed before anybody hears of the end.
            drop(target);
            let _ = done.send(copied);
        })
        .map_err(CopyError::Thread)?;
    let bar = Bar::new(options.length_bytes, is_quiet);
    let mut tick = interval(SHOW_INTERVAL);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            copied = &mut end => return copied.unwrap_or(Err(CopyError::ThreadEnded)),
            () = stop.requested() => {
                if is_stopping {
                    return Err(CopyError::Stopped);
                }
                is_stopping = true;
                watch.stop();
            }
            _ = tick.tick() => bar.show(watch.done_bytes()),
        }
    }
}

/// Progress, when somebody watches.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(length_bytes: u64, is_quiet: bool) -> Self {
        Self((!is_quiet && io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(
                "{wide_bar} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
            );
            ProgressBar::new(length_bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    fn show(&self, done_bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done_bytes);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
