//! Workers seen from other threads: how they are started, and how one is told something.
//!
//! Does not own the work itself (`run`).

use std::sync::Arc;
use std::thread;

use super::affinity::Cpu;
use super::driver::{QueueDriver, QueueGone};
use super::engine::Engine;
use super::inbox::{Inbox, Message};
use super::load::Load;
use super::run::setup::{self, Setup};
use crate::cache::{Cache, ShardStats};
use crate::observe::io::WorkerStats;
use crate::observe::trace::TraceRing;

/// Why workers could not be started, or a worker could not be told something.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The thread could not be made or pinned, or the thread's resources could not be had.
    #[error("worker {index} on CPU {cpu} could not start: {what} failed")]
    Start {
        /// Number of the worker, counted from 0.
        index: usize,
        /// The CPU chosen for the worker.
        cpu: usize,
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The worker's thread does not exist any more.
    #[error("worker {index} has ended")]
    Gone {
        /// Number of the worker, counted from 0.
        index: usize,
    },
    /// The worker has no room for a queue, or a tag of the queue could not be armed.
    #[error("worker {index} could not take a queue")]
    Attach {
        /// Number of the worker, counted from 0.
        index: usize,
        #[source]
        source: std::io::Error,
    },
}

/// The number of workers, and the bounds that hold for each.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The CPUs to use, one worker each.
    pub cpus: Vec<Cpu>,
    /// Slots of 128 KiB in each worker's arena.
    pub slots_per_worker: usize,
    /// Queues which one worker can host, at most.
    pub queues_max: u32,
    /// How each worker appends to the log.
    pub engine: Engine,
}

/// A handle on one worker.
#[derive(Clone)]
pub struct Worker {
    index: usize,
    inbox: Arc<Inbox>,
    /// Counters of the worker and of its buffer pool.
    pub stats: Arc<WorkerStats>,
    /// Counters of the worker's shard of the log.
    pub shard_stats: Arc<ShardStats>,
    /// The CPU time of the worker's thread.
    pub load: Arc<Load>,
    /// The requests that `glidefs trace` shows, of all workers that were started together.
    pub traces: Arc<TraceRing>,
}

impl Worker {
    /// Hands the queue of `driver` to the worker. Resolves when the kernel has the commands which arm the tags; the inner receiver
    /// resolves when the kernel has taken back every tag, or refused to arm the tags, and the queue is gone.
    pub async fn attach(&self, driver: Box<dyn QueueDriver + Send>) -> Result<QueueGone, WorkerError> {
        let (armed, is_armed) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::Attach { driver, armed });
        match is_armed.await {
            Ok(Ok(gone)) => Ok(gone),
            Ok(Err(source)) => Err(WorkerError::Attach { index: self.index, source }),
            Err(_) => Err(WorkerError::Gone { index: self.index }),
        }
    }

    /// Fails every waiting request of exports for which [`Volume::end_waits`](crate::cache::Volume::end_waits) was called.
    /// Resolves when the requests in the worker's own lists have failed.
    pub async fn end_waits(&self) -> Result<(), WorkerError> {
        let (told, is_told) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::EndWaits(told));
        is_told.await.map_err(|_| WorkerError::Gone { index: self.index })
    }

    /// The name of the worker's thread.
    pub fn thread_name(&self) -> String {
        thread_name(self.index)
    }

    /// Resolves once the worker's loop has turned: the proof of life behind the watchdog.
    pub async fn ping(&self) -> Result<(), WorkerError> {
        let (pong, is_alive) = tokio::sync::oneshot::channel();
        self.inbox.send(Message::Ping(pong));
        is_alive.await.map_err(|_| WorkerError::Gone { index: self.index })
    }
}

fn thread_name(index: usize) -> String {
    format!("worker-{index}")
}

/// Starts one worker a CPU over `cache`, and waits until each is pinned and has an arena.
pub fn start(cache: &Cache, options: &WorkerOptions) -> Result<Vec<Worker>, WorkerError> {
    let traces = Arc::<TraceRing>::default();
    let mut starting = Vec::new();
    for (index, &cpu) in options.cpus.iter().enumerate() {
        let fail = move |what, source| WorkerError::Start { index, cpu: cpu.0, what, source };
        let inbox = Arc::new(Inbox::new().map_err(|source| fail("making the eventfd", source))?);
        let stats = Arc::new(WorkerStats::default());
        let shard_stats = Arc::new(ShardStats::default());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let setup = Setup {
            index,
            cpu,
            slots: options.slots_per_worker,
            queues_max: options.queues_max,
            engine: options.engine,
            cache: cache.clone(),
            inbox: Arc::clone(&inbox),
            stats: Arc::clone(&stats),
            shard_stats: Arc::clone(&shard_stats),
            traces: Arc::clone(&traces),
        };
        let traces = Arc::clone(&traces);
        thread::Builder::new()
            .name(thread_name(index))
            .spawn(move || setup::main(setup, &ready))
            .map_err(|source| fail("spawning the thread", source))?;
        let worker = move |clock| Worker {
            index,
            inbox,
            load: Arc::new(Load::new(clock)),
            stats,
            shard_stats,
            traces,
        };
        starting.push((index, worker, cpu, is_ready));
    }
    let mut workers = Vec::new();
    for (index, worker, cpu, is_ready) in starting {
        match is_ready.recv() {
            Ok(Ok(clock)) => workers.push(worker(clock)),
            Ok(Err((what, source))) => {
                return Err(WorkerError::Start { index, cpu: cpu.0, what, source });
            }
            Err(_) => return Err(WorkerError::Gone { index }),
        }
    }
    Ok(workers)
}
