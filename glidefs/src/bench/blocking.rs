//! Jobs that call `pread` and `pwrite`, one operation at a time.
//!
//! Owns the loop of one thread and its buffer, which is aligned for direct I/O.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use super::error::BenchError;
use super::job::{Setup, Watch};
use super::target::{self, Places};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;

/// One thread's job.
pub(super) struct BlockingJob {
    places: Places,
    buffer: Slot,
    setup: Setup,
}

impl BlockingJob {
    /// A job with its buffer.
    pub fn new(setup: Setup) -> Result<Self, BenchError> {
        let fail = setup.fail("making a buffer");
        let pool =
            Pool::new(1, Arc::new(WorkerStats::default())).map_err(|error| fail(io::Error::other(error)))?;
        let buffer = pool
            .try_acquire(setup.case.load.block_bytes)
            .ok_or_else(|| fail(io::ErrorKind::OutOfMemory.into()))?;
        let places = Places::new(&setup.case, setup.job, setup.size_bytes);
        Ok(Self { places, buffer, setup })
    }

    /// Works until the watch says it is over.
    pub fn run(&mut self, watch: &mut Watch<'_>) -> Result<(), BenchError> {
        let load = self.setup.case.load;
        loop {
            let started = Instant::now();
            if watch.is_over(started) {
                return Ok(());
            }
            let offset = self.places.next_offset();
            let bytes = &mut self.buffer[..load.block_bytes];
            let result = if load.mode.writes() {
                target::stamp(bytes, offset);
                self.setup.file.write_at(bytes, offset)
            } else {
                self.setup.file.read_at(bytes, offset)
            };
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                continue;
            }
            self.setup.check(offset, result)?;
            watch.count(started, Instant::now(), load.block_bytes);
            if !load.mode.writes() {
                self.setup.check_content(&self.buffer[..load.block_bytes], offset)?;
            }
        }
    }
}
