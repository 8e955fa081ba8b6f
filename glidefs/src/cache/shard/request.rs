//! The words between a worker and the worker's shard: requests, admission, and operations for the worker to carry out.

use std::sync::Arc;
use std::time::Duration;

use super::state::WRITE_FRAMES_MAX;
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::frame_crc;
use crate::cache::log::segment::Room;
use crate::cache::volume::error::IoError;
use crate::observe::trace::Part;
use crate::units::FRAME_BYTES;

/// A request as the cache sees the request. A token owns a buffer and comes back exactly once, with the result of the request.
pub trait Token {
    /// Memory of a token's buffer that the token gave away to be written.
    type Part: AsMut<[u8]> + std::fmt::Debug;

    /// READ and WRITE: at least the bytes of the range, rounded up to whole frames. Other requests: may be empty.
    fn buffer(&mut self) -> &mut [u8];

    /// Whether [`Self::lend`] can give the buffer away.
    fn is_lendable(&self) -> bool;

    /// Gives away the first `bytes` bytes of the buffer, whole frames; the rest of the buffer may be given away as well. Called
    /// once for a WRITE where appends are deferred. `None` when the buffer cannot be given away: then the WRITE fails.
    fn lend(&mut self, bytes: usize) -> Option<Self::Part>;

    /// Gives the buffer back to where it came from, as nothing is read from it or written into it any more. Called for a write whose record
    /// is in the log and whose answer waits for a sync, or for the store: others need the memory meanwhile.
    fn give_back(&mut self);

    /// Tells that the request is in another part of its way, for its trace.
    #[inline]
    fn enters(&self, part: Part) {
        let _ = part;
    }
}

/// Room in the log, held for one write. To be given to `Shard::write`, `Shard::zero` or `Shard::cancel`.
#[derive(Debug)]
#[must_use = "log space stays reserved until this is used or cancelled"]
pub struct Reservation {
    pub(super) room: Room,
}

/// The checksums of a WRITE's frames, made before the shard takes the WRITE: of all frames, in order.
#[derive(Debug, Default)]
pub struct WriteSums {
    crcs: Box<[u32; WRITE_FRAMES_MAX]>,
    frames: usize,
}

impl WriteSums {
    /// Adds the checksums of `bytes`, the next whole frames.
    pub fn add(&mut self, bytes: &[u8]) {
        for (crc, frame) in self.crcs.iter_mut().skip(self.frames).zip(bytes.chunks_exact(FRAME_BYTES)) {
            *crc = frame_crc(frame);
            self.frames += 1;
        }
    }

    /// The checksums, if there is one for each of `frames` frames.
    pub(super) fn of(self, frames: usize) -> Option<Box<[u32; WRITE_FRAMES_MAX]>> {
        (self.frames == frames).then_some(self.crcs)
    }
}

/// May a write be taken now?
#[derive(Debug)]
pub enum Admission {
    /// Yes, with room reserved.
    Accept(Reservation),
    /// Not yet: the cache fills faster than data leaves. Ask again after this time, and ask for no later request before.
    Delay(Duration),
    /// Not now: ask again when the progress hook has been called.
    Wait,
    /// No: the cache is full and `on_full` is [`OnFull::Enospc`](crate::cache::OnFull::Enospc).
    Full,
}

/// An operation that the shard waits for, to be carried out by the worker without blocking.
#[derive(Debug)]
pub enum Want<P> {
    /// Write all of `parts`, one after the other, from `offset` of `file` through [`SegmentFile::append_fd`]; hand the result and
    /// the parts to `Shard::append_done`. Only where appends are deferred, or some may be written through.
    Append {
        /// Number of the append, to be handed back.
        op: u32,
        /// The segment file to write to.
        file: Arc<dyn SegmentFile>,
        /// First byte to write, a multiple of 4096.
        offset: u64,
        /// The memory to write, whole frames each.
        parts: Vec<P>,
    },
    /// Sync `file` with `fdatasync`; hand the result to `Shard::sync_done`.
    Sync {
        /// Number of the sync, to be handed back.
        op: u32,
        /// The segment file to sync.
        file: Arc<dyn SegmentFile>,
    },
    /// Fill all of `buffer` from `offset` of `file`; hand the result and the buffer to `Shard::read_done`. Fewer bytes are an
    /// error (`UnexpectedEof`).
    Read {
        /// Number of the read, to be handed back.
        op: u32,
        /// The segment file to read.
        file: Arc<dyn SegmentFile>,
        /// First byte to read, a multiple of 4096.
        offset: u64,
        /// The memory to fill; the length is a multiple of 4096, at most 132 KiB.
        buffer: Vec<u8>,
    },
}

/// Finished requests, with their results.
pub(super) type Done<T> = Vec<(T, Result<(), IoError>)>;
