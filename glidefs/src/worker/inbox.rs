//! Messages from other threads to a worker: a locked queue, and an eventfd which the worker's ring reads.
//!
//! Invariant: the worker's next turn sees every message sent before, because the eventfd is written after the push.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use super::driver::{QueueDriver, QueueGone};

use crate::locks::MutexExt;

/// A message to a worker.
pub enum Message {
    Attach {
        driver: Box<dyn QueueDriver + Send>,
        /// Told when every tag is armed, or why a tag could not be armed.
        armed: oneshot::Sender<io::Result<QueueGone>>,
    },
    /// Fail the waiting requests of exports whose waits are ended, and answer.
    EndWaits(oneshot::Sender<()>),
    /// Answer, as a proof that the loop turns.
    Ping(oneshot::Sender<()>),
}

pub struct Inbox {
    messages: Mutex<VecDeque<Message>>,
    event: EventFd,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { messages: Mutex::default(), event })
    }

    /// Leaves a message and wakes the worker.
    pub fn send(&self, message: Message) {
        self.messages.lock_whole().push_back(message);
        self.wake();
    }

    /// Makes the worker's loop turn.
    pub fn wake(&self) {
        // The counter would have to reach 2^64 - 1 unread wake-ups before the write could block or fail.
        let _ = self.event.write(1);
    }

    pub fn take(&self) -> Option<Message> {
        self.messages.lock_whole().pop_front()
    }
}

/// The eventfd, which the ring reads 8 bytes at a time.
impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
