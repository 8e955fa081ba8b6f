//! The volumes of a store, as one daemon uses the volumes: how they are found, created, opened, taken over and resumed.
//!
//! Owns when a new volume counts as created, and when this host becomes the holder of a volume. Does not own the content of a fork
//! (`snapshots`), names and what a manifest says of the holder (`host`), how a writer gives up a lost volume (`writer/newest`), nor how a
//! volume ends (`delete`). Invariants: a repeated call after a lost answer ends well; only a deliberate takeover opens a volume that
//! another host has not released.

use std::sync::Arc;
use std::time::Duration;

use super::error::VolumeError;
use super::host::{EncodedManifest, Host, VolumeStoreOptions};
use super::limits::ROUNDS_MAX;
use super::types::Resume;
use super::writer::VolumeWriter;
use crate::properties::Properties;
use crate::store::block_cache::BlockCache;
use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{Manifest, NameRecord, Origin, PackRef, Sections};
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::{Folder, Key};
use crate::units::{SectorRange, Seq};

/// Opens, creates and finds the volumes of one store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    pub(super) host: Arc<Host>,
}

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
    /// The volumes of `store`, used with `options`.
    pub fn new(store: Store, options: VolumeStoreOptions) -> Self {
        Self { host: Arc::new(Host::new(store, options)) }
    }

    /// The store of these volumes.
    pub fn store(&self) -> &Store {
        &self.host.store
    }

    /// The block cache, if there is one.
    pub fn block_cache(&self) -> Option<BlockCache> {
        self.host.options.block_cache.clone()
    }

    /// Memory of manifests, pack indexes and packs uploaded a moment ago, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let reader = &self.host.reader;
        reader.recent.bytes().saturating_add(reader.metadata.bytes() as u64)
    }

    /// READs that look for data in the store.
    #[cfg(test)]
    pub(super) fn places_taken(&self) -> u64 {
        self.host.reader.read_memory.places.taken()
    }

    /// Memory for the blocks of READs, bytes: what was set aside.
    pub fn read_bytes(&self) -> u64 {
        self.host.reader.read_memory.bytes()
    }

    /// Goes on with a volume where this daemon left off. Makes no request: the first commit shows whether another writer has
    /// taken the volume over. If this process has a writer of the volume in the same epoch that has not lost the volume, returns
    /// a handle of that writer.
    pub fn resume(&self, resume: &Resume) -> VolumeWriter {
        VolumeWriter::resume(self.host.clone(), resume)
    }

    /// Whether the notes say that this host lost the volume in the epoch of `resume`.
    pub fn is_lost(&self, resume: &Resume) -> bool {
        self.host.noted_loss(resume).is_some()
    }

    /// The volume meant by `name`.
    pub async fn find(&self, name: &StoreName) -> Result<Option<VolumeId>, VolumeError> {
        Ok(self.host.store.name(name).await?.map(|record| record.volume))
    }

    /// Names of all volumes in the store: one listing.
    pub async fn names(&self) -> Result<Vec<StoreName>, VolumeError> {
        let listing = self.host.store.list(Folder::Names, None).await?;
        let name = |key| if let Key::Name(name) = key { Some(name) } else { None };
        Ok(listing.into_iter().filter_map(|object| name(object.key)).collect())
    }

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

    /// Opens the volume of a name. The host that had the volume has released the volume, or is this host.
    ///
    /// # Errors
    /// [`VolumeError::Held`] when another host has the volume and has not released the volume.
    pub async fn open(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, false).await
    }

    /// Takes over the volume of a name. The writer that had the volume is fenced, and loses everything not committed.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when the volume is a fork that nobody has written to, and packs of the fork are gone.
    pub async fn take_over(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, true).await
    }

    /// As [`Self::take_over`], for a caller that knows which volume `name` has to mean.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the name means another volume. That volume is left alone.
    pub async fn take_over_known(
        &self,
        name: &StoreName,
        wanted: VolumeId,
    ) -> Result<VolumeWriter, VolumeError> {
        let found = self.named(name).await?;
        if found != wanted {
            return Err(VolumeError::OtherVolume { name: name.clone(), found, wanted });
        }
        // From here on the name does not matter: if the volume was deleted meanwhile, the takeover is refused.
        self.acquire(wanted, true).await
    }

    /// The newest manifest of the volume of a name, whichever host has the volume: four requests.
    pub async fn newest_of(&self, name: &StoreName) -> Result<Manifest, VolumeError> {
        Ok(self.newest(self.named(name).await?).await?.0)
    }

    /// The newest manifest, and its hash.
    async fn newest(&self, volume: VolumeId) -> Result<(Manifest, [u8; 32]), VolumeError> {
        let newest = self.host.store.latest_manifest_hashed(volume, None).await?;
        let Some((newest, hash)) = newest else { return Err(self.host.without_state(volume).await) };
        Host::check_not_deleted(&newest)?;
        Ok((newest, hash))
    }

    /// The volume of a name.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchName`] when there is none.
    pub async fn named(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })
    }

    /// Makes this host the holder of `volume`: seven requests, however many manifests there are. Of a fork that nobody has written to,
    /// one listing more, and one request for each pack.
    pub(in crate::store) async fn acquire(
        &self,
        volume: VolumeId,
        takes_over: bool,
    ) -> Result<VolumeWriter, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let (newest, hash) = self.newest(volume).await?;
            if !takes_over && let Some(held) = self.host.other_holder(&newest, &hash) {
                return Err(VolumeError::Held(held));
            }
            if newest.number == 1 && newest.origin.is_some() {
                // The host of the fork may have ended before the host found out that the fork came too late.
                self.host.will_stay(volume, newest.packs.clone()).await?;
            }
            if let Some(writer) = self.create_newest(self.host.next_of(newest)).await? {
                return Ok(writer);
            }
        }
        Err(VolumeError::Contended { volume })
    }

    /// Takes a volume with a manifest whose number this host has just read to be free. `None` when the manifest is not the newest:
    /// this process may have stood still since the reading, so that others took the number and higher ones, and garbage
    /// collection freed the number again.
    ///
    /// The writer before may stand still for any time, and its clock as well, and then create the same number. So a fence comes
    /// before the manifest: garbage collection never frees a number with a fence, and that writer finds the manifest.
    ///
    /// # Errors
    /// [`VolumeError::Deleted`] when garbage collection removed the whole volume meanwhile.
    pub(super) async fn create_newest(
        &self,
        manifest: Manifest,
    ) -> Result<Option<VolumeWriter>, VolumeError> {
        let Manifest { volume, number, created_unix_millis, .. } = manifest;
        let (host, begun) = (&self.host, self.now());
        let encoded = EncodedManifest::of(manifest)?;
        let fence = Key::Fence(volume, number);
        let _: Created = host.store.mark(&fence, NameRecord { volume, created_unix_millis }).await?;
        if host.create_noted(&encoded).await? == Created::Existed
            || host.store.newest_manifest(volume, Some(number)).await?.is_some()
        {
            return Ok(None);
        }
        // Other manifests prove nothing: they may have arrived after the end of the volume.
        if host.store.is_buried(volume).await? {
            host.store.delete(&[Key::Manifest(volume, number)]).await?;
            return Err(VolumeError::Deleted { volume });
        }
        Ok(Some(VolumeWriter::new(Arc::clone(host), encoded.manifest, begun)))
    }

    pub(super) fn now(&self) -> Duration {
        self.host.options.clock.since_boot()
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
            self.remove_name(name, volume, false).await?;
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
            && self.store.newest_manifest(first.volume, Some(first.number)).await?.is_none();
        Ok(untouched.then_some(found))
    }
}
