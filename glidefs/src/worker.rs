//! Pinned threads that serve the queues of many devices, one io_uring each.
//!
//! ```text
//!  device queues ──CQE──▶ requests ──slot──▶ cache shard ──turn──▶ completed ──SQE──▶ device queues
//!        ▲                   │ no slot: executor    │ must wait: ring (fdatasync, read)     │
//!        └───────────────────┴──────────────────────┴───────────────────────────────────────┘
//! ```
//!
//! Owns the threads, their rings, inboxes, buffer pools and the way of a request through them. Does not own what a
//! queue is ([`QueueDriver`], implemented by `ublk`), nor where bytes live (`cache`).
//!
//! Invariants: a worker never blocks outside its ring's wait; each tag has exactly one SQE or one request outstanding;
//! a worker that ends unexpectedly takes the process with it, because its devices would hang for ever otherwise.

pub mod affinity;
pub mod driver;
pub mod engine;
mod executor;
mod held;
mod inbox;
mod requests;
pub mod ring;
mod run;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;
use std::thread;

use crate::cache::{Cache, ShardStats};
use crate::observe::io::WorkerStats;
use affinity::Cpu;
pub use driver::{Failure, QueueDriver};
use engine::Appends;
use inbox::{Inbox, Message};

/// Why workers could not be started or told something.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The thread could not be made, pinned or given its resources.
    #[error("worker {index} on CPU {cpu} could not start: {what} failed")]
    Start {
        /// Which worker.
        index: usize,
        /// The CPU it was to be pinned to.
        cpu: usize,
        /// The step that failed.
        what: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The worker has ended.
    #[error("worker {index} has ended")]
    Gone {
        /// Which worker.
        index: usize,
    },
    /// The worker could not take the queue.
    #[error("worker {index} could not take a queue")]
    Attach {
        /// Which worker.
        index: usize,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// How workers are made.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The CPUs to use, one worker each.
    pub cpus: Vec<Cpu>,
    /// Slots of 128 KiB in each worker's arena.
    pub slots_per_worker: usize,
    /// Queues a worker can host, at most.
    pub queues_max: u32,
    /// How it appends to the log.
    pub appends: Appends,
}

/// A handle on one worker.
#[derive(Clone)]
pub struct Worker {
    index: usize,
    inbox: Arc<Inbox>,
    stats: Arc<WorkerStats>,
    shard_stats: Arc<ShardStats>,
}

/// Resolves when a queue has been let go of: nothing refers to its device any more.
pub type QueueGone = tokio::sync::oneshot::Receiver<()>;

impl Worker {
    /// Hands `driver`'s queue to the worker. Resolves when every tag has been armed; the inner receiver resolves when
    /// the kernel has aborted every tag and the queue is gone.
    pub async fn attach(&self, driver: Box<dyn QueueDriver + Send>) -> Result<QueueGone, WorkerError> {
        let (armed, is_armed) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::Attach { driver, armed });
        match is_armed.await {
            Ok(Ok(gone)) => Ok(gone),
            Ok(Err(source)) => Err(WorkerError::Attach { index: self.index, source }),
            Err(_) => Err(WorkerError::Gone { index: self.index }),
        }
    }

    /// Has the worker fail every request that waits although [`Volume::end_waits`](crate::cache::Volume::end_waits) says that
    /// requests of its export may not; resolves when those in the worker's own lists have failed.
    pub async fn end_waits(&self) -> Result<(), WorkerError> {
        let (told, is_told) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::EndWaits(told));
        is_told.await.map_err(|_| WorkerError::Gone { index: self.index })
    }

    /// Resolves once the worker's loop has turned: the proof of life behind the watchdog.
    pub async fn ping(&self) -> Result<(), WorkerError> {
        let (pong, is_alive) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::Ping(pong));
        is_alive.await.map_err(|_| WorkerError::Gone { index: self.index })
    }

    /// Which worker, counted from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The counters of the worker's part of the log.
    pub fn shard_stats(&self) -> &Arc<ShardStats> {
        &self.shard_stats
    }

    /// The worker's counters.
    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }
}

/// Starts one worker a CPU over `cache`, and waits until each is pinned and has its arena.
pub fn start(cache: &Cache, options: &WorkerOptions) -> Result<Vec<Worker>, WorkerError> {
    let mut starting = Vec::new();
    for (index, &cpu) in options.cpus.iter().enumerate() {
        let fail = move |what, source| WorkerError::Start { index, cpu: cpu.0, what, source };
        let inbox = Arc::new(Inbox::new().map_err(|source| fail("making the eventfd", source))?);
        let stats = Arc::new(WorkerStats::default());
        let shard_stats = Arc::new(ShardStats::default());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let setup = run::Setup {
            index,
            cpu,
            slots: options.slots_per_worker,
            queues_max: options.queues_max,
            appends: options.appends,
            cache: cache.clone(),
            inbox: Arc::clone(&inbox),
            stats: Arc::clone(&stats),
            shard_stats: Arc::clone(&shard_stats),
        };
        thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || run::main(setup, &ready))
            .map_err(|source| fail("spawning the thread", source))?;
        starting.push((Worker { index, inbox, stats, shard_stats }, cpu, is_ready));
    }
    let mut workers = Vec::new();
    for (worker, cpu, is_ready) in starting {
        match is_ready.recv() {
            Ok(Ok(())) => workers.push(worker),
            Ok(Err((what, source))) => {
                return Err(WorkerError::Start { index: worker.index, cpu: cpu.0, what, source });
            }
            Err(_) => return Err(WorkerError::Gone { index: worker.index }),
        }
    }
    Ok(workers)
}
