//! The vocabulary between a worker and its shard: requests, admission, and operations that the worker carries out.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::log::disk::SegmentFile;
use crate::cache::log::segment::Room;
use crate::cache::volume::error::IoError;

/// A request as the cache sees it. It owns its buffer and comes back exactly once with its result.
pub trait Token {
    /// Memory of a token's buffer that was given away to be written.
    type Part: AsMut<[u8]> + std::fmt::Debug;

    /// READ and WRITE: at least the range's bytes rounded up to whole frames. Others: may be empty.
    fn buffer(&mut self) -> &mut [u8];

    /// Gives away the first `bytes` bytes of the buffer, whole frames; the rest may go with them. Asked of a WRITE, once, where
    /// appends are deferred. `None` when the buffer cannot be given away: the write fails then.
    fn lend(&mut self, bytes: usize) -> Option<Self::Part>;
}

/// Room in the log, held for one write. Give it to [`Shard::write`], [`Shard::zero`] or [`Shard::cancel`].
#[derive(Debug)]
#[must_use = "log space stays reserved until this is used or cancelled"]
pub struct Reservation {
    pub(super) room: Room,
}

impl Reservation {
    pub(super) fn into_room(self) -> Room {
        self.room
    }
}

/// May a write be taken now?
#[derive(Debug)]
pub enum Admission {
    /// Yes.
    Accept(Reservation),
    /// Not yet: ask again after this long. The cache fills up faster than it empties. Requests that arrived later must
    /// not be asked for before.
    Delay(Duration),
    /// Not now: ask again when the progress hook has been called.
    Wait,
    /// No: the cache is full and `on_full` is [`OnFull::Enospc`](super::OnFull::Enospc).
    Full,
}

/// Something the shard waits for, for the worker to have done without blocking.
#[derive(Debug)]
pub enum Want<P> {
    /// Write all of `parts`, one after the other, from `offset` of `file` through [`SegmentFile::append_fd`]; hand the result
    /// and the parts to [`Shard::append_done`]. Only where appends are deferred.
    Append {
        /// Which want this is.
        op: u32,
        /// Where to write.
        file: Arc<dyn SegmentFile>,
        /// From which byte, a multiple of 4096.
        offset: u64,
        /// What to write: whole frames each.
        parts: Vec<P>,
    },
    /// `fdatasync` of `file`; hand the result to [`Shard::sync_done`].
    Sync {
        /// Which want this is.
        op: u32,
        /// What to sync.
        file: Arc<dyn SegmentFile>,
    },
    /// Fill all of `buffer` from `offset` of `file`; hand both to [`Shard::read_done`]. Fewer bytes are an error
    /// (`UnexpectedEof`).
    Read {
        /// Which want this is.
        op: u32,
        /// Where to read.
        file: Arc<dyn SegmentFile>,
        /// From which byte, a multiple of 4096.
        offset: u64,
        /// To be filled; its length is a multiple of 4096, at most 132 KiB.
        buffer: Vec<u8>,
    },
}

/// Requests that are finished, with their results.
pub(super) type Done<T> = Vec<(T, Result<(), IoError>)>;
