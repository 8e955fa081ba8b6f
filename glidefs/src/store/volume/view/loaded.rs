//! A manifest in memory, with the rows of its packs.
//!
//! Owns the questions a manifest answers without a request. Does not own how long the manifest stays in memory (`metadata`).

use std::sync::Arc;

use super::rows::Rows;
use crate::store::format::{Manifest, PackRef};
use crate::store::volume::damage;
use crate::store::volume::error::VolumeError;
use crate::units::SectorRange;

/// A manifest in memory, with the rows of its packs.
#[derive(Debug)]
pub(in crate::store::volume) struct LoadedManifest {
    pub manifest: Arc<Manifest>,
    pub rows: Rows,
}

impl LoadedManifest {
    pub fn of(manifest: Arc<Manifest>) -> Self {
        Self { rows: Rows::of(&manifest.packs), manifest }
    }

    /// Whether a read of `range` may find something other than zeroes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.reaching(range).next().is_some() || self.check(range).is_err()
    }

    /// An error when a sector of `range` is damaged.
    pub fn check(&self, range: SectorRange) -> Result<(), VolumeError> {
        let found = damage::first_in(&self.manifest.sections.damaged, range);
        found.map_or(Ok(()), |range| Err(VolumeError::Damaged { range }))
    }

    /// The packs that may have something of `range`, newest first.
    pub fn reaching(&self, range: SectorRange) -> impl Iterator<Item = &PackRef> {
        self.rows.reaching(&self.manifest.packs, range)
    }
}
