//! One worker's part of the log: a state machine that appends, and says what it must wait for.
//!
//! Owns the requests inside it and their order. Does not own threads, rings or timers: the worker does what [`Want`] asks
//! for and tells the result. Invariants: a token comes back exactly once; nothing here blocks, except that an append which
//! is not deferred is one write into the page cache; after the first requests nothing here allocates per request.
//!
//! ```text
//! admit ─▶ write/zero ─▶ open batch ──turn──▶ one append ─▶ index ─▶ completed
//!                                             │      ▲    │ FUA
//!                         deferred: Want::Append ─▶ append_done
//! flush ──────────────────────────▶ unsynced? ─▶ Want::Sync ─▶ sync_done ─▶ completed
//! read ─▶ index ─▶ page cache, or Want::Read ─▶ read_done ─▶ checksums ─▶ completed
//! ```

mod append;
mod flight;
mod read;
mod sync;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use self::append::Log;
use self::read::Reads;
use self::sync::Syncs;
use super::stats::ShardStats;
use super::volume::Volume;
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::segment::Room;
use crate::cache::shared::Shared;
use crate::cache::volume::error::IoError;
use crate::cache::volume::fetch::Fill;
use crate::observe::repeat::Repeat;
use crate::units::SectorRange;

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
    room: Room,
}

impl Reservation {
    fn into_room(self) -> Room {
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
type Done<T> = Vec<(T, Result<(), IoError>)>;

/// One worker's part of the log.
///
/// Each turn the worker calls `read`/`write`/`zero`/`flush` for what arrived and `sync_done`/`read_done` for what ended,
/// then [`turn`](Self::turn), then carries out [`wants`](Self::wants) and acknowledges [`completed`](Self::completed).
#[derive(Debug)]
pub struct Shard<T: Token> {
    shared: Arc<Shared>,
    index: usize,
    stats: Arc<ShardStats>,
    log: Log<T>,
    syncs: Syncs<T>,
    reads: Reads<T>,
    done: Done<T>,
    wanted: Vec<Want<T::Part>>,
    /// What lets one of many log lines pass about appends, and about syncs, that fail.
    bad_appends: Repeat,
    bad_syncs: Repeat,
}

impl<T: Token> Shard<T> {
    pub(super) fn new(shared: Arc<Shared>, index: usize, stats: Arc<ShardStats>) -> Self {
        Self {
            shared,
            index,
            stats,
            log: Log::default(),
            syncs: Syncs::default(),
            reads: Reads::default(),
            done: Vec::new(),
            wanted: Vec::new(),
            bad_appends: Repeat::default(),
            bad_syncs: Repeat::default(),
        }
    }

    /// From now on appends are not done at once but handed out as [`Want::Append`], one for every two of `headers`:
    /// memory of 4 KiB each for the headers of records. Call it before the first write.
    pub fn defer_appends(&mut self, headers: Vec<T::Part>) {
        self.log.flights.defer(headers);
    }

    /// May a write of `data_bytes` (0 for zero ranges) be taken now? Reserves log space when accepted.
    /// Call it before the request gets a buffer.
    pub fn admit(&mut self, data_bytes: usize) -> Admission {
        append::admit(self, data_bytes)
    }

    /// Gives reserved room back.
    pub fn cancel(&mut self, reservation: Reservation) {
        append::release(self, reservation.into_room());
    }

    /// Takes a WRITE of `range`, 1 byte to [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX), from the token's
    /// buffer. It joins the open batch; bytes of the buffer after the range, up to the end of its last frame, are
    /// overwritten with zeroes. With `fua` it comes back when it survives a power cut.
    pub fn write(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        token: T,
    ) {
        if let Some(lost) = volume.lost() {
            self.cancel(reservation);
            return self.finish(token, Err(lost));
        }
        append::write(self, volume, range, fua, reservation.into_room(), token);
    }

    /// Takes a DISCARD or `WRITE_ZEROES` of `range`, at most 32 TiB. With `fua` it comes back when it survives a power cut.
    pub fn zero(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        token: T,
    ) {
        if let Some(lost) = volume.lost() {
            self.cancel(reservation);
            return self.finish(token, Err(lost));
        }
        append::zero(self, volume, range, fua, reservation.into_room(), token);
    }

    /// Takes a FLUSH: comes back when every write of this volume acknowledged before, by any shard, survives a power
    /// cut.
    pub fn flush(&mut self, volume: &Arc<Volume>, token: T) {
        if let Some(lost) = volume.lost() {
            return self.finish(token, Err(lost));
        }
        sync::flush(self, volume, token);
    }

    /// Takes a READ of at most [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX): sees every write acknowledged
    /// before. The token's buffer holds the range's bytes when it comes back without error, and undefined bytes
    /// otherwise.
    ///
    /// It comes back with [`IoError::Remote`] when it needs what only the store has: fetch that with
    /// [`Volume::fetch`], and ask again with it as `fill`.
    pub fn read(&mut self, volume: &Arc<Volume>, range: SectorRange, fill: Option<&Fill>, token: T) {
        if let Some(lost) = volume.lost() {
            return self.finish(token, Err(lost));
        }
        read::read(self, volume, range, fill, token);
    }

    /// Ends a turn of the worker's loop: appends the open batch and starts syncs that are due. Call it also when the
    /// progress hook has woken the worker, even when no request arrived.
    pub fn turn(&mut self) {
        append::turn(self);
        sync::turn(self);
    }

    /// Lets go of requests that wait for a segment although their volume's requests may not wait any more.
    pub fn end_waits(&mut self) {
        append::end_waits(self);
    }

    /// Requests that are finished, each exactly once.
    pub fn completed(&mut self) -> std::vec::Drain<'_, (T, Result<(), IoError>)> {
        self.done.drain(..)
    }

    /// What to wait for now, each exactly once.
    pub fn wants(&mut self) -> std::vec::Drain<'_, Want<T::Part>> {
        self.wanted.drain(..)
    }

    /// Ends the [`Want::Append`] with this `op`; `parts` are those that were handed out.
    pub fn append_done(&mut self, op: u32, result: io::Result<()>, parts: Vec<T::Part>) {
        flight::done(self, op, result, parts);
    }

    /// Ends the [`Want::Sync`] with this `op`.
    #[expect(clippy::needless_pass_by_value, reason = "the worker is done with it, as with `read_done`'s")]
    pub fn sync_done(&mut self, op: u32, result: io::Result<()>) {
        sync::done(self, op, &result);
    }

    /// Ends the [`Want::Read`] with this `op`; `buffer` is the one that was handed out.
    pub fn read_done(&mut self, op: u32, result: io::Result<()>, buffer: Vec<u8>) {
        read::done(self, op, result, buffer);
    }

    /// Whether no request is inside: nothing batched, nothing waiting, nothing to collect.
    pub fn idle(&self) -> bool {
        self.done.is_empty()
            && self.wanted.is_empty()
            && self.log.is_idle()
            && self.syncs.is_idle()
            && self.reads.is_idle()
    }

    fn finish(&mut self, token: T, result: Result<(), IoError>) {
        self.done.push((token, result));
    }
}
