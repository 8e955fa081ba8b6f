//! The queues which a worker hosts: where requests come from, and where results go.
//!
//! Owns the queue index, in the worker's table and in the ring's file table. Invariant: a queue index is free again only when
//! the kernel has returned every tag that was armed, and the queue's driver is gone.

mod pause;
mod results;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use io_uring::squeue;
use slab::Slab;
use tokio::sync::oneshot;

use self::pause::Pause;
use super::driver::{Failure, QueueDriver, QueueGone, TagEvent};
use super::requests::TagRequest;
use super::ring::Ring;
use super::tag::TagId;
use crate::cache::Volume;
use crate::export::Export;
use crate::observe::io::{QueueStats, WorkerStats};

#[cfg(test)]
pub(super) use results::log_failure;

/// One queue in the table.
pub struct HostedQueue {
    /// The kernel's side of the queue.
    pub driver: Box<dyn QueueDriver + Send>,
    /// The export behind the queue: the route of a request, resolved once.
    export: Arc<Export>,
    stats: Arc<QueueStats>,
    /// Tags which the kernel has taken back.
    tags_gone: u16,
    /// While the device is being moved to other workers.
    pause: Option<Box<Pause>>,
    /// Told when `tags_gone` is the queue's depth and the driver is dropped.
    gone: Option<oneshot::Sender<()>>,
}

/// The table of a worker's queues.
pub struct Queues {
    /// The key is the queue index.
    table: Slab<HostedQueue>,
    queues_max: u32,
    stats: Arc<WorkerStats>,
}

impl Queues {
    pub fn new(queues_max: u32, stats: Arc<WorkerStats>) -> Self {
        Self { table: Slab::new(), queues_max, stats }
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
        mut driver: Box<dyn QueueDriver + Send>,
    ) -> io::Result<QueueGone> {
        let (device_id, queue_id) = driver.ids();
        let export = Arc::clone(driver.export());
        let stats = export.queue_stats(queue_id);
        let entry = self.table.vacant_entry();
        // In the ring's file table the lock of the cache is behind the last queue.
        let free = u32::try_from(entry.key()).ok().filter(|index| *index < self.queues_max);
        let queue_index = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        ring.register_file(queue_index, driver.char_device())?;
        let commands: Vec<_> = (0..driver.depth())
            .map(|tag| (driver.arm(tag, queue_index), TagId { queue_index, tag }))
            .collect();
        let (gone_sender, gone) = oneshot::channel();
        let depth = driver.depth();
        entry.insert(HostedQueue {
            driver,
            export,
            stats,
            tags_gone: 0,
            pause: None,
            gone: Some(gone_sender),
        });
        self.stats.queues.add(1);
        let mut armed = 0;
        let outcome = commands.into_iter().try_for_each(|(arm, tag)| {
            command(ring, arm, tag)?;
            armed += 1;
            Ok(())
        });
        if let Err(error) = outcome.and_then(|()| ring.submit()) {
            // The kernel returns the armed tags when the device is stopped. The kernel does not know the others.
            self.tags_gone(ring, queue_index, depth - armed)?;
            return Err(error);
        }
        tracing::debug!(device_id, queue_id, "queue attached");
        Ok(gone)
    }

    /// Reads the meaning of completion `result` of a tag's command.
    pub fn event(&self, tag: TagId, result: i32) -> io::Result<TagEvent> {
        let TagId { queue_index, tag } = tag;
        let Some(queue) = self.table.get(queue_index as usize) else {
            return Err(io::Error::other(format!("completion for queue index {queue_index}, which is free")));
        };
        Ok(queue.driver.event(tag, result))
    }

    /// Takes the request which a tag holds. Each request taken is answered exactly once.
    ///
    /// # Errors
    /// When the request is malformed or reaches beyond the export: answer with the failure.
    #[inline]
    pub fn take_request(&mut self, tag: TagId, now: Instant) -> Result<TagRequest, Failure> {
        let queue = &self.table[tag.queue_index as usize];
        self.stats.requests.add(1);
        queue.stats.in_flight.add(1);
        let request = queue.driver.request(tag.tag)?;
        queue.export.check(&request)?;
        let (operation, range, fua) = (request.operation, request.range, request.fua);
        Ok(TagRequest { tag, operation, range, fua, kept: None, started: now })
    }

    /// Notes that `count` tags of a queue will not complete again, and lets go of the queue with the last of its tags.
    pub fn tags_gone<C>(&mut self, ring: &mut Ring<C>, queue_index: u32, count: u16) -> io::Result<()> {
        let queue = &mut self.table[queue_index as usize];
        queue.tags_gone += count;
        if queue.tags_gone == queue.driver.depth() { self.let_go(ring, queue_index) } else { Ok(()) }
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

/// Queues a command which a driver made for one of its tags.
fn command<C>(ring: &mut Ring<C>, command: squeue::Entry, tag: TagId) -> io::Result<()> {
    // SAFETY: a queue's command points at nothing but the tag's stable buffer, which lives as long as the driver, and the
    // driver is dropped after every tag's last completion.
    unsafe { ring.command(command, tag.encode()) }
}
