//! How a ring is set up.
//!
//! Owns the choices and their defaults. Does not own the ring ([`super::kernel`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::IoUring;

use super::super::affinity::Cpu;

/// Choices made when a ring is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Entries of the submission queue, at least. More operations may be started, at the cost of further system calls.
    pub submissions: u32,
    /// Entries of the completion queue, at least. When the queue is full the kernel keeps a backlog.
    pub completions: u32,
    /// Places in the ring's table of registered files.
    pub files_max: u32,
    /// A kernel thread which picks up submissions, so that submitting needs no system call.
    pub submission_thread: Option<SubmissionThread>,
    /// Completions are polled for instead of signalled by interrupts. Such a ring takes only reads and writes of files opened
    /// with `O_DIRECT`, on a device which has queues for polling.
    pub poll_completions: bool,
    /// Share the kernel's workers with another ring.
    pub workers_of: Option<KernelWorkers>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            submissions: 1024,
            completions: 16 * 1024,
            files_max: 0,
            submission_thread: None,
            poll_completions: false,
            workers_of: None,
        }
    }
}

impl Options {
    /// Sets up a ring as chosen, as modern as the kernel can.
    pub(super) fn build(&self) -> io::Result<IoUring> {
        match self.build_with(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.build_with(false),
            other => other,
        }
    }

    fn build_with(&self, modern: bool) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // An entry the kernel refuses must not hold back the entries behind (SUBMIT_ALL came with Linux 5.18, before ublk).
        builder.setup_cqsize(self.completions.max(self.submissions)).setup_clamp().setup_submit_all();
        if modern {
            // SINGLE_ISSUER came with Linux 6.0 and DEFER_TASKRUN with 6.1. Without the two the ring is slower, not different.
            builder.setup_single_issuer();
            if self.submission_thread.is_none() {
                // The flag tells of completions that wait for the thread to ask.
                builder.setup_defer_taskrun().setup_taskrun_flag();
            }
        }
        if let Some(thread) = self.submission_thread {
            builder.setup_sqpoll(u32::try_from(thread.idle.as_millis()).unwrap_or(u32::MAX));
            if let Some(cpu) = thread.cpu {
                builder.setup_sqpoll_cpu(u32::try_from(cpu.0).map_err(|_| io::ErrorKind::InvalidInput)?);
            }
        }
        if self.poll_completions {
            builder.setup_iopoll();
        }
        if let Some(workers) = &self.workers_of {
            builder.setup_attach_wq(workers.as_fd().as_raw_fd());
        }
        builder.build(self.submissions)
    }
}

/// A kernel thread which polls the submission queue.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionThread {
    /// How long the thread polls an empty queue before the thread sleeps.
    pub idle: Duration,
    /// The CPU to which the thread is bound.
    pub cpu: Option<Cpu>,
}

/// The kernel side of one ring, for other rings to share. May be sent to other threads.
///
/// The shared part depends on the kernel. Since Linux 5.12 the threads which carry out blocking operations belong to the task,
/// so rings of one thread share these threads anyway; sharing adds the submission thread, where there is one.
#[derive(Clone, Debug)]
pub struct KernelWorkers(Arc<OwnedFd>);

impl KernelWorkers {
    /// Those of the ring behind `ring`.
    pub(super) fn of(ring: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(Arc::new(ring.try_clone_to_owned()?)))
    }
}

impl AsFd for KernelWorkers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
