//! The queues which a worker hosts: where requests come from, and where results go.
//!
//! Owns the queue index, in the worker's table and in the ring's file table. Does not own the way of requests and answers between
//! kernel and worker ([`transport`]). Invariant: a queue index is free again only when the kernel has returned every tag that was
//! armed, and the queue's driver is gone.

mod batch;
mod pause;
mod results;
mod transport;

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::sync::oneshot;

use self::pause::Pause;
use self::transport::Transport;
use super::driver::{Failure, QueueDriver, QueueGone};
use super::requests::TagRequest;
use super::ring::{Outcome, Ring};
use super::tag::TagId;
use super::traces::{self, Arrival, RowNumber};
use crate::cache::Volume;
use crate::export::Export;
use crate::observe::io::{QueueStats, WorkerStats};

#[cfg(test)]
pub(super) use results::log_failure;

/// Vectors kept for their room: one for each queue that answers in the same turn, in most turns.
const SPARE_MAX: usize = 64;

/// One queue in the table.
pub struct HostedQueue {
    /// The kernel's side of the queue.
    pub driver: Box<dyn QueueDriver + Send>,
    /// The export behind the queue: the route of a request, resolved once.
    export: Arc<Export>,
    /// Since the first request: most devices of a host may be idle.
    stats: OnceCell<Arc<QueueStats>>,
    transport: Transport,
    /// While the device is being moved to other workers.
    pause: Option<Box<Pause>>,
    /// Told when the kernel has taken every tag back and the driver is dropped.
    gone: Option<oneshot::Sender<()>>,
}

impl HostedQueue {
    /// The counters of a queue which has had a request.
    #[inline]
    fn stats(&self) -> &QueueStats {
        self.stats.get_or_init(|| self.export.queue_stats(self.driver.ids().1))
    }
}

/// The table of a worker's queues.
pub struct Queues {
    /// The key is the queue index.
    table: Slab<HostedQueue>,
    queues_max: u32,
    /// Queues with answers that [`Queues::hand_over`] gives to the kernel.
    answered: Vec<u32>,
    /// Empty vectors for the elements of commands, kept for their room.
    spare: Vec<Vec<u64>>,
    stats: Arc<WorkerStats>,
}

impl Queues {
    pub fn new(queues_max: u32, stats: Arc<WorkerStats>) -> Self {
        Self { table: Slab::new(), queues_max, answered: Vec::new(), spare: Vec::new(), stats }
    }

    /// The queue of a tag which holds a request.
    #[inline]
    pub fn of(&self, tag: TagId) -> &HostedQueue {
        &self.table[tag.queue_index as usize]
    }

    /// The export behind a tag which holds a request.
    #[inline]
    pub fn export(&self, tag: TagId) -> &Arc<Export> {
        &self.of(tag).export
    }

    /// The volume behind a tag which holds a request.
    #[inline]
    pub fn volume(&self, tag: TagId) -> &Arc<Volume> {
        self.of(tag).export.volume()
    }

    /// Hosts a queue: arms every tag.
    ///
    /// # Errors
    /// When a tag could not be armed. The queue is let go of when the kernel has returned the tags armed before.
    pub fn attach<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: Box<dyn QueueDriver + Send>,
    ) -> io::Result<QueueGone> {
        let (device_id, queue_id) = driver.ids();
        let export = Arc::clone(driver.export());
        let entry = self.table.vacant_entry();
        // In the ring's file table the lock of the cache is behind the last queue.
        let free = u32::try_from(entry.key()).ok().filter(|index| *index < self.queues_max);
        let queue_index = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        let transport = Transport::new(&*driver, ring)?;
        ring.register_file(queue_index, driver.char_device())?;
        let (gone_sender, gone) = oneshot::channel();
        let queue = entry.insert(HostedQueue {
            driver,
            export,
            stats: OnceCell::new(),
            transport,
            pause: None,
            gone: Some(gone_sender),
        });
        self.stats.queues.add(1);
        let armed = queue.transport.arm(ring, &mut *queue.driver, queue_index);
        if let Err(error) = armed.and_then(|()| ring.submit()) {
            // The kernel returns the armed tags when the device is stopped. The kernel does not know the others.
            self.settle(ring, queue_index)?;
            return Err(error);
        }
        tracing::debug!(device_id, queue_id, "queue attached");
        Ok(gone)
    }

    /// Takes note of the news of a queue's command. Returns the tag which holds a request now, if any.
    pub fn news<C>(&mut self, ring: &mut Ring<C>, token: u64, outcome: Outcome) -> io::Result<Option<TagId>> {
        let tag = TagId::decode(token);
        let Some(queue) = self.table.get_mut(tag.queue_index as usize) else {
            return Err(io::Error::other(format!(
                "completion for queue index {}, which is free",
                tag.queue_index
            )));
        };
        let HostedQueue { driver, transport, .. } = queue;
        let arrived = match (transport, outcome) {
            (Transport::PerTag(tags), Outcome::Ended(result)) => tags.ended(&**driver, tag, result),
            (Transport::Batch(batch), Outcome::Value(tag)) => {
                let arrived = batch.delivered(&**driver, tag);
                return Ok(arrived.then_some(TagId { tag, ..TagId::decode(token) }));
            }
            (Transport::Batch(batch), Outcome::Ended(result)) => {
                batch.fetch_ended(ring, &**driver, tag.queue_index, result)?;
                false
            }
            (Transport::Batch(batch), Outcome::Returned(result, elements)) => {
                let returned = batch.returned(ring, &**driver, tag.queue_index, (result, elements))?;
                if self.spare.len() < SPARE_MAX {
                    self.spare.push(returned.elements);
                }
                if returned.has_answers {
                    self.answered.push(tag.queue_index);
                }
                false
            }
            (Transport::PerTag(_), outcome) => {
                return Err(io::Error::other(format!("{outcome:?} of a queue with commands for each tag")));
            }
        };
        if arrived {
            return Ok(Some(tag));
        }
        self.settle(ring, tag.queue_index)?;
        Ok(None)
    }

    /// Takes the request which a tag holds. Each request taken is answered exactly once.
    ///
    /// # Errors
    /// When the request is malformed or reaches beyond the export: answer with the failure.
    #[inline]
    pub fn take_request(&mut self, tag: TagId, now: Instant) -> Result<TagRequest, Failure> {
        let queue = &self.table[tag.queue_index as usize];
        self.stats.requests.add(1);
        queue.stats().in_flight.add(1);
        let request = queue.driver.request(tag.tag)?;
        queue.export.check(&request)?;
        let (operation, range, fua) = (request.operation, request.range, request.fua);
        Ok(TagRequest { tag, operation, range, fua, traced: None, kept: None, started: now })
    }

    /// The row of a request which has just come, if a reader of traces chooses the request.
    pub fn trace(&self, request: &TagRequest, unseen_max: Duration) -> Option<RowNumber> {
        let TagRequest { tag, operation, range, fua, started, .. } = *request;
        let queue = self.of(tag);
        let (export, ids) = (&*queue.export, queue.driver.ids());
        traces::begin(&Arrival {
            export,
            ids,
            tag: tag.tag,
            operation,
            range,
            fua,
            began: started,
            unseen_max,
        })
    }

    /// Gives the gathered answers of all queues to the ring, whose next submit gives them to the kernel.
    pub fn hand_over<C>(&mut self, ring: &mut Ring<C>) -> io::Result<()> {
        while let Some(queue_index) = self.answered.pop() {
            let Some(HostedQueue { driver, transport: Transport::Batch(batch), .. }) =
                self.table.get_mut(queue_index as usize)
            else {
                return Err(io::Error::other(format!("answers of queue index {queue_index}, which is free")));
            };
            let room = self.spare.pop().unwrap_or_default();
            batch.commit(ring, &**driver, queue_index, room)?;
        }
        Ok(())
    }

    /// Notes that the worker will not answer the request of a tag: the tag stays the server's for the kernel, which therefore gives the
    /// request to the next server.
    fn give_up<C>(&mut self, ring: &mut Ring<C>, tag: TagId) -> io::Result<()> {
        self.table[tag.queue_index as usize].transport.give_up(tag.tag);
        self.settle(ring, tag.queue_index)
    }

    /// Lets go of a queue all of whose tags the kernel has taken back.
    fn settle<C>(&mut self, ring: &mut Ring<C>, queue_index: u32) -> io::Result<()> {
        let queue = &self.table[queue_index as usize];
        if queue.transport.is_gone(queue.driver.depth()) { self.let_go(ring, queue_index) } else { Ok(()) }
    }

    /// Removes a queue all of whose tags the kernel has taken back.
    fn let_go<C>(&mut self, ring: &mut Ring<C>, queue_index: u32) -> io::Result<()> {
        ring.unregister_file(queue_index)?;
        let queue = self.table.remove(queue_index as usize);
        let (device_id, queue_id) = queue.driver.ids();
        self.stats.queues.sub(1);
        // The device can be deleted only when its descriptors and mappings are gone: drop before telling.
        drop((queue.driver, queue.export));
        if let Some(gone) = queue.gone {
            let _ = gone.send(());
        }
        tracing::debug!(device_id, queue_id, "queue let go");
        Ok(())
    }
}
