//! The router's view of the data of exports. The composition root implements it over the cache.

use std::sync::Arc;

use crate::cache::Volume;
use crate::units::ExportId;

/// Gives and forgets the data of exports.
pub trait Volumes: Send + Sync + 'static {
    /// The data of export `id`: what was recovered, or empty.
    fn volume(&self, id: ExportId) -> Arc<Volume>;

    /// Forgets the data of export `id`. Called when its catalog entry is gone and its device with it.
    fn remove(&self, id: ExportId);
}
