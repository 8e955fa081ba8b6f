//! One virtual disk: identity, size, bounds and counters, and the vocabulary of a block request.
//!
//! Does not own where bytes live (`cache`), which device shows the export (`ublk`), or names and life cycle (`router`).
//! Invariant: a request which passed [`Export::check`] lies inside the export.

mod throttle;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub use self::throttle::{Allotment, Throttle};

use crate::cache::Volume;
use crate::locks::MutexExt;
use crate::observe::io::{QueueStats, Use};
use crate::observe::memory::heap_bytes;
use crate::observe::repeat::Repeat;
use crate::properties::limits::Settings;
use crate::units::{ExportId, REQUEST_BYTES_MAX, SECTOR_BYTES, SectorRange};

/// The kind of a block request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copy bytes to the client.
    Read,
    /// Take bytes from the client.
    Write,
    /// Make every write acknowledged before this request stable.
    Flush,
    /// Forget these sectors: the client no longer needs them, and they read as zeroes.
    Discard,
    /// Make these sectors zero.
    WriteZeroes,
}

impl Operation {
    /// The word of the operation in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
        }
    }
}

/// A block request as the device delivered it, without a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Kind of the request.
    pub operation: Operation,
    /// The sectors meant; empty for FLUSH.
    pub range: SectorRange,
    /// Whether the data must be stable before the request is acknowledged (WRITE, DISCARD and WRITE_ZEROES).
    pub fua: bool,
}

/// Why a request was refused before the cache saw the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request reaches beyond the end of the export.
    #[error("request ends at sector {end}, export has {sectors}")]
    OutOfBounds {
        /// One past the last sector asked for.
        end: u64,
        /// Size of the export in sectors.
        sectors: u64,
    },
    /// The request carries more data than allowed.
    #[error("request carries {bytes} bytes, {REQUEST_BYTES_MAX} is the most")]
    TooLarge {
        /// Bytes of data in the request.
        bytes: u64,
    },
    /// READ or WRITE of nothing.
    #[error("request carries no sectors")]
    Empty,
}

/// The counts of owners beside the content of an `Arc`.
const ARC_COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// The counters of the queues.
#[derive(Debug, Default)]
struct Queues {
    stats: Vec<Arc<QueueStats>>,
    /// The requests before the present device.
    begun: Use,
    /// Whether the present device was seen to have had more requests than a look.
    is_used: bool,
}

/// One virtual disk.
#[derive(Debug)]
pub struct Export {
    id: ExportId,
    name: Arc<str>,
    sectors: AtomicU64,
    volume: Arc<Volume>,
    queues: Mutex<Queues>,
    failures: Repeat,
    /// Made when the first limit is set.
    throttle: OnceLock<Box<Throttle>>,
}

impl Export {
    /// An export of `size_bytes` (a positive multiple of 512, checked by the router) over `volume`.
    pub fn new(id: ExportId, name: String, size_bytes: u64, volume: Arc<Volume>) -> Self {
        Self {
            id,
            name: name.into(),
            sectors: AtomicU64::new(size_bytes / SECTOR_BYTES),
            volume,
            queues: Mutex::default(),
            failures: Repeat::default(),
            throttle: OnceLock::new(),
        }
    }

    /// Identity of the export in the cache.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// The name which the user gave.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, to be kept by a trace.
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Size in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.load(Ordering::Acquire)
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.sectors().saturating_mul(SECTOR_BYTES)
    }

    /// Makes the export `size_bytes` long. The router only ever makes an export longer.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.sectors.store(size_bytes / SECTOR_BYTES, Ordering::Release);
    }

    /// The count of requests against the limits; `None` while no limit was ever set.
    #[inline]
    pub fn throttle(&self) -> Option<&Throttle> {
        self.throttle.get().map(Box::as_ref)
    }

    /// Changes limits and weight, also for requests which wait. Call from one thread at a time.
    pub fn set_settings(&self, settings: &Settings) {
        self.volume.set_weight(settings.weight);
        if self.throttle.get().is_some() || !settings.limits.is_unlimited() {
            self.throttle.get_or_init(|| Box::new(Throttle::new())).set(&settings.limits);
        }
    }

    /// The export's data in the cache.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Counters for a queue which has requests, made for the first one and kept for as long as the export lives so that totals never go
    /// back.
    pub fn queue_stats(&self, queue_id: u16) -> Arc<QueueStats> {
        let mut queues = self.queues.lock_whole();
        while queues.stats.len() <= usize::from(queue_id) {
            queues.stats.push(Arc::default());
        }
        Arc::clone(&queues.stats[usize::from(queue_id)])
    }

    /// Takes note that the export is about to get a device, which nobody has used yet. The export is not held back any more.
    pub fn begin_device(&self) {
        let mut queues = self.queues.lock_whole();
        queues.begun = Use::of(queues.stats.iter().map(Arc::as_ref));
        queues.is_used = false;
        drop(queues);
        self.volume.hold_back(false);
    }

    /// Whether the device has had more requests than a look for partitions and file systems, or any device of the export an error.
    /// Stays so until the next device, also after a request in flight has ended.
    pub fn is_used(&self) -> bool {
        let mut queues = self.queues.lock_whole();
        if !queues.is_used {
            let now = Use::of(queues.stats.iter().map(Arc::as_ref));
            queues.is_used = now.is_more_than_a_look(&queues.begun);
        }
        queues.is_used
    }

    /// The counters of all queues the export has had since the daemon started, added up.
    pub fn io_totals(&self) -> QueueStats {
        QueueStats::sum(self.queues.lock_whole().stats.iter().map(Arc::as_ref))
    }

    /// Memory of the export, of the counters and of the volume without the index, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let queues = self.queues.lock_whole().stats.len() * heap_bytes(size_of::<QueueStats>());
        let own = heap_bytes(size_of::<Self>()) + heap_bytes(self.name.len() + ARC_COUNTS_BYTES) + queues;
        self.volume.own_bytes().saturating_add(own as u64)
    }

    /// Lets one of many log lines about failed requests pass.
    pub fn failures(&self) -> &Repeat {
        &self.failures
    }

    /// Whether `request` lies inside the export and is no larger than a request may be.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        if request.operation == Operation::Flush {
            return Ok(());
        }
        let (range, sectors) = (request.range, self.sectors());
        if range.is_empty() {
            return Err(RequestError::Empty);
        }
        if range.end() > sectors {
            return Err(RequestError::OutOfBounds { end: range.end(), sectors });
        }
        if matches!(request.operation, Operation::Read | Operation::Write) {
            let bytes = range.bytes().unwrap_or(u64::MAX);
            if bytes > REQUEST_BYTES_MAX as u64 {
                return Err(RequestError::TooLarge { bytes });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Volume;

    fn export() -> Export {
        Export::new(ExportId(1), "e".into(), 1 << 20, Arc::new(Volume::new(ExportId(1))))
    }

    fn request(operation: Operation, start: u64, count: u64) -> Request {
        Request { operation, range: SectorRange::new(start, count).unwrap(), fua: false }
    }

    #[test]
    fn a_request_beyond_the_end_is_refused_and_one_up_to_the_end_is_not() {
        assert_eq!(export().check(&request(Operation::Read, 2040, 8)), Ok(()));
        assert_eq!(
            export().check(&request(Operation::Read, 2041, 8)),
            Err(RequestError::OutOfBounds { end: 2049, sectors: 2048 })
        );
    }

    #[test]
    fn a_device_seen_in_use_stays_used_until_the_next_device() {
        let export = export();
        let queue = export.queue_stats(0);
        export.begin_device();
        assert!(!export.is_used());
        queue.in_flight.add(1);
        assert!(export.is_used());
        queue.in_flight.sub(1);
        assert!(export.is_used(), "the series of an export in use do not come and go");
        export.begin_device();
        assert!(!export.is_used());
    }

    #[test]
    fn an_export_that_ever_had_an_error_is_used() {
        let errors: [fn(&QueueStats); 3] = [
            |queue| queue.read_errors.add(1),
            |queue| queue.write_errors.add(1),
            |queue| queue.flush_errors.add(1),
        ];
        for fail in errors {
            let export = export();
            let queue = export.queue_stats(0);
            fail(&queue);
            export.begin_device();
            assert!(export.is_used(), "the counter would look new at the first use of the new device");
        }
    }

    #[test]
    fn only_reads_and_writes_are_limited_in_size() {
        assert_eq!(export().check(&request(Operation::Discard, 0, 2048)), Ok(()));
        assert!(matches!(
            export().check(&request(Operation::Write, 0, 257)),
            Err(RequestError::TooLarge { .. })
        ));
        assert_eq!(export().check(&request(Operation::Write, 0, 0)), Err(RequestError::Empty));
    }
}
