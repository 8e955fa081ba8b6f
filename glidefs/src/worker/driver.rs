//! The queue of a device, as a worker needs one.
//!
//! `ublk` implements [`QueueDriver`]; the worker calls the driver from one thread only. The driver owns the kernel's view of the
//! queue (descriptors, character device, command encoding); the worker owns when each call is made.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue;
use tokio::sync::oneshot;

use crate::cache::IoError;
use crate::export::{Export, Request, RequestError};

/// Why a request could not be carried out. `ublk::abi::code_of` is the only place which maps failures to errno.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request makes no sense.
    #[error("the request was refused")]
    Refused(#[from] RequestError),
    /// No glidefs device offers the operation.
    #[error("operation {code} is not supported")]
    Unsupported {
        /// The kernel's number of the operation.
        code: u8,
    },
    /// The data could not be moved to or from the client.
    #[error("copying between the device and the daemon failed")]
    Copy(#[source] io::Error),
    /// The cache is full, and `on_full` says that a full cache refuses writes.
    #[error("the cache is full: raise cache.size, remove exports, or set on_full to \"wait\"")]
    Full,
    /// The cache could not carry out the request.
    #[error(transparent)]
    Cache(#[from] IoError),
}

impl Failure {
    /// A word for the failure, in traces.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unsupported { .. } => "unsupported",
            Self::Copy(_) => "copy",
            Self::Full => "full",
            Self::Cache(error) => error.word(),
        }
    }
}

/// The meaning of a completion of a tag's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEvent {
    /// The tag holds a request.
    Request,
    /// The kernel takes the tag back: the tag will not complete again.
    Gone,
}

/// Resolves when the worker has dropped a queue's driver: nothing in the worker refers to the device any more.
pub type QueueGone = oneshot::Receiver<()>;

/// One queue of a device.
pub trait QueueDriver {
    /// The export behind the device.
    fn export(&self) -> &Arc<Export>;

    /// Number of the device, and of the queue in the device, for logs and counters.
    fn ids(&self) -> (u32, u16);

    /// Number of tags of the queue.
    fn depth(&self) -> u16;

    /// The character device, to be registered with the worker's ring.
    fn char_device(&self) -> RawFd;

    /// The command which arms `tag`. `fixed` is the number of the character device in the ring's file table.
    fn arm(&mut self, tag: u16, fixed: u32) -> squeue::Entry;

    /// The command which gives the result of `tag`'s request and arms the tag again. `Ok` carries the bytes moved.
    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry;

    /// The meaning of completion `result` of a command for `tag`.
    fn event(&self, tag: u16, result: i32) -> TagEvent;

    /// The request which `tag` holds.
    fn request(&self, tag: u16) -> Result<Request, Failure>;

    /// Copies a WRITE's bytes from the client, those from byte `start` of the request on: as many as `buffer` has, or an error.
    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()>;

    /// Copies a READ's bytes to the client, those of all `parts` in order, or an error.
    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The tag's own stable buffer, in bounce mode: the kernel copies, and `copy_in` and `copy_out` are not called. Valid until
    /// the driver is dropped; the worker uses the buffer only while the tag holds a request.
    fn stable_buffer(&self, tag: u16) -> Option<NonNull<[u8]>>;
}
