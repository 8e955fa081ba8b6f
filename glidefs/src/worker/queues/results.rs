//! The end of a request: the copy to the client, the counters, the trace, the log line of a failure, the answer to the kernel.

use std::io::{self, IoSlice};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Queues, command};
use crate::cache::Token;
use crate::export::{Export, Operation};
use crate::observe::io::QueueStats;
use crate::observe::trace::{Part, TracedRequest};
use crate::units::SECTOR_BYTES;
use crate::worker::driver::Failure;
use crate::worker::requests::{InFlight, RequestBuffer, TagRequest};
use crate::worker::ring::Ring;
use crate::worker::tag::TagId;
use crate::worker::traces::{self, Way};
use crate::worker::waits::stop;

impl Queues {
    /// Gives the result of a request to the kernel and drops the request's buffer.
    pub fn finish<C>(
        &mut self,
        ring: &mut Ring<C>,
        mut token: InFlight,
        mut result: Result<(), Failure>,
    ) -> io::Result<()> {
        let request = token.request;
        let TagRequest { tag, operation, range, kept, promised, .. } = request;
        let bytes = request.data_bytes();
        let queue = self.of(tag);
        if result.is_ok() && operation == Operation::Read && matches!(token.buffer, RequestBuffer::Slot(_)) {
            traces::enter(tag, Part::Copy);
            result = queue
                .driver
                .copy_out(tag.tag, &[IoSlice::new(&token.buffer()[..bytes])])
                .map_err(Failure::Copy);
        }
        drop(token);
        if promised {
            queue.export.volume().settled(bytes as u64);
        }
        if let Some(kept) = kept {
            queue.export.volume().give_back(kept);
        }
        match result {
            Ok(()) => {
                let nanos = self.end_trace(&request, "ok");
                count(self.of(tag).stats(), operation, bytes as u64, range.bytes(), nanos);
                // REQUEST_BYTES_MAX fits in 32 bits.
                self.answer(ring, tag, Ok(u32::try_from(bytes).unwrap_or(u32::MAX)))
            }
            Err(failure) => self.refuse(ring, tag, Some(&request), &failure),
        }
    }

    /// Reports `failure` of a request and gives the failure to the kernel. The request must have nothing that [`Volume::pace`] promised
    /// or `Volume::index_pace` kept.
    ///
    /// [`Volume::pace`]: crate::cache::Volume::pace
    pub fn refuse<C>(
        &mut self,
        ring: &mut Ring<C>,
        tag: TagId,
        request: Option<&TagRequest>,
        failure: &Failure,
    ) -> io::Result<()> {
        if let Some(request) = request {
            self.end_trace(request, failure.word());
        }
        self.report(tag, request.map(|request| request.operation), failure);
        self.answer(ring, tag, Err(failure))
    }

    /// Ends the trace of a request. Returns the time since it came, nanoseconds.
    fn end_trace(&self, request: &TagRequest, result: &'static str) -> u64 {
        let now = Instant::now();
        let total = now.saturating_duration_since(request.started);
        if let Some(way) = traces::end(request.tag, total, now) {
            self.show(request, &way, result);
        }
        traces::nanos(total)
    }

    #[cold]
    fn show(&self, request: &TagRequest, way: &Way, result: &'static str) {
        let queue = self.of(request.tag);
        let (device_id, queue_id) = queue.driver.ids();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        traces::show(TracedRequest {
            sequence: 0,
            unix_nanoseconds: traces::nanos(unix).saturating_sub(way.total_nanos),
            export: queue.export.shared_name(),
            device_id,
            queue_id,
            tag: request.tag.tag,
            operation: request.operation.name().into(),
            offset_bytes: request.range.start().saturating_mul(SECTOR_BYTES),
            length_bytes: request.range.bytes().unwrap_or(u64::MAX),
            fua: request.fua,
            result: result.into(),
            total_nanoseconds: way.total_nanos,
            parts: way.part_nanos.into(),
            one_in: way.one_in,
        });
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
