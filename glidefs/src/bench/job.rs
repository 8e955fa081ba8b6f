//! The set-up of one thread's job, and the job's count of operations.
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
use super::test_file;
use crate::worker::affinity::Cpu;
use crate::worker::ring::KernelWorkers;

#[derive(Clone, Copy, Debug)]
pub(super) struct CountedWindow {
    pub begin: Instant,
    pub end: Instant,
}

/// The work of one job inside the window.
#[derive(Debug, Default)]
pub(super) struct JobTally {
    pub bytes: u64,
    pub latencies: Latencies,
}

/// Everything a job needs to start.
pub(super) struct JobSetup {
    pub case: Case,
    pub job: usize,
    pub file: Arc<File>,
    pub size_bytes: u64,
    pub verify: bool,
    pub workers: Option<KernelWorkers>,
    /// The CPU the job's thread is pinned to.
    pub cpu: Option<Cpu>,
    /// The CPU the job's submission thread is bound to, if the ring has a submission thread.
    pub submission_cpu: Option<Cpu>,
}

/// Tells a job when to stop, and counts the job's operations.
pub(super) struct JobClock<'a> {
    pub window: CountedWindow,
    pub stop: &'a AtomicBool,
    pub tally: JobTally,
}

impl JobClock<'_> {
    /// Whether the job is to end.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.window.end || self.stop.load(Ordering::Relaxed)
    }

    /// Counts an operation that ended inside the window; ignores any other.
    pub fn count(&mut self, started: Instant, now: Instant, bytes: usize) {
        if now >= self.window.begin && now < self.window.end {
            self.tally.bytes += bytes as u64;
            self.tally.latencies.record(now.saturating_duration_since(started));
        }
    }
}

impl JobSetup {
    /// Turns an incomplete or failed transfer into an error.
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

    /// Compares the bytes of a read with the stamps of the blocks, with `--verify` only.
    pub fn check_content(&self, bytes: &[u8], offset: u64) -> Result<(), BenchError> {
        if self.verify && !test_file::is_stamped(bytes, offset) {
            return Err(BenchError::Corrupt { engine: self.case.engine.to_string(), offset });
        }
        Ok(())
    }

    /// Makes the error of a failed set-up step.
    pub fn fail(&self, what: &'static str) -> impl Fn(io::Error) -> BenchError + use<> {
        let engine = self.case.engine.to_string();
        move |source| BenchError::Setup { engine: engine.clone(), what, source }
    }
}
