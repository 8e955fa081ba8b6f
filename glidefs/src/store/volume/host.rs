//! What all volumes of a daemon share, and how one gets a volume.
//!
//! Owns creating, finding and resuming volumes. Does not own which host has one (`hold`), nor what is done with one. Invariant:
//! a name comes into the store before the volume it means, so there is never a volume that nobody can name.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ahead::Budget;
use super::fetch::Fetcher;
use super::metadata::{Listing, Metadata};
use super::notes::{ManifestHash, Notes, NotesInMemory};
use super::recent::Recent;
use super::view::View;
use super::writer::Inner;
use super::{Resume, SnapshotInfo, StatePoint, Volume, VolumeError};
use crate::store::block_cache::BlockCache;
use crate::store::client::{Created, Store};
use crate::store::clock::{StoreClock, SystemClock};
use crate::store::error::{StoreError, unfit};
use crate::store::format::{Manifest, NameRecord, Origin, PackRef, Sections};
use crate::store::ids::{HostName, StoreName, VolumeId, WriterId};
use crate::store::key::{Folder, Key};
use crate::units::{SectorRange, Seq};

/// How often something is tried again that another writer was faster with.
pub(super) const ROUNDS_MAX: usize = 16;

/// Memory that the making of a long pack takes, MiB.
const PACK_PERMITS: u32 = 40;

/// Memory that a merge of packs takes besides the pack it makes, MiB: a batch of what is read, with the gaps between.
const MERGE_PERMITS: u32 = 32;
/// Memory of a merge into packs of the usual length, MiB.
const UPLOAD_PERMITS_MIN: usize = 64;
/// The hash of no manifest.
const HASH_OF_NONE: ManifestHash = [0; 32];
/// More than a machine has.
const UPLOAD_PERMITS_MAX: usize = 1 << 28;

/// How volumes are used.
#[derive(Clone, Debug)]
pub struct VolumesOptions {
    /// Who writes: the identity of this daemon's cache. Two daemons must never have the same.
    pub writer: WriterId,
    /// Where is noted what a restart has to know. What another process noted for the same writer has to be in it.
    pub notes: Arc<dyn Notes>,
    /// The name of this host, for people on other hosts.
    pub host: HostName,
    /// What time it is.
    pub clock: Arc<dyn StoreClock>,
    /// Memory for manifests and pack indexes of all volumes together, bytes.
    pub metadata_bytes_max: usize,
    /// Memory for packs that are made and uploaded, of all volumes together, bytes. A long one takes about 40 MiB, a
    /// merge 64, or up to 160 for a large volume, and one is always made.
    pub upload_bytes_max: usize,
    /// Memory for packs that were uploaded last, of all volumes together, bytes: merging reads them from there. `None`: all are
    /// read from the store.
    pub recent_bytes_max: Option<u64>,
    /// zstd's level for data: 1 is fast, 19 is small.
    pub zstd_level: i32,
    /// Where blocks that were fetched are kept. `None`: nowhere, and nothing is read ahead.
    pub clean: Option<BlockCache>,
}

impl VolumesOptions {
    /// The usual, for `writer`.
    pub fn new(writer: WriterId) -> Self {
        Self {
            writer,
            notes: Arc::<NotesInMemory>::default(),
            host: HostName::nearest(""),
            clock: Arc::new(SystemClock),
            metadata_bytes_max: 64 << 20,
            upload_bytes_max: 256 << 20,
            recent_bytes_max: None,
            zstd_level: 1,
            clean: None,
        }
    }
}

/// The volumes of a store, as one daemon uses them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volumes(pub(super) Arc<Host>);

/// What volumes share.
pub(super) struct Host {
    pub store: Store,
    pub options: VolumesOptions,
    pub metadata: Metadata,
    pub fetcher: Fetcher,
    /// A permit for each MiB that packs take in memory.
    pub uploads: Arc<Semaphore>,
    /// How many permits there are.
    upload_permits: u32,
    /// The last note could not be taken.
    notes_fail: AtomicBool,
    /// `None`: nothing is read ahead.
    pub ahead: Option<Budget>,
    /// `None`: packs are not kept when they are uploaded.
    pub recent: Option<Recent>,
    /// The writers of this process.
    pub writers: Mutex<HashMap<VolumeId, Weak<Inner>>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("store", &self.store.location()).finish_non_exhaustive()
    }
}

/// What a new volume begins as.
pub(super) struct Beginning {
    pub size_sectors: u64,
    pub origin: Option<Origin>,
    pub packs: Vec<PackRef>,
    /// As in [`Sections`].
    pub damaged: Vec<SectorRange>,
}

impl Volumes {
    /// The volumes of `store`.
    pub fn new(store: Store, options: VolumesOptions) -> Self {
        let metadata = Metadata::new(options.metadata_bytes_max);
        let permits = (options.upload_bytes_max >> 20).clamp(UPLOAD_PERMITS_MIN, UPLOAD_PERMITS_MAX);
        let uploads = Arc::new(Semaphore::new(permits));
        let ahead = options.clean.as_ref().map(|clean| Budget::within(clean.blocks_bytes_max()));
        // At most UPLOAD_PERMITS_MAX.
        let upload_permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let fetcher = Fetcher::default();
        let recent = options.recent_bytes_max.map(Recent::new);
        let notes_fail = AtomicBool::new(false);
        let writers = Mutex::default();
        let host = Host {
            store,
            options,
            metadata,
            fetcher,
            uploads,
            upload_permits,
            notes_fail,
            ahead,
            recent,
            writers,
        };
        Self(Arc::new(host))
    }

    /// The store they are in.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Where they keep what was read.
    pub fn clean(&self) -> Option<BlockCache> {
        self.0.options.clean.clone()
    }

    /// Memory that manifests and pack indexes take, bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.0.metadata.bytes()
    }

    /// A new volume, all zero: two requests. A name that was given to a volume that never came into being is used, and what this
    /// writer created in the same way and never wrote to is taken for the answer: the earlier one may have been lost.
    pub async fn create(&self, name: &StoreName, size_sectors: u64) -> Result<Volume, VolumeError> {
        self.0
            .begin(name, Beginning { size_sectors, origin: None, packs: Vec::new(), damaged: Vec::new() })
            .await
    }

    /// Goes on with a volume where this daemon left off: no request. Whether another writer has taken it over shows with the
    /// first commit. Where this process has a writer of the volume in the same epoch, which has not lost the volume, it is that one.
    pub fn resume(&self, resume: &Resume) -> Volume {
        Volume::resume(self.0.clone(), resume)
    }

    /// Which volume a name means.
    pub async fn find(&self, name: &StoreName) -> Result<Option<VolumeId>, VolumeError> {
        Ok(self.0.store.name(name).await?.map(|record| record.volume))
    }

    /// Takes over `wanted`, which has to be the volume that `name` means: whoever has it is fenced.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the name means another volume, which is left alone.
    pub async fn take_over_known(&self, name: &StoreName, wanted: VolumeId) -> Result<Volume, VolumeError> {
        let found = self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })?;
        if found != wanted {
            return Err(VolumeError::OtherVolume { name: name.clone(), found, wanted });
        }
        // What has become of the name since does not matter: a deleted volume is refused.
        self.acquire(wanted, true).await
    }

    /// The names of all volumes.
    pub async fn names(&self) -> Result<Vec<StoreName>, VolumeError> {
        let listing = self.0.store.list(Folder::Names, None).await?;
        let name = |key| if let Key::Name(name) = key { Some(name) } else { None };
        Ok(listing.objects.into_iter().filter_map(|object| name(object.key)).collect())
    }

    /// A state of any volume, to be read without taking it over.
    pub async fn view(&self, point: &StatePoint) -> Result<View, VolumeError> {
        let manifest = Arc::new(self.0.state(point).await?);
        let store = self.0.store.clone();
        Ok(View { host: self.0.clone(), store, listing: Arc::new(Listing::of(manifest)) })
    }

    /// The snapshots of any volume.
    pub async fn snapshots(&self, volume: VolumeId) -> Result<Vec<SnapshotInfo>, VolumeError> {
        let listing = self.0.store.list(Folder::Snapshots(volume), None).await?;
        let info = |object: crate::store::ObjectInfo| match object.key {
            Key::Snapshot(_, name) => {
                Some(SnapshotInfo { name, created_unix_millis: object.created_unix_millis })
            }
            _ => None,
        };
        Ok(listing.objects.into_iter().filter_map(info).collect())
    }

    /// Deletes a snapshot of any volume. One that is not there counts as deleted.
    pub async fn delete_snapshot(&self, volume: VolumeId, name: &StoreName) -> Result<(), VolumeError> {
        Ok(self.0.store.delete(&[Key::Snapshot(volume, name.clone())]).await?)
    }
}

impl Host {
    /// Memory for a pack of `data_bytes`, as long as the permit lives.
    pub async fn pack_memory(&self, data_bytes: u64) -> Result<OwnedSemaphorePermit, VolumeError> {
        // A compressor takes about one as well.
        let permits = (2 + (data_bytes >> 20)).min(PACK_PERMITS.into());
        self.upload_memory(u32::try_from(permits).unwrap_or(PACK_PERMITS)).await
    }

    /// Memory for a merge into packs of `pack_bytes`, as long as the permit lives.
    pub async fn merge_memory(&self, pack_bytes: u64) -> Result<OwnedSemaphorePermit, VolumeError> {
        let permits = u64::from(MERGE_PERMITS) + (pack_bytes >> 20);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // One merge is always possible.
        self.upload_memory(permits.min(self.upload_permits)).await
    }

    async fn upload_memory(&self, permits: u32) -> Result<OwnedSemaphorePermit, VolumeError> {
        // It is never closed.
        self.uploads.clone().acquire_many_owned(permits).await.map_err(|_| VolumeError::Stopping)
    }

    /// Makes a volume: its name first.
    pub async fn begin(
        self: &Arc<Self>,
        name: &StoreName,
        beginning: Beginning,
    ) -> Result<Volume, VolumeError> {
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
            Created::Created => Ok(Volume::new(self.clone(), Arc::new(manifest), begun)),
            Created::Existed => match self.still(&manifest).await? {
                Some(same) => Ok(Volume::new(self.clone(), Arc::new(same), begun)),
                None => {
                    self.options.notes.withdraw(volume, manifest.number, hash_of(&encoded));
                    Err(VolumeError::NameTaken { name: name.clone() })
                }
            },
        }
    }

    /// Creates a manifest, with a note before.
    pub async fn create_manifest(&self, manifest: &Manifest) -> Result<Created, VolumeError> {
        self.create_noted(manifest, &encode(manifest)?).await
    }

    /// As [`Self::create_manifest`], of a manifest that is encoded.
    pub async fn create_noted(&self, manifest: &Manifest, encoded: &Bytes) -> Result<Created, VolumeError> {
        self.note_manifest(manifest, encoded).await?;
        self.create_after_note(manifest, encoded).await
    }

    /// Notes that the store is about to be asked for `manifest`. The store may never be asked.
    pub async fn note_manifest(&self, manifest: &Manifest, encoded: &Bytes) -> Result<(), VolumeError> {
        self.note(manifest.volume, manifest.number, hash_of(encoded)).await
    }

    /// Asks the store for a manifest that was noted.
    pub async fn create_after_note(
        &self,
        manifest: &Manifest,
        encoded: &Bytes,
    ) -> Result<Created, VolumeError> {
        let key = Key::Manifest(manifest.volume, manifest.number);
        Ok(self.store.create(&key, std::slice::from_ref(encoded)).await?)
    }

    async fn note(&self, volume: VolumeId, number: u64, hash: ManifestHash) -> Result<(), VolumeError> {
        let noted = self.options.notes.intend(volume, number, hash).await;
        self.notes_fail.store(noted.is_err(), Ordering::Release);
        noted.map_err(|error| VolumeError::NotNoted(Arc::new(error)))
    }

    /// An error when no note on manifest `number` can be taken, so that nothing is uploaded for a manifest that cannot be created.
    /// Tries only after a note that failed.
    pub async fn check_notes(&self, volume: VolumeId, number: u64) -> Result<(), VolumeError> {
        if self.notes_fail.load(Ordering::Acquire) {
            self.note(volume, number, HASH_OF_NONE).await?;
        }
        Ok(())
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

    /// Gives `name` to a volume that has no manifest, or no other than its first.
    async fn claim(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let volume = VolumeId::random(self.store.entropy());
            let created_unix_millis = self.options.clock.unix_millis();
            let record = NameRecord { volume, created_unix_millis };
            if self.store.create_name(name, &record).await? == Created::Created {
                return Ok(volume);
            }
            // It may have gone away in the meantime.
            let Some(record) = self.store.name(name).await? else { continue };
            let Some(newest) = self.store.latest_manifest(record.volume, None).await? else {
                return Ok(record.volume);
            };
            match self.check_not_deleted(&newest).await {
                Ok(()) if newest.number == 1 => return Ok(record.volume),
                Ok(()) => break,
                // The deletion was not finished.
                Err(VolumeError::Deleted { .. }) => self.remove_name(name, record.volume).await?,
                Err(error) => return Err(error),
            }
        }
        Err(VolumeError::NameTaken { name: name.clone() })
    }

    /// What `point` means.
    pub async fn state(&self, point: &StatePoint) -> Result<Manifest, VolumeError> {
        let volume = point.volume;
        if let Some(name) = &point.snapshot {
            return match self.store.snapshot(volume, name).await {
                Ok(snapshot) => Ok(snapshot.manifest),
                Err(error) if error.is_missing() => Err(VolumeError::NoSuchSnapshot { name: name.clone() }),
                Err(error) => Err(error.into()),
            };
        }
        let newest = self.store.latest_manifest(volume, None).await?;
        let newest = newest.ok_or(VolumeError::NoSuchVolume { volume })?;
        self.check_not_deleted(&newest).await.map(|()| newest)
    }
}

fn encode(manifest: &Manifest) -> Result<Bytes, VolumeError> {
    let key = Key::Manifest(manifest.volume, manifest.number);
    Ok(manifest.encode().map_err(|source| unfit(&key, source))?.into())
}

fn hash_of(encoded: &Bytes) -> ManifestHash {
    *blake3::hash(encoded).as_bytes()
}

/// The number behind `number`. There are more than a volume can use up.
pub(super) fn next(number: u64) -> u64 {
    number.saturating_add(1)
}
