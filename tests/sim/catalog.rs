//! The catalog of the fake computer: counts the starts of the cache, as the daemon's catalog does.
//!
//! Does not own the count (`machine`): the count outlives the process.

use std::io;

use futures_util::future::{BoxFuture, ready};
use glidefs::testing::cache::{CacheCatalog, Start};
use glidefs::testing::store::volume::Resume;
use glidefs::testing::units::{ExportId, Seq};

use super::disk::{Shared, machine};

/// The catalog, as one process sees the catalog.
pub struct FakeCatalog {
    shared: Shared,
    generation: u64,
}

impl FakeCatalog {
    /// The catalog for the process of this life.
    pub fn new(shared: &Shared) -> Self {
        Self { shared: Shared::clone(shared), generation: machine(shared).generation() }
    }
}

impl std::fmt::Debug for FakeCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeCatalog").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl CacheCatalog for FakeCatalog {
    fn start(&self) -> Option<Start> {
        let (last, begun) = machine(&self.shared).start();
        Some(Start { last, begun })
    }

    fn set_start(&self, start: Start) -> io::Result<()> {
        machine(&self.shared).set_start(self.generation, (start.last, start.begun))
    }

    fn evicted(&self, _marks: &[(ExportId, Seq)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(ready(Err(io::ErrorKind::Unsupported.into())))
    }
}
