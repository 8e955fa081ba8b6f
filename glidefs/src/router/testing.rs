//! Exports of a router, for tests and benches.
//!
//! Owns nothing. The daemon visits exports and collects none.

use std::sync::Arc;

use super::{ExportInfo, Router};
use crate::export::Export;

impl Router {
    /// Every export, by name.
    pub fn list(&self) -> Vec<ExportInfo> {
        self.infos().collect()
    }

    /// The exports that are not at rest, by name.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.entries().iter().filter_map(|entry| entry.export().cloned()).collect()
    }
}
