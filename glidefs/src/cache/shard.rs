//! One worker's part of the log: a state machine for requests. The shard appends records and names the operations to wait for.
//!
//! Owns the requests inside the shard and the order of the requests. Does not own threads, rings or timers: the worker carries
//! out every [`Want`] and reports the result. Invariants: a token comes back exactly once; no call blocks, except for an append
//! without deferral, a write into the page cache; after the first requests no call allocates memory per request.
//!
//! ```text
//! admit ─▶ write/zero ─▶ open batch ──turn──▶ one append ─▶ index ─▶ completed
//!                                             │      ▲    │ FUA
//!                         deferred: Want::Append ─▶ append_done
//! write, FLUSH expected ─▶ batch of its own ─▶ Want::Append ─▶ append_done: stable
//! flush ──────────────────────────▶ unsynced? ─▶ Want::Sync ─▶ sync_done ─▶ completed
//! read ─▶ index ─▶ page cache, or Want::Read ─▶ read_done ─▶ checksums ─▶ completed
//! ```

mod append;
mod flight;
mod read;
mod read_buffers;
mod request;
mod state;
mod sums;
mod sync;
mod testing;
#[cfg(test)]
mod tests;
mod through;
mod zero;

use std::sync::Arc;

use self::read::state::Reads;
use self::request::Done;
pub use self::request::{Admission, Reservation, Token, Want, WriteSums};
use self::state::Log;
use self::sync::Syncs;
use super::stats::ShardStats;
use super::volume::Volume;
use crate::cache::log::batch::HEADERS_MAX;
use crate::cache::shared::Shared;
use crate::cache::volume::error::IoError;
use crate::observe::repeat::Repeat;

/// One worker's part of the log.
///
/// In each turn the worker calls `read`/`write`/`zero`/`flush` for new requests and `append_done`/`sync_done`/`read_done` for
/// operations with a result; then the worker calls [`turn`](Self::turn), carries out [`wants`](Self::wants) and acknowledges
/// [`completed`](Self::completed).
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
    /// Number of the next [`Want::Append`].
    next_append: u32,
    /// Limits the log lines about failed appends, and those about failed syncs.
    bad_appends: Repeat,
    bad_syncs: Repeat,
    /// Number of requests taken and not handed back.
    #[cfg(debug_assertions)]
    inside: usize,
}

impl<T: Token> Shard<T> {
    pub(super) fn new(shared: Arc<Shared>, index: usize, stats: Arc<ShardStats>) -> Self {
        let pages_bytes = shared.sums.bytes_for_shard(shared.ports.len());
        let syncs = Syncs::new(&shared.ports[index]);
        Self {
            shared,
            index,
            stats,
            log: Log::default(),
            syncs,
            reads: Reads::new(pages_bytes),
            done: Vec::new(),
            wanted: Vec::new(),
            next_append: 0,
            bad_appends: Repeat::default(),
            bad_syncs: Repeat::default(),
            #[cfg(debug_assertions)]
            inside: 0,
        }
    }

    /// From now on appends are not done at once but handed out as [`Want::Append`]. A record under way needs two of `headers`:
    /// memory of 4 KiB each for the headers of the record. Call this before the first write.
    pub fn defer_appends(&mut self, headers: Vec<T::Part>) {
        self.log.common.flights.defer(headers);
    }

    /// From now on writes whose FLUSH is expected may be handed out as a [`Want::Append`] to a file that makes them stable at once. One
    /// record less than there are `headers`, memory of 4 KiB each, is under way at most. Call this before the first write.
    pub fn write_through(&mut self, headers: Vec<T::Part>) {
        if headers.len() >= HEADERS_MAX {
            self.log.through.flights.defer(headers);
        }
    }

    /// Ends a turn of the worker's loop: appends the open batch and begins the syncs that are due. Call this also when the
    /// progress hook has woken the worker and no request has arrived.
    pub fn turn(&mut self) {
        // First: what cannot be written through goes the common way in this turn.
        self.through_turn();
        self.append_turn();
        sync::turn(self);
        self.read_turn();
    }

    /// Whether the shard begins to write a large record in pieces: a turn writes one piece, and the next turns the rest. Only where the
    /// shard itself writes the records.
    pub fn write_in_pieces(&mut self, in_pieces: bool) {
        self.log.common.flights.in_pieces = in_pieces;
    }

    /// Whether a record is written in pieces, and the next turn goes on with the record.
    pub fn has_rest(&self) -> bool {
        self.log.common.flights.has_rest()
    }

    /// The finished requests, each exactly once.
    pub fn completed(&mut self) -> std::vec::Drain<'_, (T, Result<(), IoError>)> {
        self.count_out();
        self.done.drain(..)
    }

    /// The operations to begin now, each exactly once.
    pub fn wants(&mut self) -> std::vec::Drain<'_, Want<T::Part>> {
        self.wanted.drain(..)
    }

    /// Lets a request in, unless the volume is lost: then the request fails.
    fn enter(&mut self, volume: &Volume, token: T) -> Option<T> {
        self.count_in();
        match volume.lost() {
            None => Some(token),
            Some(lost) => {
                self.finish(token, Err(lost));
                None
            }
        }
    }

    /// Counts a taken token, in debug builds.
    fn count_in(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.inside += 1;
        }
    }

    /// Counts the tokens that come back now, in debug builds.
    fn count_out(&mut self) {
        #[cfg(debug_assertions)]
        {
            assert!(self.inside >= self.done.len(), "a token came back that was not inside");
            self.inside -= self.done.len();
        }
    }

    fn finish(&mut self, token: T, result: Result<(), IoError>) {
        self.done.push((token, result));
    }
}
