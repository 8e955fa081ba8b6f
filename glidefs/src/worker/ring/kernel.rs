//! The queues shared with the kernel, and everything the kernel still uses.
//!
//! Owns the ring, the tables of registered files and buffers, the memory of operations under way, and all `unsafe` of this
//! layer. Does not own the meaning of a context or of a command's token.
//!
//! Invariants: memory is in `under_way` before an entry which points to the memory is pushed, and until the entry's completion;
//! `user_data` is [`OPERATION`] with the operation's key, or a token below [`OPERATION`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};
use slab::Slab;

use super::operation::Op;
use super::options::Options;
use super::under_way::{Completion, Event, OPERATION, REGISTERED_BYTES_MAX, UnderWay};
use crate::buffer::Pool;

/// An io_uring whose operations carry contexts of type `C`. The ring stays on the thread which made the ring.
pub struct Ring<C> {
    // Declared before `arena`: the ring is closed before the registered arena is freed.
    ring: IoUring,
    /// Keeps the registered arena alive.
    arena: Option<Pool>,
    under_way: Slab<UnderWay<C>>,
    /// Completions taken off the queue but not looked at yet.
    seen: VecDeque<cqueue::Entry>,
    /// Completions of operations which could not be started.
    refused: Vec<Event<C>>,
    /// Empty vectors, kept for their room.
    spare_pieces: Vec<Vec<libc::iovec>>,
}

impl<C> Ring<C> {
    /// A ring for the calling thread. Where the kernel can (6.1), completions are worked on only when the thread asks.
    pub fn new(options: &Options) -> io::Result<Self> {
        let ring = options.build()?;
        if options.files_max > 0 {
            ring.submitter().register_files_sparse(options.files_max)?;
        }
        Ok(Self {
            ring,
            arena: None,
            under_way: Slab::new(),
            seen: VecDeque::new(),
            refused: Vec::new(),
            spare_pieces: Vec::new(),
        })
    }

    /// Registers the arena of `pool`, once, for operations on slots of `pool`. The ring keeps the arena alive.
    ///
    /// # Errors
    /// `AlreadyExists` when an arena is registered. The kernel's `ENOMEM` means that `RLIMIT_MEMLOCK` is below the arena's size.
    pub fn register_arena(&mut self, pool: &Pool) -> io::Result<()> {
        if self.arena.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the ring has a registered arena"));
        }
        let (start, bytes) = pool.arena();
        let pieces: Vec<_> = (0..bytes)
            .step_by(REGISTERED_BYTES_MAX)
            .map(|at| libc::iovec {
                iov_base: start.wrapping_add(at).cast_mut().cast(),
                iov_len: REGISTERED_BYTES_MAX.min(bytes - at),
            })
            .collect();
        // SAFETY: the pieces are the arena's own mapping, which lives as long as the pool; `arena` is declared after `ring`, so
        // the pool is dropped after the ring is closed.
        unsafe { self.ring.submitter().register_buffers(&pieces)? };
        self.arena = Some(pool.clone());
        Ok(())
    }

    /// Whether operations on slots of a registered arena can be started.
    #[cfg(test)]
    pub fn has_arena(&self) -> bool {
        self.arena.is_some()
    }

    /// Whether the kernel can write several slots of a registered arena at once: [`Kind::WritevFixed`](super::Kind::WritevFixed).
    pub fn has_writev_fixed(&self) -> io::Result<bool> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        Ok(probe.is_supported(opcode::WritevFixed::CODE))
    }

    /// Registers `fd` at `place` of the file table, or lets go of the file there. A registered file outlives `close`, and would keep its
    /// device alive.
    pub fn register_file(&self, place: u32, fd: Option<RawFd>) -> io::Result<()> {
        match self.ring.submitter().register_files_update(place, &[fd.unwrap_or(-1)])? {
            1 => Ok(()),
            _ => Err(io::Error::other("the ring's file table took no entry")),
        }
    }

    /// Operations started whose completions have not been drained.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.under_way.len() + self.refused.len()
    }

    /// Queues `op`. The ring owns the memory of `op` until [`drain`](Self::drain) hands out the completion; the completion also
    /// says when `op` could not be started. Nothing reaches the kernel before the next submit, unless the submission queue is
    /// full.
    pub fn start(&mut self, op: Op, context: C) {
        let pieces = self.spare_pieces.pop().unwrap_or_default();
        let key = self.under_way.insert(UnderWay { context, op, moved: 0, pieces });
        if let Err(error) = self.encode(key).and_then(|entry| self.push(&entry)) {
            let ended = self.under_way.remove(key);
            let done = self.done(ended, Err(error));
            self.refused.push(done);
        }
    }

    /// Queues a ready-made `entry`, the completion of which is reported with `token`.
    ///
    /// # Errors
    /// `InvalidInput` for a token of 2^63 or above; any error of a submit when the queue was full.
    ///
    /// # Safety
    /// The memory to which `entry` points stays valid until the completion of `entry` has been seen, or the process ends.
    pub unsafe fn command(&mut self, entry: squeue::Entry, token: u64) -> io::Result<()> {
        if token >= OPERATION {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.push(&entry.user_data(token))
    }

    /// Submits the queued entries without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        tolerate(self.ring.submit())
    }

    /// Submits the queued entries and waits for a completion, at most for `timeout`; with `Some(0)` the call does not wait.
    ///
    /// Where the kernel can (Linux 6.15), the wait does not count as a wait for a disk: the inbox and the queues of devices always have
    /// entries under way, so an idle ring would make its CPU look as if it waited for a disk. A client that waits for a disk is counted
    /// itself.
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_some = !self.seen.is_empty() || !self.refused.is_empty();
        let timeout = if has_some { Some(Duration::ZERO) } else { timeout };
        let timespec = timeout.map(Timespec::from);
        let args = SubmitArgs::new();
        let args = timespec.as_ref().map_or(args, |timespec| args.timespec(timespec));
        // A wait for one completion, also one of no length, runs deferred task work; a plain submit does not.
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if self.ring.params().is_feature_no_iowait() {
            flags |= EnterFlags::NO_IOWAIT;
        }
        // At most the length of the queue, which the kernel gave as a u32.
        let queued = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
        // SAFETY: EXT_ARG says that the argument is a `SubmitArgs`, which has the layout of the kernel's `io_uring_getevents_arg`;
        // the argument and `timespec` live until the call returns. `queued` entries are in the queue, whose memory is covered as
        // `push` says. The ring has no kernel thread that would have to be woken.
        let entered = unsafe { self.ring.submitter().enter(queued, 1, flags.bits(), Some(&args)) };
        tolerate(entered)
    }

    /// Whether completions have arrived since the last [`drain`](Self::drain), or wait for a submit to be worked on. Costs no system
    /// call.
    pub fn has_news(&mut self) -> bool {
        !self.seen.is_empty() || self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    /// Moves all completions which have arrived to `into`.
    pub fn drain(&mut self, into: &mut Vec<Event<C>>) {
        into.append(&mut self.refused);
        self.collect();
        while let Some(seen) = self.seen.pop_front() {
            let (user_data, result) = (seen.user_data(), seen.result());
            if user_data < OPERATION {
                into.push(Event::Command { token: user_data, result });
            } else {
                into.extend(self.completed(user_data, result));
            }
        }
        into.append(&mut self.refused);
    }

    /// Takes completions off the shared queue.
    fn collect(&mut self) {
        self.seen.extend(self.ring.completion());
    }

    /// The entry for the rest of an operation. The entry points to memory in `under_way`.
    fn encode(&mut self, key: usize) -> io::Result<squeue::Entry> {
        let arena = self.arena.as_ref().map(Pool::arena);
        let under_way = self.under_way.get_mut(key).ok_or(io::ErrorKind::NotFound)?;
        Ok(under_way.entry(arena)?.user_data(OPERATION | key as u64))
    }

    /// Puts `entry` into the submission queue; submits the queued entries when there is no room.
    ///
    /// Callers pass an entry which points to no memory, to memory in `under_way` (made by [`encode`](Self::encode)), or to memory
    /// for which the caller of [`command`](Self::command) answers.
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: memory in `under_way` stays in place until `completed` sees the completion with the same `user_data`: heap
            // blocks and slots do not move with their owners, `pieces` is not changed while its entry is queued, and `drop`
            // leaks them. The contract of `command` covers commands.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
            // The kernel takes no submission while the completion queue overflows.
            self.collect();
        }
    }

    fn done(&mut self, mut ended: UnderWay<C>, result: io::Result<usize>) -> Event<C> {
        if ended.pieces.capacity() > 0 {
            ended.pieces.clear();
            self.spare_pieces.push(ended.pieces);
        }
        Event::Operation(Completion { context: ended.context, result, memory: ended.op.memory })
    }

    /// The meaning of an operation's completion; `None` when there is more to come.
    fn completed(&mut self, user_data: u64, result: i32) -> Option<Event<C>> {
        let key = usize::try_from(user_data & !OPERATION).ok();
        let Some((key, op)) = key.and_then(|key| Some((key, self.under_way.get_mut(key)?))) else {
            tracing::error!(user_data, result, "the ring completed an operation that is not under way");
            return None;
        };
        let outcome = match op.advance(result) {
            Some(outcome) => outcome,
            None => match self.encode(key).and_then(|entry| self.push(&entry)) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
        };
        let op = self.under_way.remove(key);
        Some(self.done(op, outcome))
    }
}

impl<C> Drop for Ring<C> {
    /// Leaks the memory of operations under way, and the arena: the kernel may still use both. A worker's ring ends with the
    /// process, so this is for a ring that was dropped by mistake.
    fn drop(&mut self) {
        if !self.under_way.is_empty() {
            std::mem::forget(std::mem::take(&mut self.under_way));
            std::mem::forget(self.arena.take());
        }
    }
}

impl<C> AsFd for Ring<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Accepts the failures of a submit which only mean "look at the completions and come again".
fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}
