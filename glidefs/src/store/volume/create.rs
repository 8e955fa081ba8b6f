//! Creating a volume: the name, then the first manifest.
//!
//! Owns the first manifest of a volume. Does not own names (`host/names`), nor the content that a fork begins with (`snapshots`).

use std::sync::Arc;
use std::time::Duration;

use super::error::VolumeError;
use super::host::{EncodedManifest, Host};
use super::types::Resume;
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use crate::properties::Properties;
use crate::store::client::Created;
use crate::store::error::StoreError;
use crate::store::format::{Manifest, Origin, PackRef, Sections};
use crate::store::ids::StoreName;
use crate::store::key::Key;
use crate::units::{SectorRange, Seq};

/// The volume with which a new export begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The state to go on from.
    pub resume: Resume,
    /// Whether the volume is released, so that another host may open the volume.
    pub is_released: bool,
    /// The properties in the manifest.
    pub properties: Properties,
}

/// Content of a new volume, and its properties.
pub(super) struct Beginning {
    pub size_sectors: u64,
    pub origin: Option<Origin>,
    pub packs: Vec<PackRef>,
    /// Damaged sectors, as in [`Sections`].
    pub damaged: Vec<SectorRange>,
    pub properties: Properties,
}

impl VolumeStore {
    /// Creates a volume that is all zero: three requests. The volume is `released` to any host from the beginning, or held. Returns the
    /// first manifest.
    ///
    /// If an earlier call gave the name and stopped there, the name is used again. If this writer has created such a volume
    /// before and nobody has written to the volume, the call succeeds with that volume: the answer to the earlier call may have
    /// been lost. Such a volume is left as the earlier call made it: a second manifest would refuse the next call, if this caller
    /// forgets the volume.
    pub async fn create_blank(
        &self,
        name: &StoreName,
        size_sectors: u64,
        properties: Properties,
        released: bool,
    ) -> Result<Begun, VolumeError> {
        let beginning = Beginning::blank(size_sectors, properties);
        let (manifest, _) = self.host.first_manifest(name, beginning, released).await?;
        let (is_released, properties) = (manifest.is_released(), manifest.sections.properties);
        let begun = Begun { resume: Resume::of(&manifest), is_released, properties };
        if !is_released {
            // The first reads, and the question whether the volume is blank, need no request then.
            self.host.reader.metadata.put_manifest(&manifest);
        }
        Ok(begun)
    }
}

impl Beginning {
    pub fn blank(size_sectors: u64, properties: Properties) -> Self {
        Self { size_sectors, origin: None, packs: Vec::new(), damaged: Vec::new(), properties }
    }

    /// The content of `state`.
    pub fn fork_of(state: &Manifest, properties: Properties) -> Self {
        Self {
            size_sectors: state.size_sectors,
            origin: Some(Origin { volume: state.volume, manifest: state.number }),
            packs: state.packs.clone(),
            damaged: state.sections.damaged.clone(),
            properties,
        }
    }
}

impl Host {
    /// Creates a volume with the content of `beginning`: first the name, then the first manifest.
    pub async fn begin(
        self: &Arc<Self>,
        name: &StoreName,
        beginning: Beginning,
    ) -> Result<VolumeWriter, VolumeError> {
        let (manifest, begun) = self.first_manifest(name, beginning, false).await?;
        Ok(VolumeWriter::new(self.clone(), manifest, begun))
    }

    /// Creates a volume, which is this host's, or `released`. Returns the first manifest in the store, and when the creation began.
    async fn first_manifest(
        &self,
        name: &StoreName,
        beginning: Beginning,
        released: bool,
    ) -> Result<(Arc<Manifest>, Duration), VolumeError> {
        let Beginning { size_sectors, origin, packs, damaged, properties } = beginning;
        let volume = self.claim(name).await?;
        let begun = self.options.clock.since_boot();
        let manifest = Manifest {
            volume,
            number: 1,
            epoch: 1,
            writer: self.options.writer,
            size_sectors,
            cut: Seq(0),
            created_unix_millis: self.options.clock.unix_millis(),
            generation: 0,
            name: name.clone(),
            origin,
            packs,
            sections: self.held_as(&Sections { damaged, properties, ..Sections::default() }, released),
        };
        let encoded = EncodedManifest::of(manifest)?;
        let manifest = match self.create_noted(&encoded).await? {
            Created::Created => encoded.manifest,
            Created::Existed => match self.still(&encoded.manifest).await? {
                Some(same) => Arc::new(same),
                None => {
                    self.withdraw_note(&encoded);
                    return Err(self.name_taken(name, volume).await);
                }
            },
        };
        // This host may have stood still since it saw the volume without a manifest. Another one may have gone on with the same
        // volume meanwhile, and deleted it.
        if self.store.is_buried(volume).await? {
            self.store.delete(&[Key::Manifest(volume, manifest.number)]).await?;
            self.remove_name(name, volume).await?;
            return Err(VolumeError::Deleted { volume });
        }
        Ok((manifest, begun))
    }

    /// The stored first manifest of a volume, if the manifest is `first` under another date, size or sections, this host meant to
    /// create the manifest, and no manifest came after. Date and size may differ, because nobody has written to the volume.
    /// Earlier versions, which took no notes, named no holder: of their manifests the writer alone decides.
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
