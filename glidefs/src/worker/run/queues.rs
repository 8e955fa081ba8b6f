//! The queues that a worker hosts: how one comes, and how one goes.
//!
//! Owns a queue's place in the worker's table and in the ring's file table. Does not own what becomes of requests. Invariant: a
//! place is free again only when the kernel has returned every tag that was armed, and the queue's driver is gone.

use std::io;
use std::sync::Arc;

use io_uring::squeue;
use tokio::sync::oneshot;

use super::{HostedQueue, Loop, QueueDriver, QueueGone, TagId};

impl Loop {
    /// Hosts a queue: arms every tag.
    ///
    /// # Errors
    /// When a tag could not be armed. The queue leaves its place when the kernel has returned the tags armed before.
    pub(super) fn attach(&mut self, mut driver: Box<dyn QueueDriver + Send>) -> io::Result<QueueGone> {
        let (device_id, queue_id) = driver.ids();
        let export = Arc::clone(driver.export());
        let stats = export.queue_stats(queue_id);
        let entry = self.queues.vacant_entry();
        // Behind the last queue's place is the lock of the cache.
        let free = u32::try_from(entry.key()).ok().filter(|slot| *slot < self.queues_max);
        let slot = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        self.ring.register_file(slot, driver.char_device())?;
        let fetches: Vec<_> =
            (0..driver.depth()).map(|tag| (driver.fetch(tag, slot), TagId { slot, tag })).collect();
        let (gone_sender, gone) = oneshot::channel();
        let depth = driver.depth();
        entry.insert(HostedQueue { driver, export, stats, tags_gone: 0, gone: Some(gone_sender) });
        self.stats.queues.add(1);
        let mut armed = 0;
        let outcome = fetches.into_iter().try_for_each(|(fetch, tag)| {
            self.command(fetch, tag)?;
            armed += 1;
            Ok(())
        });
        if let Err(error) = outcome.and_then(|()| self.ring.submit()) {
            // The kernel takes the armed tags back when the device is stopped; nothing is left of the others.
            self.tags_gone(slot, depth - armed)?;
            return Err(error);
        }
        tracing::debug!(device_id, queue_id, "queue attached");
        Ok(gone)
    }

    /// Takes note that `count` tags of a queue will not complete again.
    pub(super) fn tags_gone(&mut self, slot: u32, count: u16) -> io::Result<()> {
        let queue = &mut self.queues[slot as usize];
        queue.tags_gone += count;
        if queue.tags_gone == queue.driver.depth() { self.let_go(slot) } else { Ok(()) }
    }

    /// Queues a command that a driver made for one of its tags.
    pub(super) fn command(&mut self, command: squeue::Entry, tag: TagId) -> io::Result<()> {
        // SAFETY: a queue's command points at nothing but the tag's stable buffer, which lives as long as the driver, and the
        // driver is dropped after every tag's last completion.
        unsafe { self.ring.command(command, tag.encode()) }
    }

    /// Removes a queue all of whose tags the kernel has taken back.
    fn let_go(&mut self, slot: u32) -> io::Result<()> {
        self.ring.unregister_file(slot)?;
        let queue = self.queues.remove(slot as usize);
        let (device_id, queue_id) = queue.driver.ids();
        self.stats.queues.sub(1);
        // The device can be deleted only when its descriptors and mappings are gone: drop before telling.
        drop(queue.driver);
        if let Some(gone) = queue.gone {
            let _ = gone.send(());
        }
        tracing::debug!(device_id, queue_id, "queue let go");
        Ok(())
    }
}
