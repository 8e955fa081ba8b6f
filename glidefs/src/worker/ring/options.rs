//! How a ring is set up.
//!
//! Owns the choices and their defaults. Does not own the ring ([`super::kernel`]).

use std::io;

use io_uring::IoUring;

/// Choices made when a ring is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Entries of the submission queue, at least. More operations may be started, at the cost of further system calls.
    pub submissions: u32,
    /// Entries of the completion queue, at least. When the queue is full the kernel keeps a backlog.
    pub completions: u32,
    /// Places in the ring's table of registered files.
    pub files_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { submissions: 1024, completions: 16 * 1024, files_max: 0 }
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
            // The flag tells of completions that wait for the thread to ask.
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        }
        builder.build(self.submissions)
    }
}
