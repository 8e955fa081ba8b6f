//! Workers seen from other threads: how they are started, and how one is told something.
//!
//! Does not own the work itself (`run`).

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

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
    pub cpus: Vec<usize>,
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
    pub(super) index: usize,
    pub(super) inbox: Arc<Inbox>,
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
    /// Sends the message that `message` makes of the place for the answer, and waits for the answer.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, WorkerError> {
        let (told, is_told) = oneshot::channel();
        self.inbox.send(message(told));
        is_told.await.map_err(|_| WorkerError::Gone { index: self.index })
    }

    /// Hands the queue of `driver` to the worker. Resolves when the kernel has the commands which arm the tags; the inner receiver
    /// resolves when the kernel has taken back every tag, or refused to arm the tags, and the queue is gone.
    pub async fn attach(&self, driver: Box<dyn QueueDriver + Send>) -> Result<QueueGone, WorkerError> {
        let attached = self.ask(|armed| Message::Attach { driver, armed }).await?;
        attached.map_err(|source| WorkerError::Attach { index: self.index, source })
    }

    /// Fails every waiting request of exports for which [`Volume::end_waits`](crate::cache::Volume::end_waits) was called.
    /// Resolves when the requests in the worker's own lists have failed.
    pub async fn end_waits(&self) -> Result<(), WorkerError> {
        self.ask(Message::EndWaits).await
    }

    /// The name of the worker's thread.
    pub fn thread_name(&self) -> String {
        format!("worker-{}", self.index)
    }

    /// Resolves once the worker's loop has turned: the proof of life behind the watchdog.
    pub async fn ping(&self) -> Result<(), WorkerError> {
        self.ask(Message::Ping).await
    }
}

/// Starts one worker a CPU over `cache`, and waits until each is pinned and has an arena.
pub fn start(cache: &Cache, options: &WorkerOptions) -> Result<Vec<Worker>, WorkerError> {
    let traces = Arc::<TraceRing>::default();
    let mut starting = Vec::new();
    for (index, &cpu) in options.cpus.iter().enumerate() {
        let fail = move |what, source| WorkerError::Start { index, cpu, what, source };
        let worker = Worker {
            index,
            inbox: Arc::new(Inbox::new().map_err(|source| fail("making the eventfd", source))?),
            stats: Arc::default(),
            shard_stats: Arc::default(),
            load: Arc::default(),
            traces: Arc::clone(&traces),
        };
        let setup = Setup { cpu, options: options.clone(), cache: cache.clone(), worker: worker.clone() };
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name(worker.thread_name())
            .spawn(move || setup::main(setup, &ready))
            .map_err(|source| fail("spawning the thread", source))?;
        starting.push((worker, is_ready, fail));
    }
    let mut workers = Vec::new();
    for (worker, is_ready, fail) in starting {
        match is_ready.recv() {
            Ok(Ok(())) => workers.push(worker),
            Ok(Err((what, source))) => return Err(fail(what, source)),
            Err(_) => return Err(WorkerError::Gone { index: worker.index }),
        }
    }
    Ok(workers)
}
