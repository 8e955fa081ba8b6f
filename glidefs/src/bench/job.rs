//! What the job of one thread is given, and what it counts.
//!
//! Owns which operations count. Does not own how an operation is done: `blocking` and `rings` do.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::error::BenchError;
use super::figures::Latencies;
use super::plan::Case;
use super::target;
use crate::worker::affinity::Cpu;
use crate::worker::ring::KernelWorkers;

/// When operations count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub begin: Instant,
    pub end: Instant,
}

/// What one job has done inside the window.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub bytes: u64,
    pub latencies: Latencies,
}

/// What a job is given.
pub(super) struct Setup {
    pub case: Case,
    pub job: usize,
    pub file: Arc<File>,
    pub size_bytes: u64,
    pub verify: bool,
    pub workers: Option<KernelWorkers>,
    /// Where it is pinned to.
    pub cpu: Option<Cpu>,
    /// Where its submission thread is bound to, if it has one.
    pub submission_cpu: Option<Cpu>,
}

/// What a job looks at while it runs.
pub(super) struct Watch<'a> {
    pub window: Window,
    pub stop: &'a AtomicBool,
    pub tally: Tally,
}

impl Watch<'_> {
    /// Whether the job is to end.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.window.end || self.stop.load(Ordering::Relaxed)
    }

    /// Counts an operation, if it ended inside the window.
    pub fn count(&mut self, started: Instant, now: Instant, bytes: usize) {
        if now >= self.window.begin && now < self.window.end {
            self.tally.bytes += bytes as u64;
            self.tally.latencies.record(now.saturating_duration_since(started));
        }
    }
}

impl Setup {
    /// Looks at what a transfer came to.
    pub fn check(&self, offset: u64, result: io::Result<usize>) -> Result<(), BenchError> {
        let wanted = self.case.load.block_bytes;
        let engine = || self.case.engine.to_string();
        match result {
            Ok(moved) if moved == wanted => Ok(()),
            Ok(moved) => Err(BenchError::Short { engine: engine(), offset, moved, wanted }),
            Err(source) => {
                let hint = match source.raw_os_error() {
                    Some(libc::EOPNOTSUPP) if self.case.engine.polls_completions => {
                        ": this device or file system cannot be polled, leave out +iopoll"
                    }
                    Some(libc::ENOSPC) => ": give a smaller --size, or --dir on another file system",
                    _ => "",
                };
                Err(BenchError::Operation { engine: engine(), offset, hint, source })
            }
        }
    }

    /// Looks at what was read, if that is asked for.
    pub fn check_content(&self, bytes: &[u8], offset: u64) -> Result<(), BenchError> {
        if self.verify && !target::is_stamped(bytes, offset) {
            return Err(BenchError::Corrupt { engine: self.case.engine.to_string(), offset });
        }
        Ok(())
    }

    /// A failure to set up.
    pub fn fail(&self, what: &'static str) -> impl Fn(io::Error) -> BenchError + use<> {
        let engine = self.case.engine.to_string();
        move |source| BenchError::Setup { engine: engine.clone(), what, source }
    }
}
