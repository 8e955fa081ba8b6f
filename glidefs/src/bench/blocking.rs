//! Jobs that call `pread` and `pwrite`, one operation at a time.
//!
//! Owns the loop of one thread and the thread's buffer, which is aligned for direct I/O.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use super::error::BenchError;
use super::job::{JobClock, JobSetup};
use super::test_file::{self, Offsets};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;

pub(super) struct BlockingJob {
    offsets: Offsets,
    buffer: Slot,
    setup: JobSetup,
}

impl BlockingJob {
    /// Makes the job and the buffer of one operation.
    pub fn new(setup: JobSetup) -> Result<Self, BenchError> {
        let fail = setup.fail("making a buffer");
        let pool =
            Pool::new(1, Arc::new(WorkerStats::default())).map_err(|error| fail(io::Error::other(error)))?;
        let buffer = pool
            .try_acquire(setup.case.load.block_bytes)
            .ok_or_else(|| fail(io::ErrorKind::OutOfMemory.into()))?;
        let offsets = Offsets::new(&setup.case, setup.job, setup.size_bytes);
        Ok(Self { offsets, buffer, setup })
    }

    /// Works until the clock says that the run is over.
    pub fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError> {
        let load = self.setup.case.load;
        loop {
            let started = Instant::now();
            if clock.is_over(started) {
                return Ok(());
            }
            let offset = self.offsets.next_offset();
            let bytes = &mut self.buffer[..load.block_bytes];
            let result = if load.mode.writes() {
                test_file::stamp(bytes, offset);
                self.setup.file.write_at(bytes, offset)
            } else {
                self.setup.file.read_at(bytes, offset)
            };
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                continue;
            }
            self.setup.check(offset, result)?;
            clock.count(started, Instant::now(), load.block_bytes);
            if !load.mode.writes() {
                self.setup.check_content(&self.buffer[..load.block_bytes], offset)?;
            }
        }
    }
}
