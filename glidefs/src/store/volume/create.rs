//! Creating volumes: new ones, and forks of others.
//!
//! Owns the first manifest of a volume. Does not own names (`host/names`), nor which content a fork begins with (`snapshots`).

use std::sync::Arc;

use super::error::VolumeError;
use super::host::{Host, encode, hash_of};
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use crate::store::client::Created;
use crate::store::error::StoreError;
use crate::store::format::{Manifest, Origin, PackRef, Sections};
use crate::store::ids::StoreName;
use crate::units::{SectorRange, Seq};

/// What a new volume begins as.
pub(super) struct Beginning {
    pub size_sectors: u64,
    pub origin: Option<Origin>,
    pub packs: Vec<PackRef>,
    /// As in [`Sections`].
    pub damaged: Vec<SectorRange>,
}

impl VolumeStore {
    /// A new volume, all zero: two requests. A name that was given to a volume that never came into being is used, and what this
    /// writer created in the same way and never wrote to is taken for the answer: the earlier one may have been lost.
    pub async fn create(&self, name: &StoreName, size_sectors: u64) -> Result<VolumeWriter, VolumeError> {
        self.host
            .begin(name, Beginning { size_sectors, origin: None, packs: Vec::new(), damaged: Vec::new() })
            .await
    }
}

impl Host {
    /// Makes a volume: its name first.
    pub async fn begin(
        self: &Arc<Self>,
        name: &StoreName,
        beginning: Beginning,
    ) -> Result<VolumeWriter, VolumeError> {
        let volume = self.claim(name).await?;
        let begun = self.options.clock.since_boot();
        let manifest = Manifest {
            volume,
            number: 1,
            epoch: 1,
            writer: self.options.writer,
            size_sectors: beginning.size_sectors,
            cut: Seq(0),
            created_unix_millis: self.options.clock.unix_millis(),
            generation: 0,
            name: name.clone(),
            origin: beginning.origin,
            packs: beginning.packs,
            sections: self.holding(&Sections { damaged: beginning.damaged, ..Sections::default() }),
        };
        let encoded = encode(&manifest)?;
        match self.create_noted(&manifest, &encoded).await? {
            Created::Created => Ok(VolumeWriter::new(self.clone(), Arc::new(manifest), begun)),
            Created::Existed => match self.still(&manifest).await? {
                Some(same) => Ok(VolumeWriter::new(self.clone(), Arc::new(same), begun)),
                None => {
                    self.options.notes.withdraw(volume, manifest.number, hash_of(&encoded));
                    Err(VolumeError::NameTaken { name: name.clone() })
                }
            },
        }
    }

    /// The first manifest of a volume, if this host meant to create it, it is as `first` says and nothing came after it. When it
    /// was created, and with which size, makes no difference: nobody has written to it. Versions that took no notes named no
    /// holder either: of their manifests the writer decides.
    async fn still(&self, first: &Manifest) -> Result<Option<Manifest>, StoreError> {
        let (found, hash) = match self.store.manifest_hashed(first.volume, first.number).await {
            Err(error) if error.is_missing() => return Ok(None),
            found => found?,
        };
        let Manifest { size_sectors, created_unix_millis, .. } = found;
        let sections = found.sections.clone();
        let same = Manifest { size_sectors, created_unix_millis, sections, ..first.clone() } == found;
        let noted = self.options.notes.intended(found.volume, found.number, &hash) == Some(true);
        let untouched = same
            && (noted || found.sections.holder.is_none())
            && self.store.newest_manifest(first.volume, Some(first.number)).await?.is_none()
            && self.store.tombstone(first.volume).await?.is_none();
        Ok(untouched.then_some(found))
    }
}
