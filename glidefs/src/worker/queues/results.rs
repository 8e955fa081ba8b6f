//! The end of a request: the copy to the client, the counters, the log line of a failure, the answer to the kernel.

use std::io::{self, IoSlice};
use std::time::Instant;

use super::{Queues, command};
use crate::cache::Token;
use crate::export::{Export, Operation};
use crate::observe::io::QueueStats;
use crate::observe::trace::Part;
use crate::worker::driver::Failure;
use crate::worker::requests::{InFlight, RequestBuffer, TagRequest};
use crate::worker::ring::Ring;
use crate::worker::tag::TagId;
use crate::worker::traces::{self, RowNumber};
use crate::worker::waits::stop;

impl Queues {
    /// Gives the result of a request to the kernel and drops the request's buffer. The turn began at `now`.
    pub fn finish<C>(
        &mut self,
        ring: &mut Ring<C>,
        now: Instant,
        mut token: InFlight,
        mut result: Result<(), Failure>,
    ) -> io::Result<()> {
        let TagRequest { tag, operation, range, traced, kept, started, .. } = token.request;
        let bytes = token.request.data_bytes();
        let queue = self.of(tag);
        if result.is_ok() && operation == Operation::Read && matches!(token.buffer, RequestBuffer::Slot(_)) {
            traces::enter(traced, Part::Copy);
            result = queue
                .driver
                .copy_out(tag.tag, &[IoSlice::new(&token.buffer()[..bytes])])
                .map_err(Failure::Copy);
        }
        traces::enter(traced, Part::Reply);
        drop(token);
        if operation == Operation::Write {
            queue.export.volume().settled(bytes as u64);
        }
        if let Some(kept) = kept {
            queue.export.volume().give_back(kept);
        }
        let nanos = u64::try_from(now.elapsed().saturating_add(now - started).as_nanos()).unwrap_or(u64::MAX);
        match result {
            Ok(()) => {
                count(queue.stats(), operation, bytes as u64, range.bytes(), nanos);
                // REQUEST_BYTES_MAX fits in 32 bits.
                self.answer(ring, tag, Ok(u32::try_from(bytes).unwrap_or(u32::MAX)))?;
                traces::end(traced, "ok");
                Ok(())
            }
            Err(failure) => self.refuse(ring, (tag, traced), Some(operation), &failure),
        }
    }

    /// Reports `failure` of a request and gives the failure to the kernel. The request must have nothing that [`Volume::pace`] promised
    /// or `Volume::index_pace` kept.
    ///
    /// [`Volume::pace`]: crate::cache::Volume::pace
    pub fn refuse<C>(
        &mut self,
        ring: &mut Ring<C>,
        (tag, traced): (TagId, Option<RowNumber>),
        operation: Option<Operation>,
        failure: &Failure,
    ) -> io::Result<()> {
        self.report(tag, operation, failure);
        self.answer(ring, tag, Err(failure))?;
        traces::end(traced, failure.word());
        Ok(())
    }

    fn answer<C>(&mut self, ring: &mut Ring<C>, tag: TagId, result: Result<u32, &Failure>) -> io::Result<()> {
        let queue = &mut self.table[tag.queue_index as usize];
        queue.stats().in_flight.sub(1);
        let answer = queue.driver.answer(tag.tag, tag.queue_index, result);
        command(ring, answer, tag)
    }

    fn report(&self, TagId { queue_index, tag }: TagId, operation: Option<Operation>, failure: &Failure) {
        let queue = &self.table[queue_index as usize];
        let (device_id, queue_id) = queue.driver.ids();
        match operation {
            Some(Operation::Read) => queue.stats().read_errors.add(1),
            Some(Operation::Flush) => queue.stats().flush_errors.add(1),
            _ => queue.stats().write_errors.add(1),
        }
        if matches!(failure, Failure::Cache(stop::STOPPED)) {
            // `Loop::end_waits` logs one line for all waiting writes.
            return;
        }
        log_failure(&queue.export, (device_id, queue_id, tag), operation, failure);
    }
}

/// Logs that a request of `export` failed, unless the export logged a failure a short time ago.
pub fn log_failure(
    export: &Export,
    (device_id, queue_id, tag): (u32, u16, u16),
    operation: Option<Operation>,
    failure: &Failure,
) {
    let Some(suppressed) = export.failures().pass() else { return };
    tracing::error!(
        export = export.name(),
        device_id,
        queue_id,
        tag,
        operation = ?operation,
        error = failure as &dyn std::error::Error,
        suppressed,
        "request failed"
    );
}

/// Counts a request which succeeded.
fn count(stats: &QueueStats, operation: Operation, bytes: u64, range_bytes: Option<u64>, nanos: u64) {
    match operation {
        Operation::Read => {
            stats.read_size.record(bytes);
            stats.read_latency.record(nanos);
        }
        Operation::Write => {
            stats.write_size.record(bytes);
            stats.write_latency.record(nanos);
        }
        Operation::Flush => {
            stats.flushes.add(1);
            stats.flush_latency.record(nanos);
        }
        Operation::Discard | Operation::WriteZeroes => {
            stats.zeroes.add(1);
            stats.zero_bytes.add(range_bytes.unwrap_or(0));
        }
    }
}
