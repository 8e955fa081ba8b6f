//! A cache without a store, for tests and benches.
//!
//! Owns nothing of a cache. The daemon uses nothing of this.

use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use crate::cache::catalog::CacheCatalog;
use crate::cache::log::format::KeptExtent;
use crate::cache::options::Known;
use crate::cache::volume::Volume;
use crate::cache::volume::layers::SeqMarks;
use crate::store::volume::Resume;
use crate::units::{ExportId, Seq};

impl Known {
    /// Exports with no data in a store.
    pub fn local(ids: &[ExportId]) -> Self {
        let exports = ids.iter().map(|id| (*id, SeqMarks::default())).collect();
        Self { exports, next_export: None, catalog: Arc::new(NoCatalog) }
    }
}

impl Volume {
    /// All content of the volume by first sector.
    pub fn content(&self) -> Vec<KeptExtent> {
        let (mut found, mut from) = (Vec::new(), Some(0));
        while let Some(sector) = from {
            let slice = self.slice(sector, 4096, |_| true);
            found.extend(slice.extents);
            from = slice.next;
        }
        found
    }
}

/// The catalog of a cache without a store: nothing is ever written to this catalog.
#[derive(Debug)]
struct NoCatalog;

impl CacheCatalog for NoCatalog {
    fn evicted(&self, _marks: &[(ExportId, Seq)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, io::Result<()>> {
        ready(Err(io::ErrorKind::Unsupported.into())).boxed()
    }
}
