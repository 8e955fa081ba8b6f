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
mod request;
mod state;
mod sync;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use self::read::Reads;
use self::request::Done;
pub use self::request::{Admission, Reservation, Token, Want};
use self::state::Log;
use self::sync::Syncs;
use super::stats::ShardStats;
use super::volume::Volume;
use crate::cache::shared::Shared;
use crate::cache::volume::error::IoError;
use crate::cache::volume::fetch::Fill;
use crate::observe::repeat::Repeat;
use crate::units::SectorRange;

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
        self.append_turn();
        sync::turn(self);
    }

    /// Requests that are finished, each exactly once.
    pub fn completed(&mut self) -> std::vec::Drain<'_, (T, Result<(), IoError>)> {
        self.done.drain(..)
    }

    /// What to wait for now, each exactly once.
    pub fn wants(&mut self) -> std::vec::Drain<'_, Want<T::Part>> {
        self.wanted.drain(..)
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
