//! The way of requests and answers between the kernel and a queue.
//!
//! ```text
//!  a command for each tag   FETCH arms a tag and completes with a request; COMMIT_AND_FETCH answers, and arms the tag again
//!  batches                  one command delivers the tags with requests, another gives the answers of a turn (`batch`)
//! ```
//!
//! Owns which tags the kernel has taken back. Does not own the commands (`QueueDriver`), nor the meaning of a request. Invariant: a
//! queue is gone when no command of the queue is under way and no request is in the worker's hands.

use std::io;

use io_uring::squeue;

use super::batch::Batch;
use crate::worker::driver::{Failure, QueueDriver, TagEvent};
use crate::worker::ring::Ring;
use crate::worker::tag::TagId;

/// One way, for the whole life of a queue: the device was made for the way.
pub(super) enum Transport {
    PerTag(PerTag),
    Batch(Box<Batch>),
}

/// A command for each tag.
#[derive(Default)]
pub(super) struct PerTag {
    /// Tags which the kernel has taken back.
    gone: u16,
}

impl Transport {
    /// The way of the queue behind `driver`.
    pub fn new<C>(driver: &dyn QueueDriver, ring: &mut Ring<C>) -> io::Result<Self> {
        Ok(match driver.batch() {
            None => Self::PerTag(PerTag::default()),
            Some(_) => Self::Batch(Box::new(Batch::new(driver.depth(), ring.delivery_group()?))),
        })
    }

    /// Arms every tag. After an error, the tags which the kernel does not know are gone.
    pub fn arm<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &mut (dyn QueueDriver + Send),
        queue_index: u32,
    ) -> io::Result<()> {
        match self {
            Self::PerTag(tags) => tags.arm(ring, driver, queue_index),
            Self::Batch(batch) => batch.prepare(ring, driver, queue_index),
        }
    }

    /// Answers the request of a tag. True when the answer is the first of those which [`hand_over`](super::Queues::hand_over) gives to
    /// the kernel.
    #[inline]
    pub fn answer<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &mut (dyn QueueDriver + Send),
        tag: TagId,
        result: Result<u32, &Failure>,
    ) -> io::Result<bool> {
        match self {
            Self::PerTag(_) => {
                command(ring, driver.answer(tag.tag, tag.queue_index, result), tag).map(|()| false)
            }
            Self::Batch(batch) => Ok(batch.answer(driver, tag.tag, result)),
        }
    }

    /// Notes that the worker will not answer the request of a tag.
    pub fn give_up(&mut self, tag: u16) {
        match self {
            Self::PerTag(tags) => tags.gone += 1,
            Self::Batch(batch) => batch.give_up(tag),
        }
    }

    /// Whether nothing of a queue of this depth is under way any more.
    pub fn is_gone(&self, depth: u16) -> bool {
        match self {
            Self::PerTag(tags) => tags.gone == depth,
            Self::Batch(batch) => batch.is_gone(),
        }
    }
}

impl PerTag {
    fn arm<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &mut (dyn QueueDriver + Send),
        queue_index: u32,
    ) -> io::Result<()> {
        let depth = driver.depth();
        for tag in 0..depth {
            let arm = driver.arm(tag, queue_index);
            if let Err(error) = command(ring, arm, TagId { queue_index, tag }) {
                self.gone = depth - tag;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether the tag holds a request, now that the tag's command has ended with `result`.
    pub fn ended(&mut self, driver: &dyn QueueDriver, tag: TagId, result: i32) -> bool {
        match driver.event(tag.tag, result) {
            TagEvent::Request => true,
            TagEvent::Gone => {
                self.gone += 1;
                false
            }
        }
    }
}

/// Queues a command which a driver made for one of its tags.
pub(super) fn command<C>(ring: &mut Ring<C>, command: squeue::Entry, tag: TagId) -> io::Result<()> {
    // SAFETY: a queue's command points at nothing but the tag's stable buffer, which lives as long as the driver, and the
    // driver is dropped after every tag's last completion.
    unsafe { ring.command(command, tag.encode()) }
}
