//! Queues of a device that is being moved to other workers.
//!
//! A queue is *paused* before the kernel is asked to quiesce the device, and *leaves* when the kernel has agreed. Between the two
//! the requests which the worker has begun end, or the queue goes on: a device with requests that wait is not moved. A paused queue
//! gives the kernel no command: each answer is kept, and each request that comes, or fails, is set aside. So no COMMIT_AND_FETCH
//! meets the kernel's walk over the tags: the walk takes back each armed tag, but not a tag that is armed in the middle of the
//! walk, or after. When the queue leaves, the kernel gets nothing any more: whatever was kept or set aside is the kernel's again
//! with the end of the queue, and the kernel gives these requests to the next worker. A request is therefore carried out twice at
//! most and acknowledged once, as after the death of a daemon. A queue with batches can be paused and can leave as well, but `ublk` moves
//! no device with batches.
//!
//! Owns what is kept and set aside. Does not own the moment of each step (`ublk`). Invariants: a queue is let go of only when each
//! request that this worker began has ended here, so nothing of such a request can follow what the next worker does; a queue that
//! goes on instead answers each kept request, and serves each request set aside.

use std::io;

use super::Queues;
use crate::worker::ring::Ring;
use crate::worker::tag::TagId;

/// What a paused queue keeps from the kernel.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Whether the kernel has agreed to take the device back.
    is_leaving: bool,
    /// Tags of requests which have succeeded, with the bytes moved.
    answers: Vec<(u16, u32)>,
    /// Tags of requests which nobody has served, or which have failed.
    aside: Vec<u16>,
}

impl Queues {
    /// Whether the queue of `tag` is paused, or leaves.
    #[inline]
    pub fn is_paused(&self, tag: TagId) -> bool {
        self.of(tag).pause.is_some()
    }

    /// Pauses each queue of a device. Afterwards the kernel has every command given before: a submission may be partial, so the
    /// ring submits until nothing is queued.
    pub fn pause<C>(&mut self, ring: &mut Ring<C>, device_id: u32) -> io::Result<()> {
        self.hand_over(ring)?;
        for (_, queue) in &mut self.table {
            if queue.driver.ids().0 == device_id {
                queue.pause.get_or_insert_default();
            }
        }
        ring.submit_all()
    }

    /// Has the paused queues of a device go on: gives the kept answers to the kernel. Returns the tags set aside, whose requests
    /// are to be served. Nothing happens to a queue that leaves.
    pub fn resume<C>(&mut self, ring: &mut Ring<C>, device_id: u32) -> io::Result<Vec<TagId>> {
        let mut aside = Vec::new();
        for (key, queue) in &mut self.table {
            let is_meant =
                queue.driver.ids().0 == device_id && queue.pause.as_ref().is_some_and(|it| !it.is_leaving);
            let Some(pause) = queue.pause.take_if(|_| is_meant) else { continue };
            let queue_index = u32::try_from(key).map_err(io::Error::other)?;
            for (tag, bytes) in pause.answers {
                let tag = TagId { queue_index, tag };
                if queue.transport.answer(ring, &mut *queue.driver, tag, Ok(bytes))? {
                    self.answered.push(queue_index);
                }
            }
            aside.extend(pause.aside.into_iter().map(|tag| TagId { queue_index, tag }));
        }
        Ok(aside)
    }

    /// Lets the paused queues of a device leave: each queue is let go of with the end of its last request.
    pub fn leave<C>(&mut self, ring: &mut Ring<C>, device_id: u32) -> io::Result<()> {
        let mut leaving = Vec::new();
        for (key, queue) in &mut self.table {
            let Some(pause) = queue.pause.as_mut().filter(|_| queue.driver.ids().0 == device_id) else {
                continue;
            };
            pause.is_leaving = true;
            for (tag, _) in pause.answers.drain(..) {
                queue.transport.give_up(tag);
            }
            for tag in pause.aside.drain(..) {
                queue.transport.give_up(tag);
            }
            leaving.push(u32::try_from(key).map_err(io::Error::other)?);
        }
        leaving.into_iter().try_for_each(|queue_index| self.settle(ring, queue_index))
    }

    /// Keeps the success of a request of a paused queue.
    pub(super) fn keep_answer<C>(&mut self, ring: &mut Ring<C>, tag: TagId, bytes: u32) -> io::Result<()> {
        self.keep(ring, tag, |pause| pause.answers.push((tag.tag, bytes)))
    }

    /// Sets the request of a tag of a paused queue aside, for this worker or the next one to begin anew.
    pub fn set_aside<C>(&mut self, ring: &mut Ring<C>, tag: TagId) -> io::Result<()> {
        self.keep(ring, tag, |pause| pause.aside.push(tag.tag))
    }

    fn keep<C>(&mut self, ring: &mut Ring<C>, tag: TagId, keep: impl FnOnce(&mut Pause)) -> io::Result<()> {
        match &mut self.table[tag.queue_index as usize].pause {
            Some(pause) if !pause.is_leaving => {
                keep(pause);
                Ok(())
            }
            _ => self.give_up(ring, tag),
        }
    }
}
