//! The counters of the I/O path: per queue of an export, per buffer pool, per worker.
//!
//! Each struct has one writer, the worker that owns the struct, and is shared by `Arc` with the threads that encode
//! `/metrics`.

use super::counter::{Counter, Histogram};

/// Counters of one queue of one export.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Sizes of completed READs, bytes.
    pub read_size: Histogram<6>,
    /// Sizes of completed WRITEs, bytes.
    pub write_size: Histogram<6>,
    /// Time from fetch to commit of READs, nanoseconds.
    pub read_latency: Histogram<12>,
    /// Time from fetch to commit of WRITEs, nanoseconds.
    pub write_latency: Histogram<12>,
    /// Time from fetch to commit of each FLUSH, nanoseconds.
    pub flush_latency: Histogram<12>,
    /// Number of FLUSH requests completed.
    pub flushes: Counter,
    /// Number of DISCARD and `WRITE_ZEROES` requests completed.
    pub zeroes: Counter,
    /// Bytes discarded or zeroed.
    pub zero_bytes: Counter,
    /// Number of READs that failed.
    pub read_errors: Counter,
    /// Number of WRITE, DISCARD and `WRITE_ZEROES` requests that failed.
    pub write_errors: Counter,
    /// Number of FLUSH requests that failed.
    pub flush_errors: Counter,
    /// Requests fetched and not yet committed (a gauge).
    pub in_flight: Counter,
}

impl QueueStats {
    /// The counters of all `queues` at one moment, added up. Sums wrap, as the counters do.
    pub fn sum<'a>(queues: impl IntoIterator<Item = &'a Self>) -> Self {
        let all = Self::default();
        for queue in queues {
            all.read_size.merge(&queue.read_size);
            all.write_size.merge(&queue.write_size);
            all.read_latency.merge(&queue.read_latency);
            all.write_latency.merge(&queue.write_latency);
            all.flush_latency.merge(&queue.flush_latency);
            for (sum, cell) in [
                (&all.flushes, &queue.flushes),
                (&all.zeroes, &queue.zeroes),
                (&all.zero_bytes, &queue.zero_bytes),
                (&all.read_errors, &queue.read_errors),
                (&all.write_errors, &queue.write_errors),
                (&all.flush_errors, &queue.flush_errors),
                (&all.in_flight, &queue.in_flight),
            ] {
                sum.add(cell.get());
            }
        }
        all
    }
}

/// The requests of a device, as far as they tell whether a guest uses the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    reads: u64,
    read_bytes: u64,
    /// Requests of other kinds.
    others: u64,
    /// Requests that failed, of any kind.
    errors: u64,
    in_flight: u64,
}

impl Use {
    /// Most READs of a look at a new device, and most bytes of them. The kernel looks for partitions, some versions after the
    /// device was reported as made, and udev looks for file systems: each reads a few tens of places.
    const LOOK_READS_MAX: u64 = 128;
    const LOOK_BYTES_MAX: u64 = 4 << 20;

    /// All requests of `queues` so far.
    pub fn of<'a>(queues: impl IntoIterator<Item = &'a QueueStats>) -> Self {
        let mut all = Self::default();
        for queue in queues {
            all.reads = all.reads.wrapping_add(queue.read_size.count());
            all.read_bytes = all.read_bytes.wrapping_add(queue.read_size.sum());
            let others = [queue.write_size.count(), queue.flushes.get(), queue.zeroes.get()];
            let errors = [queue.read_errors.get(), queue.write_errors.get(), queue.flush_errors.get()];
            all.in_flight = all.in_flight.wrapping_add(queue.in_flight.get());
            all.others = others.into_iter().fold(all.others, u64::wrapping_add);
            all.errors = errors.into_iter().fold(all.errors, u64::wrapping_add);
        }
        all
    }

    /// Whether the requests since `begun` are more than a look for partitions and file systems. A request in flight is: the request
    /// may hang. An error from before `begun` is as well: shown at the next use only, the old error would look new.
    pub fn is_more_than_a_look(&self, begun: &Self) -> bool {
        self.in_flight != 0
            || self.errors != 0
            || self.others != begun.others
            || self.reads.wrapping_sub(begun.reads) > Self::LOOK_READS_MAX
            || self.read_bytes.wrapping_sub(begun.read_bytes) > Self::LOOK_BYTES_MAX
    }
}

/// Counters of one worker's buffer pool.
#[derive(Debug, Default)]
pub struct PoolStats {
    /// Number of slots handed out.
    pub acquires: Counter,
    /// Number of acquires that had to wait.
    pub waits: Counter,
    /// Total time that acquires waited, nanoseconds.
    pub wait_nanos: Counter,
    /// Bytes in slots that are out (a gauge).
    pub live_bytes: Counter,
    /// The highest `live_bytes` ever.
    pub live_bytes_max: Counter,
    /// Size of the arena, bytes; 0 until the worker has made and touched the arena.
    pub arena_bytes: Counter,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// CPU the worker is pinned to.
    pub cpu: Counter,
    /// Queues hosted by the worker (a gauge).
    pub queues: Counter,
    /// Turns of the worker's loop.
    pub turns: Counter,
    /// Requests fetched from devices.
    pub requests: Counter,
    /// Times a write was held back, because too much would have been at risk or because merging packs did not keep up.
    pub risk_waits: Counter,
    /// Writes held back because the index of the export may not grow.
    pub index_waits: Counter,
    /// Writes held back because the export has its share of the log.
    pub log_waits: Counter,
    /// Writes that wait until the cache has room, without those that are slowed down only (a gauge).
    pub log_line: Counter,
    /// The worker's buffer pool.
    pub pool: PoolStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_used(queue: &QueueStats, begun: &Use) -> bool {
        Use::of([&QueueStats::default(), queue]).is_more_than_a_look(begun)
    }

    #[test]
    fn a_look_for_partitions_is_no_use_and_everything_else_is() {
        let begun = Use::default();
        let queue = QueueStats::default();
        for _ in 0..Use::LOOK_READS_MAX {
            assert!(!is_used(&queue, &begun));
            queue.read_size.record(4096);
        }
        assert!(!is_used(&queue, &begun));
        queue.read_size.record(4096);
        assert!(is_used(&queue, &begun));
        // The next device begins anew, and the counters go on.
        let begun = Use::of([&queue]);
        assert!(!is_used(&queue, &begun));
        queue.read_size.record(Use::LOOK_BYTES_MAX);
        assert!(!is_used(&queue, &begun));
        queue.read_size.record(512);
        assert!(is_used(&queue, &begun));
        let requests: [fn(&QueueStats); 7] = [
            |queue| queue.in_flight.add(1),
            |queue| queue.write_size.record(512),
            |queue| queue.flushes.add(1),
            |queue| queue.zeroes.add(1),
            |queue| queue.read_errors.add(1),
            |queue| queue.write_errors.add(1),
            |queue| queue.flush_errors.add(1),
        ];
        for request in requests {
            let queue = QueueStats::default();
            assert!(!is_used(&queue, &Use::default()));
            request(&queue);
            assert!(is_used(&queue, &Use::default()));
        }
    }
}
