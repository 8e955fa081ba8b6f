//! How a worker comes to be: everything that its thread makes before the first turn.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use super::Loop;
use super::operations::Purpose;
use crate::buffer::Pool;
use crate::cache::{Cache, Shard};
use crate::observe::logging;
use crate::units::FRAME_BYTES;
use crate::worker::company::Company;
use crate::worker::cpus;
use crate::worker::engine::Engine;
use crate::worker::handle::{Worker, WorkerOptions};
use crate::worker::queues::Queues;
use crate::worker::requests::InFlight;
use crate::worker::ring::{Options, REGISTERED_BYTES_MAX, Ring};
use crate::worker::traces;
use crate::worker::waits::held::HeldWrites;
use crate::worker::waits::limits::LimitedRequests;
use crate::worker::waits::log_line::LogLine;
use crate::worker::waits::ready::Ready;
use crate::worker::waits::tasks::TaskWaits;

/// Memory for record headers: pieces of 4 KiB of the arena. Each append under way takes two; when none is left, requests gather
/// in larger batches.
const HEADERS: usize = 32;
/// Most appends under way of writes whose FLUSH is expected. These, and one more, hold up to 128 KiB of the arena each while the disk
/// writes them: in a small arena fewer are allowed, so that it is a quarter at most, or none.
const THROUGH_MAX: usize = 4;
const SLOTS_AN_APPEND: usize = 8;

/// The parts of a worker which others have made.
pub struct Setup {
    pub cpu: usize,
    pub options: WorkerOptions,
    pub cache: Cache,
    pub worker: Worker,
}

/// Why a worker could not be set up: the step which failed, and the cause.
type SetupError = (&'static str, io::Error);

/// Ends the process if a worker unwinds or returns: its devices would hang for ever.
struct AbortOnEnd;

impl Drop for AbortOnEnd {
    fn drop(&mut self) {
        tracing::error!(
            "a worker has ended: ending the daemon, so that the next one can take over the devices"
        );
        logging::flush();
        std::process::abort();
    }
}

/// The thread's body. Tells `ready` when the worker is set up, and returns only when the set-up fails.
pub fn main(setup: Setup, ready: &Sender<Result<(), SetupError>>) {
    match Loop::new(setup) {
        Err(failure) => drop(ready.send(Err(failure))),
        Ok(mut worker) => {
            let _abort = AbortOnEnd;
            drop(ready.send(Ok(())));
            if let Err(error) = worker.run() {
                tracing::error!(error = &error as &dyn std::error::Error, "the worker's ring failed");
            }
        }
    }
}

impl Loop {
    fn new(setup: Setup) -> Result<Self, SetupError> {
        setup.worker.load.begin().map_err(|error| ("finding the clock of the thread", error))?;
        cpus::pin(setup.cpu).map_err(|error| ("pinning the thread", error))?;
        // After pinning, so that the first touch places the arena on the local NUMA node.
        let pool = Pool::new(setup.options.slots_per_worker, Arc::clone(&setup.worker.stats))
            .map_err(|error| ("making the buffer pool", io::Error::other(error)))?;
        let (ring, is_fixed) = make_ring(&setup, &pool)?;
        let shard = make_shard(&setup, &ring, &pool)?;
        let Setup { cpu, options, cache, worker: Worker { index, inbox, stats, traces, .. } } = setup;
        stats.cpu.add(cpu as u64);
        traces::begin_worker(traces);
        let wake: Arc<dyn Fn() + Send + Sync> = {
            let inbox = Arc::clone(&inbox);
            Arc::new(move || inbox.wake())
        };
        cache.on_progress(index, Arc::clone(&wake));
        let mut this = Self {
            ring,
            queues: Queues::new(options.queues_max, Arc::clone(&stats)),
            company: Company::default(),
            shard,
            engine: options.engine,
            is_fixed,
            tasks: TaskWaits::new(pool, wake),
            log_line: LogLine::new(Arc::clone(&stats)),
            ready: Ready::new(),
            limited: LimitedRequests::default(),
            held: HeldWrites::new(Arc::clone(&stats)),
            advanced: false,
            done: Vec::new(),
            inbox,
            now: Instant::now(),
            stats,
        };
        this.arm_inbox();
        Ok(this)
    }
}

/// The ring, and whether appends go from registered buffers: with [`Engine::Direct`], where that is possible.
fn make_ring(setup: &Setup, pool: &Pool) -> Result<(Ring<Purpose>, bool), SetupError> {
    // One file more than queues: the lock of the cache.
    let files_max = setup.options.queues_max.saturating_add(1);
    let options = Options { files_max, ..Options::default() };
    let fail = |error| ("setting up io_uring", error);
    let mut ring = Ring::new(&options).map_err(fail)?;
    // A record must lie in one registered buffer.
    let is_possible = ring.has_writev_fixed().map_err(fail)? && pool.arena().1 <= REGISTERED_BYTES_MAX;
    if setup.options.engine == Engine::Buffered || !is_possible {
        return Ok((ring, false));
    }
    let registered = ring.register_arena(pool);
    if let Err(error) = &registered {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "running without registered buffers: raise LimitMEMLOCK above the size of the buffers"
        );
    }
    Ok((ring, registered.is_ok()))
}

/// The worker's shard of the log, with memory for the headers of appends that the ring carries out.
fn make_shard(setup: &Setup, ring: &Ring<Purpose>, pool: &Pool) -> Result<Shard<InFlight>, SetupError> {
    let mut shard = setup.cache.shard(setup.worker.index, Arc::clone(&setup.worker.shard_stats));
    if let Some(lock) = setup.cache.lock_fd() {
        ring.register_file(setup.options.queues_max, Some(lock.as_raw_fd()))
            .map_err(|error| ("registering the lock of the cache", error))?;
    }
    // An append begins while there are two headers for it, and mostly takes one.
    let headers_through = match THROUGH_MAX.min(setup.options.slots_per_worker / SLOTS_AN_APPEND) {
        0 => 0,
        appends => appends + 1,
    };
    let of = |pool: &Pool, count| (0..count).map_while(|_| pool.try_acquire(FRAME_BYTES)).collect();
    match setup.options.engine {
        Engine::Buffered if headers_through > 0 => {
            // No request has less memory because of these.
            let pool = Pool::new(1, Arc::default())
                .map_err(|error| ("making the buffers of headers", io::Error::other(error)))?;
            shard.write_through(of(&pool, headers_through));
        }
        Engine::Buffered => {}
        Engine::Direct => {
            // The ring may insist on registered memory.
            shard.defer_appends(of(pool, HEADERS));
            shard.write_through(of(pool, headers_through));
        }
    }
    Ok(shard)
}
