//! What other threads say to a worker: a locked queue and an eventfd that the worker's ring reads.
//!
//! Invariant: a message that was sent is seen by the worker's next turn, because the eventfd is written after the push.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use super::driver::{QueueDriver, QueueGone};

/// Something said to a worker.
pub enum Message {
    /// Serve this queue.
    Attach {
        /// The queue.
        driver: Box<dyn QueueDriver + Send>,
        /// Told when every tag is armed, or why not.
        armed: oneshot::Sender<io::Result<QueueGone>>,
    },
    /// End the waits of exports whose requests may not wait any more, and answer.
    EndWaits(oneshot::Sender<()>),
    /// Answer, to show that the loop turns.
    Ping(oneshot::Sender<()>),
}

/// The mailbox of one worker.
pub struct Inbox {
    messages: Mutex<VecDeque<Message>>,
    event: EventFd,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { messages: Mutex::default(), event })
    }

    /// Leaves a message and wakes the worker.
    pub fn send(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.wake();
    }

    /// Makes the worker's loop turn.
    pub fn wake(&self) {
        // The counter would have to reach 2^64 - 1 unread wake-ups before this could block or fail.
        let _ = self.event.write(1);
    }

    /// The oldest message.
    pub fn take(&self) -> Option<Message> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The eventfd, which the ring reads 8 bytes at a time.
impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
