//! From the log to the store: when a cut of a volume is made, how it is carried there, and what is fetched back.
//!
//! Owns the order of those steps. Does not own what a cut holds (`volume`, `layers`) nor what the store looks like
//! (`store`). Invariants: a cut leaves the host only when all it covers is stable, so that no sequence number that the store
//! knows is ever given out again; data counts as being in the store only when the book has that on disk.
//!
//! ```text
//!  first write ─▶ announced ─▶ due: size, age, quiet, asked for, cache full
//!                                │
//!            at the next FLUSH, or now ─▶ cut ─▶ complete ─▶ stable ─▶ packs, manifest ─▶ book ─▶ clean
//! ```

mod crowding;
mod cut;
mod doubts;
mod due;
mod engine;
mod fetch;
mod merging;
mod risk;
#[cfg(test)]
mod tests;
mod tie;

use std::fmt;
use std::io;

pub(super) use self::cut::Cut;
pub use self::due::Triggers;
pub use self::engine::Flusher;
pub use self::fetch::{Fill, OnUnreachable};
pub use self::risk::{Bound, Pace};
pub use self::tie::Link;
pub(super) use self::tie::Tie;
use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

/// What an acknowledged FLUSH survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Loss of power: the data is on the local disk.
    #[default]
    Local,
    /// Loss of the host: the data is in the store.
    Store,
    /// Loss of power; and loss of the host loses no more than this, because writes are slowed, and wait, before it could.
    Bounded(Bound),
}

/// Which start of the daemon something was last written in. The log and the book both count them, so that one that was put back
/// alone is found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Number of the last start; 0 before the first that was counted.
    pub last: u32,
    /// Number of a start that was begun: the log has it, or not yet.
    pub begun: Option<u32>,
}

/// Where what must outlive the cache is kept. Calls that write block until it is on disk.
pub trait Book: Send + Sync + fmt::Debug {
    /// The last start that the book knows of; `None` for a book that does not count.
    fn start(&self) -> Option<Start> {
        None
    }

    /// Notes a start.
    ///
    /// # Errors
    /// What the disk said; then nothing was written down.
    fn set_start(&self, _start: Start) -> io::Result<()> {
        Ok(())
    }

    /// Nothing up to the sequence number of each export may be taken from the log any more.
    ///
    /// # Errors
    /// What the disk said; then nothing was written down.
    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()>;

    /// Everything up to `resume.cut` is in the store, whose side goes on from `resume`; and, as [`Self::evicted`] says, nothing up to
    /// `evicted` may be taken from the log any more. Both or none of it is written down.
    ///
    /// # Errors
    /// What the disk said; then nothing was written down.
    fn flushed(&self, export: ExportId, resume: &Resume, evicted: Seq) -> io::Result<()>;
}

/// The book of a cache without a store, to which nothing is ever written.
#[derive(Debug)]
pub(super) struct NoBook;

impl Book for NoBook {
    fn evicted(&self, _marks: &[(ExportId, Seq)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flushed(&self, _export: ExportId, _resume: &Resume, _evicted: Seq) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
