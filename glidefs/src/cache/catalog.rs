//! What must outlive the cache: the part of the daemon's catalog that the cache reads and writes.

use std::fmt;
use std::io;

use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

/// Which start of the daemon something was last written in. The log and the catalog both count them, so that one that was put back
/// alone is found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Number of the last start; 0 before the first that was counted.
    pub last: u32,
    /// Number of a start that was begun: the log has it, or not yet.
    pub begun: Option<u32>,
}

/// Where what must outlive the cache is kept. Calls that write block until it is on disk.
pub trait CacheCatalog: Send + Sync + fmt::Debug {
    /// The last start that the catalog knows of; `None` for a catalog that does not count.
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
    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> io::Result<()>;
}

/// The catalog of a cache without a store, to which nothing is ever written.
#[derive(Debug)]
pub(in crate::cache) struct NoCatalog;

impl CacheCatalog for NoCatalog {
    fn evicted(&self, _marks: &[(ExportId, Seq)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stored(&self, _export: ExportId, _resume: &Resume, _evicted: Seq) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
