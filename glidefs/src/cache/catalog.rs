//! The facts that must outlive the cache: the part of the daemon's catalog read and written by the cache.

use std::fmt;
use std::io;

use futures_util::future::BoxFuture;

use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

/// A start of the daemon, as last written down. The log and the catalog both count starts, so recovery finds out when one of the
/// two was restored without the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Number of the last start; 0 before the first counted start.
    pub last: u32,
    /// Number of a start begun: the log may have the number, or not yet.
    pub begun: Option<u32>,
}

/// The place of facts that must outlive the cache. Calls that write block until the facts are on disk, except where a future waits.
pub trait CacheCatalog: Send + Sync + fmt::Debug {
    /// The last start known to the catalog; `None` for a catalog which does not count.
    fn start(&self) -> Option<Start> {
        None
    }

    /// Notes a start.
    ///
    /// # Errors
    /// The error of the disk; then nothing was written down.
    fn set_start(&self, _start: Start) -> io::Result<()> {
        Ok(())
    }

    /// Notes for each export a sequence number up to which nothing may be taken from the log any more.
    ///
    /// # Errors
    /// The error of the disk; then nothing was written down.
    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()>;

    /// Notes that everything up to `resume.cut` is in the store, whose history goes on from `resume`; and, as in
    /// [`Self::evicted`], that nothing up to `evicted` may be taken from the log any more. Both facts are written down, or none.
    ///
    /// The call does not block; the future ends when the facts are on disk. A future that is never polled may write nothing.
    ///
    /// # Errors
    /// The error of the disk; then nothing was written down.
    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> BoxFuture<'static, io::Result<()>>;
}
