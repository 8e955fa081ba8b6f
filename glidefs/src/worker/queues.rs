//! The queues which a worker hosts: where requests come from, and where results go.
//!
//! FETCH arms a tag and completes with a request; COMMIT_AND_FETCH answers, and arms the tag again.
//!
//! Owns the queue index, in the worker's table and in the ring's file table. Does not own the commands ([`QueueDriver`]), nor the
//! meaning of a request. Invariant: a queue index is free again only when the kernel has returned every tag that was armed, and the
//! queue's driver is gone.

mod results;

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use io_uring::squeue;
use slab::Slab;
use tokio::sync::oneshot;

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
    /// Since the first request: most devices of a host may be idle.
    stats: OnceCell<Arc<QueueStats>>,
    /// Tags which the kernel has taken back.
    tags_gone: u16,
    /// Told when the kernel has taken every tag back and the driver is dropped.
    gone: oneshot::Sender<()>,
}

impl HostedQueue {
    /// The counters of a queue which has had a request.
    #[inline]
    fn stats(&self) -> &QueueStats {
        self.stats.get_or_init(|| self.export.queue_stats(self.driver.ids().1))
    }

    /// Arms every tag. After an error, the tags which the kernel does not know are gone.
    fn arm<C>(&mut self, ring: &mut Ring<C>, queue_index: u32) -> io::Result<()> {
        let depth = self.driver.depth();
        for tag in 0..depth {
            let arm = self.driver.arm(tag, queue_index);
            if let Err(error) = command(ring, arm, TagId { queue_index, tag }) {
                self.tags_gone = depth - tag;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Queues a command which a driver made for one of its tags.
fn command<C>(ring: &mut Ring<C>, command: squeue::Entry, tag: TagId) -> io::Result<()> {
    // SAFETY: a queue's command points at nothing but the tag's stable buffer, which lives as long as the driver, and the
    // driver is dropped after every tag's last completion.
    unsafe { ring.command(command, tag.encode()) }
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
        driver: Box<dyn QueueDriver + Send>,
    ) -> io::Result<QueueGone> {
        let (device_id, queue_id) = driver.ids();
        let export = Arc::clone(driver.export());
        let entry = self.table.vacant_entry();
        // In the ring's file table the lock of the cache is behind the last queue.
        let free = u32::try_from(entry.key()).ok().filter(|index| *index < self.queues_max);
        let queue_index = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        ring.register_file(queue_index, Some(driver.char_device()))?;
        let (gone_sender, gone) = oneshot::channel();
        let queue = entry.insert(HostedQueue {
            driver,
            export,
            stats: OnceCell::new(),
            tags_gone: 0,
            gone: gone_sender,
        });
        self.stats.queues.add(1);
        let armed = queue.arm(ring, queue_index);
        if let Err(error) = armed.and_then(|()| ring.submit()) {
            // The kernel returns the armed tags when the device is stopped. The kernel does not know the others.
            self.settle(ring, queue_index)?;
            return Err(error);
        }
        tracing::debug!(device_id, queue_id, "queue attached");
        Ok(gone)
    }

    /// Takes note of the end of a tag's command. Returns the tag if it holds a request now.
    pub fn ended<C>(&mut self, ring: &Ring<C>, token: u64, result: i32) -> io::Result<Option<TagId>> {
        let tag = TagId::decode(token);
        let Some(queue) = self.table.get_mut(tag.queue_index as usize) else {
            return Err(io::Error::other(format!(
                "completion for queue index {}, which is free",
                tag.queue_index
            )));
        };
        match queue.driver.event(tag.tag, result) {
            TagEvent::Request => Ok(Some(tag)),
            TagEvent::Gone => {
                queue.tags_gone += 1;
                self.settle(ring, tag.queue_index)?;
                Ok(None)
            }
        }
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
        Ok(TagRequest { tag, operation, range, fua, kept: None, promised: false, started: now })
    }

    /// Lets go of a queue all of whose tags the kernel has taken back.
    fn settle<C>(&mut self, ring: &Ring<C>, queue_index: u32) -> io::Result<()> {
        let queue = &self.table[queue_index as usize];
        if queue.tags_gone < queue.driver.depth() {
            return Ok(());
        }
        ring.register_file(queue_index, None)?;
        let queue = self.table.remove(queue_index as usize);
        let (device_id, queue_id) = queue.driver.ids();
        self.stats.queues.sub(1);
        // The device can be deleted only when its descriptors and mappings are gone: drop before telling.
        drop((queue.driver, queue.export));
        let _ = queue.gone.send(());
        tracing::debug!(device_id, queue_id, "queue let go");
        Ok(())
    }
}
