//! The worker's io_uring: submission, waiting, and what a completion's `user_data` means.
//!
//! Owns the ring and its table of registered files. Does not own what the operations are for.
//! Invariant: `user_data` is made by [`Event::encode`] and nowhere else.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};

/// Submission queue entries; a turn may submit more, in several calls.
const SQ_ENTRIES: u32 = 1024;
/// Completion queue entries: enough for bursts of many devices; beyond it the kernel keeps a backlog.
const CQ_ENTRIES: u32 = 16 * 1024;

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command of a device queue.
    Tag {
        /// The queue's place in the worker's table, and in the ring's file table.
        slot: u32,
        /// The tag.
        tag: u16,
    },
    /// The inbox's eventfd was read.
    Inbox,
    /// A sync the cache asked for.
    Sync(u32),
    /// A read the cache asked for.
    Read(u32),
}

const KIND_SHIFT: u32 = 56;
const KIND_TAG: u64 = 0;
const KIND_INBOX: u64 = 1;
const KIND_SYNC: u64 = 2;
const KIND_READ: u64 = 3;

impl Event {
    /// As `user_data`: the kind in the top byte, then slot << 16 | tag or the operation's number.
    pub fn encode(self) -> u64 {
        match self {
            Self::Tag { slot, tag } => (KIND_TAG << KIND_SHIFT) | (u64::from(slot) << 16) | u64::from(tag),
            Self::Inbox => KIND_INBOX << KIND_SHIFT,
            Self::Sync(operation) => (KIND_SYNC << KIND_SHIFT) | u64::from(operation),
            Self::Read(operation) => (KIND_READ << KIND_SHIFT) | u64::from(operation),
        }
    }

    /// From `user_data`; `None` for a value this worker never made.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field was put there by `encode` with that width"
    )]
    pub fn decode(user_data: u64) -> Option<Self> {
        let low = user_data as u32;
        match user_data >> KIND_SHIFT {
            KIND_TAG => Some(Self::Tag { slot: (user_data >> 16) as u32, tag: user_data as u16 }),
            KIND_INBOX => Some(Self::Inbox),
            KIND_SYNC => Some(Self::Sync(low)),
            KIND_READ => Some(Self::Read(low)),
            _ => None,
        }
    }
}

/// A worker's ring.
pub struct Ring {
    ring: IoUring,
    /// Completions taken out early, to make room for submissions.
    early: Vec<(u64, i32)>,
}

impl Ring {
    /// A ring with room for `files_max` registered files. Call on the thread that will use it.
    pub fn new(files_max: u32) -> io::Result<Self> {
        let build = |modern: bool| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(CQ_ENTRIES).setup_clamp();
            if modern {
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            builder.build(SQ_ENTRIES)
        };
        // SINGLE_ISSUER came with Linux 6.0 and DEFER_TASKRUN with 6.1; without them the ring is slower, not different.
        let ring = match build(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(false)?,
            other => other?,
        };
        ring.submitter().register_files_sparse(files_max)?;
        Ok(Self { ring, early: Vec::new() })
    }

    /// Registers `fd` at place `slot`.
    pub fn register_file(&self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.update_file(slot, fd)
    }

    /// Lets go of the file at place `slot`. A registered file outlives `close`, and would keep its device alive.
    pub fn unregister_file(&self, slot: u32) -> io::Result<()> {
        self.update_file(slot, -1)
    }

    fn update_file(&self, slot: u32, fd: RawFd) -> io::Result<()> {
        match self.ring.submitter().register_files_update(slot, &[fd])? {
            1 => Ok(()),
            _ => Err(io::Error::other("the ring's file table took no entry")),
        }
    }

    /// Queues `entry`, submitting what is queued when there is no room.
    ///
    /// # Safety
    /// Whatever memory `entry` points to stays valid until its completion has been seen.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: passed on from the caller.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
            // The kernel takes no submission while its completion queue overflows.
            self.early.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        }
    }

    /// Submits what is queued without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        tolerate(self.ring.submit())
    }

    /// Submits what is queued and waits for a completion, at most for `timeout`; `Some(0)` only looks.
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.early.is_empty() { timeout } else { Some(Duration::ZERO) };
        let submitter = self.ring.submitter();
        match timeout {
            None => tolerate(submitter.submit_and_wait(1)),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                // Waiting for one completion with a deadline also runs deferred task work, which a plain submit does not.
                tolerate(submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timespec)))
            }
        }
    }

    /// Moves all completions that have arrived to `into`.
    pub fn drain(&mut self, into: &mut Vec<(u64, i32)>) {
        into.append(&mut self.early);
        into.extend(self.ring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())));
    }
}

/// Results of a submit that only mean "look at the completions and come again".
fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_round_trips() {
        for event in [
            Event::Tag { slot: u32::MAX, tag: u16::MAX },
            Event::Tag { slot: 0, tag: 0 },
            Event::Inbox,
            Event::Sync(u32::MAX),
            Event::Read(7),
        ] {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode(u64::MAX), None);
    }

    #[test]
    fn a_wait_with_a_deadline_returns_without_a_completion() {
        let mut ring = Ring::new(4).unwrap();
        ring.submit_and_wait(Some(Duration::from_millis(1))).unwrap();
        let mut completions = Vec::new();
        ring.drain(&mut completions);
        assert!(completions.is_empty());
    }
}
