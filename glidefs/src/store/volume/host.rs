//! State shared by all volumes of a process: store, notes, readers, memory for uploads, writers.
//!
//! Owns the memory for packs being made, the order of note and creation, how this host enters itself as the holder of a volume and
//! which manifests forbid that, and giving and removing names. Does not own any single volume, nor when a volume changes hands.
//! Invariants: a manifest is noted before the store is asked to create the manifest; a name comes into the store before the volume
//! of that name, so there is never a volume that cannot be named; of this process, one at a time looks whether a name still means a
//! deleted volume, and removes the name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Held, VolumeError};
use super::limits::ROUNDS_MAX;
use super::notes::{Loss, ManifestHash, Notes};
use super::types::{Resume, SnapshotInfo, StatePoint, next_number};
use super::view::fetch::Fetcher;
use super::view::metadata::Metadata;
use super::view::pack_reader::PackReader;
use super::view::read_memory::ReadMemory;
use super::view::readahead::ReadaheadBudget;
use super::view::recent::RecentPacks;
use super::writer::state::WriterState;
use crate::store::block_cache::BlockCache;
use crate::store::client::{Created, ObjectInfo, Store};
use crate::store::clock::StoreClock;
use crate::store::error::{StoreError, unfit};
use crate::store::format::{Deletion, Holder, Manifest, NameRecord, PackRef, Sections};
use crate::store::ids::{HostName, StoreName, VolumeId, WriterId};
use crate::store::key::{Folder, Key};
use crate::store::removals::Stay;

/// Memory for making a pack of the usual length, MiB.
const PACK_PERMITS: u32 = 40;

/// Memory of a merge besides the pack being made and the indexes, MiB: a batch of data read, with the gaps between blocks.
const MERGE_PERMITS: u32 = 32;
/// Memory of a merge into packs of the usual length, MiB.
const UPLOAD_PERMITS_MIN: usize = 64;
/// Stands in for a manifest's hash in a note that only tries whether notes can be taken.
const HASH_OF_NONE: ManifestHash = [0; 32];
/// In MiB: more than any machine has.
const UPLOAD_PERMITS_MAX: usize = 1 << 28;

/// Options of a [`super::VolumeStore`]: identity, notes, memory.
#[derive(Clone, Debug)]
pub struct VolumeStoreOptions {
    /// Identity of this daemon's cache, under which manifests are made. Two daemons must never have the same identity.
    pub writer: WriterId,
    /// Notes for restarts. Notes of earlier processes of the same writer have to be included.
    pub notes: Arc<dyn Notes>,
    /// The name of this host, shown to people on other hosts.
    pub host: HostName,
    /// Clock of this process, for dates and for time limits.
    pub clock: Arc<dyn StoreClock>,
    /// Memory for manifests and pack indexes of all volumes together, bytes.
    pub metadata_bytes_max: usize,
    /// Memory for packs being made and uploaded, of all volumes together, bytes. A long pack takes about 40 MiB, a merge 64 MiB,
    /// or up to 160 MiB for a large volume, and up to 64 MiB more for indexes. One merge is always possible.
    pub upload_bytes_max: usize,
    /// Memory for packs uploaded last, of all volumes together, bytes: merging reads packs from this memory. With 0,
    /// merging reads all packs from the store.
    pub recent_bytes_max: u64,
    /// Memory for packs being made, uploaded, and uploaded last, together, bytes: as packs are made, packs uploaded last are
    /// forgotten.
    pub pack_bytes_max: u64,
    /// Memory for the blocks of READs of all volumes together, bytes. Exceeded by less than the needs of two READs.
    pub read_bytes_max: u64,
    /// The block cache. `None`: fetched blocks are not kept, and nothing is read ahead.
    pub block_cache: Option<BlockCache>,
}

/// A manifest, and its bytes in the store.
pub(super) struct EncodedManifest {
    pub manifest: Arc<Manifest>,
    pub bytes: Bytes,
}

/// Shared by all volumes of a process.
pub(super) struct Host {
    pub store: Store,
    pub options: VolumeStoreOptions,
    pub reader: Arc<PackReader>,
    /// One permit for each MiB of packs in memory.
    uploads: Arc<Semaphore>,
    upload_permits: u32,
    /// The last note could not be taken.
    notes_fail: AtomicBool,
    /// Held by the one question of this host whether packs stay. Those who wait go on in order.
    stay_questions: tokio::sync::Mutex<()>,
    /// `None`: nothing is read ahead.
    pub readahead: Option<ReadaheadBudget>,
    /// The state of each volume that this process writes, as long as a handle of the volume exists.
    pub writers: Mutex<HashMap<VolumeId, Weak<WriterState>>>,
}

crate::units::debug_by_name!(Host);

impl Host {
    /// The shared state of volumes in `store`.
    pub fn new(store: Store, options: VolumeStoreOptions) -> Self {
        let permits = (options.upload_bytes_max >> 20).clamp(UPLOAD_PERMITS_MIN, UPLOAD_PERMITS_MAX);
        let block_cache = options.block_cache.clone();
        let budget = |cache: &BlockCache| ReadaheadBudget::within(cache.blocks_bytes_max());
        Self {
            uploads: Arc::new(Semaphore::new(permits)),
            // At most UPLOAD_PERMITS_MAX.
            upload_permits: u32::try_from(permits).unwrap_or(u32::MAX),
            notes_fail: AtomicBool::new(false),
            stay_questions: tokio::sync::Mutex::default(),
            readahead: block_cache.as_ref().map(budget),
            reader: Arc::new(PackReader {
                metadata: Metadata::new(options.metadata_bytes_max),
                fetcher: Fetcher::default(),
                recent: RecentPacks::new(options.recent_bytes_max),
                block_cache,
                read_memory: ReadMemory::new(options.read_bytes_max),
            }),
            writers: Mutex::default(),
            store,
            options,
        }
    }

    /// Memory for a pack of `data_bytes`, as long as the permit lives.
    pub async fn pack_memory(&self, data_bytes: u64) -> Result<OwnedSemaphorePermit, VolumeError> {
        // The permit counts two MiB more for the compressor.
        let permits = (2 + (data_bytes >> 20)).min(PACK_PERMITS.into());
        self.upload_memory(u32::try_from(permits).unwrap_or(PACK_PERMITS)).await
    }

    /// Memory for a merge that has `bytes` of a new pack and of indexes in memory, as long as the permit lives.
    pub async fn merge_memory(&self, bytes: u64) -> Result<OwnedSemaphorePermit, VolumeError> {
        let permits = u64::from(MERGE_PERMITS) + (bytes >> 20);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // Even with the smallest memory, one merge gets all permits and is possible.
        self.upload_memory(permits.min(self.upload_permits)).await
    }

    /// Waits for `permits` MiB, and has packs uploaded last leave memory for these.
    async fn upload_memory(&self, permits: u32) -> Result<OwnedSemaphorePermit, VolumeError> {
        // The semaphore is never closed.
        let permit =
            self.uploads.clone().acquire_many_owned(permits).await.map_err(|_| VolumeError::Stopping)?;
        self.reader.recent.shrink_to(|| self.recent_bytes_max());
        Ok(permit)
    }

    /// Memory for packs being made and uploaded, bytes.
    pub fn upload_bytes(&self) -> u64 {
        let free = self.uploads.available_permits() as u64;
        u64::from(self.upload_permits).saturating_sub(free) << 20
    }

    /// Memory that packs being made leave to packs uploaded last at present, bytes.
    pub fn recent_bytes_max(&self) -> u64 {
        self.options.pack_bytes_max.saturating_sub(self.upload_bytes())
    }

    /// Notes a manifest, then creates it.
    pub async fn create_noted(&self, manifest: &EncodedManifest) -> Result<Created, VolumeError> {
        self.note_manifest(manifest).await?;
        self.create_after_note(manifest).await
    }

    /// Notes that the store is about to be asked to create `next`. The caller may still decide not to ask.
    pub async fn note_manifest(&self, next: &EncodedManifest) -> Result<(), VolumeError> {
        self.note(next.manifest.volume, next.manifest.number, next.hash()).await
    }

    /// Asks the store to create a noted manifest.
    pub async fn create_after_note(&self, next: &EncodedManifest) -> Result<Created, VolumeError> {
        let key = Key::Manifest(next.manifest.volume, next.manifest.number);
        Ok(self.store.create(&key, std::slice::from_ref(&next.bytes)).await?)
    }

    /// Takes back the note on a manifest that the store does not have and can never get.
    pub fn withdraw_note(&self, next: &EncodedManifest) {
        self.options.notes.withdraw(next.manifest.volume, next.manifest.number, next.hash());
    }

    async fn note(&self, volume: VolumeId, number: u64, hash: ManifestHash) -> Result<(), VolumeError> {
        let noted = self.options.notes.intend(volume, number, hash).await;
        self.notes_fail.store(noted.is_err(), Ordering::Release);
        noted.map_err(|error| VolumeError::NotNoted(Arc::new(error)))
    }

    /// Why this host lost the volume in the epoch of `resume`, as far as notes decide. A deletion, which earlier versions noted, was
    /// perhaps none: the store is asked.
    pub fn noted_loss(&self, resume: &Resume) -> Option<Loss> {
        self.options.notes.loss(resume.volume, resume.epoch).filter(|loss| *loss != Loss::Deleted)
    }

    /// An error when no note on manifest `number` can be taken: then the manifest cannot be created, and uploading packs would be
    /// for nothing. Tries a note only if the last note failed.
    pub async fn check_notes(&self, volume: VolumeId, number: u64) -> Result<(), VolumeError> {
        if self.notes_fail.load(Ordering::Acquire) {
            self.note(volume, number, HASH_OF_NONE).await?;
        }
        Ok(())
    }

    /// The manifest meant by `point`, of a volume that is not deleted: garbage collection may be about to make the deletion final, and then
    /// removes the packs. And the newest manifest of the volume; `None`: it is damaged.
    pub async fn state_and_newest(
        &self,
        point: &StatePoint,
    ) -> Result<(Manifest, Option<Manifest>), VolumeError> {
        let volume = point.volume;
        let kept = match &point.snapshot {
            Some(name) => Some(self.snapshot(volume, name).await?),
            None => None,
        };
        match (self.store.latest_manifest(volume, None).await, kept) {
            // Garbage collection takes nothing of a volume whose newest manifest is damaged, and a fork may be the way out.
            (Err(StoreError::Damaged { .. }), Some(kept)) => Ok((kept, None)),
            (newest, kept) => {
                let Some(newest) = newest? else { return Err(self.without_state(volume).await) };
                Self::check_not_deleted(&newest)?;
                Ok((kept.unwrap_or_else(|| newest.clone()), Some(newest)))
            }
        }
    }

    /// The error of a volume without a manifest: one request.
    pub async fn without_state(&self, volume: VolumeId) -> VolumeError {
        match self.store.is_buried(volume).await {
            Ok(true) => VolumeError::Deleted { volume },
            Ok(false) => VolumeError::NoSuchVolume { volume },
            Err(error) => error.into(),
        }
    }

    /// Makes sure that garbage collection leaves `packs`, which are listed by an object of `volume` that is in the store already. One
    /// listing and one request for each pack, unless there are no packs. A host asks for the packs of one object at a time.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when a pack is gone, [`VolumeError::MayGo`] when a pack may go.
    pub async fn will_stay(&self, volume: VolumeId, packs: Vec<PackRef>) -> Result<(), VolumeError> {
        if packs.is_empty() {
            return Ok(());
        }
        let _turn = self.stay_questions.lock().await;
        match self.store.will_stay(packs).await? {
            Stay::Stays => Ok(()),
            Stay::Gone => Err(VolumeError::Gone { volume }),
            Stay::Unsure(record) => Err(VolumeError::MayGo { volume, record: record.to_string() }),
        }
    }

    /// The manifest kept by a snapshot of `volume`, even if the volume is deleted. Of several snapshots with this name the one
    /// with the latest state counts: the others are of earlier tries, which failed and arrived late.
    pub async fn snapshot(&self, volume: VolumeId, name: &StoreName) -> Result<Manifest, VolumeError> {
        let mut latest: Option<Manifest> = None;
        for key in self.keys_of_snapshot(volume, name).await? {
            match self.store.snapshot(volume, &key).await {
                Ok(found) => {
                    latest =
                        latest.into_iter().chain([found.manifest]).max_by_key(|manifest| manifest.number);
                }
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            }
        }
        latest.ok_or_else(|| VolumeError::NoSuchSnapshot { name: name.clone() })
    }

    /// The last parts of the keys of snapshots with `name`, the oldest first.
    pub async fn keys_of_snapshot(
        &self,
        volume: VolumeId,
        name: &StoreName,
    ) -> Result<Vec<StoreName>, VolumeError> {
        let keys = self.snapshot_keys(volume).await?.into_iter().map(|info| info.name);
        Ok(keys.filter(|key| key.without_unique() == *name).collect())
    }

    /// The last parts of the keys of all snapshots with their dates, the oldest first.
    pub async fn snapshot_keys(&self, volume: VolumeId) -> Result<Vec<SnapshotInfo>, VolumeError> {
        let listing = self.store.list(Folder::Snapshots(volume), None).await?;
        let info = |object: ObjectInfo| match object.key {
            Key::Snapshot(_, name) => {
                Some(SnapshotInfo { name, created_unix_millis: object.created_unix_millis })
            }
            _ => None,
        };
        let mut found: Vec<_> = listing.into_iter().filter_map(info).collect();
        found.sort_by_key(|info| info.created_unix_millis);
        Ok(found)
    }

    /// The manifest after `newest` with which this host takes the volume.
    pub fn next_of(&self, newest: Manifest) -> Manifest {
        Manifest {
            number: next_number(newest.number),
            epoch: next_number(newest.epoch),
            writer: self.options.writer,
            created_unix_millis: self.options.clock.unix_millis(),
            sections: self.holding(&newest.sections),
            ..newest
        }
    }

    /// `sections` with this host as the holder, and without uploaded packs: a manifest that continues an upload lists the
    /// uploaded packs itself.
    pub fn holding(&self, sections: &Sections) -> Sections {
        Sections { uploaded: Vec::new(), ..self.held_as(sections, false) }
    }

    pub fn held_as(&self, sections: &Sections, released: bool) -> Sections {
        let holder = Some(Holder { host: self.options.host.clone(), released });
        Sections { holder, ..sections.clone() }
    }

    /// An error when the volume of `newest` is deleted.
    pub fn check_not_deleted(newest: &Manifest) -> Result<(), VolumeError> {
        let volume = newest.volume;
        if newest.sections.deleted.is_some() { Err(VolumeError::Deleted { volume }) } else { Ok(()) }
    }

    /// The other host that has the volume of `newest`, whose bytes have this `hash`, and has not released the volume. A copy of this
    /// host is another host, though it writes under the same name: what it wrote is not noted here.
    pub fn other_holder(&self, newest: &Manifest, hash: &ManifestHash) -> Option<Box<Held>> {
        let holder = newest.sections.holder.as_ref();
        let is_noted = || self.options.notes.intended(newest.volume, newest.number, hash) == Some(true);
        // Earlier versions named no holder, and took no notes.
        let is_own = newest.writer == self.options.writer && (holder.is_none() || is_noted());
        (!is_own && !newest.is_released()).then(|| {
            Box::new(Held {
                name: newest.name.clone(),
                host: holder.map(|holder| holder.host.clone()),
                heard_unix_millis: newest.created_unix_millis,
            })
        })
    }

    /// The error of a `name` that `volume` has: two requests, to name the host.
    pub async fn name_taken(&self, name: &StoreName, volume: VolumeId) -> VolumeError {
        let newest = self.store.latest_manifest_hashed(volume, None).await.ok().flatten();
        let held = newest.and_then(|(newest, hash)| self.other_holder(&newest, &hash));
        VolumeError::NameTaken { name: name.clone(), held }
    }

    /// Gives `name` to a volume without a manifest, or with the first manifest only: the caller tells a creation whose answer was
    /// lost from the creation of somebody else.
    pub async fn claim(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let volume = VolumeId::random(self.store.entropy());
            let created_unix_millis = self.options.clock.unix_millis();
            let record = NameRecord { volume, created_unix_millis };
            if self.store.create_name(name, &record).await? == Created::Created {
                return Ok(volume);
            }
            // The name was in use a moment ago, and may be free now.
            let Some(record) = self.store.name(name).await? else { continue };
            let Some(newest) = self.store.latest_manifest(record.volume, None).await? else {
                if self.store.is_buried(record.volume).await? {
                    self.remove_name(name, record.volume, false).await?;
                    continue;
                }
                return Ok(record.volume);
            };
            // The deletion of the volume stopped before the name was removed.
            if newest.sections.deleted.is_some() {
                self.remove_name(name, record.volume, false).await?;
            } else if newest.number == 1 {
                return Ok(record.volume);
            } else {
                return Err(self.name_taken(name, record.volume).await);
            }
        }
        Err(VolumeError::NameTaken { name: name.clone(), held: None })
    }

    /// Creates the object below `deleted/` that leads from the name of a volume to the volume. Called before the volume is
    /// deleted.
    pub async fn note_deleted(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        let record = NameRecord { volume, created_unix_millis: self.options.clock.unix_millis() };
        let _: Created = self.store.mark(&Key::Deleted(name.clone(), volume), record).await?;
        Ok(())
    }

    /// Removes `name` if `name` means `volume`; `unless_back`, only if the volume is not had back under the same name meanwhile. One after
    /// the other within this process. Not atomic between hosts: when two hosts remove the name at once, and another host gives the name
    /// to another volume between the two removals, that volume loses the name.
    pub async fn remove_name(
        &self,
        name: &StoreName,
        volume: VolumeId,
        unless_back: bool,
    ) -> Result<(), StoreError> {
        let lock = self.store.name_removal(name);
        let _lock = lock.lock().await;
        if self.store.name(name).await?.is_none_or(|record| record.volume != volume) {
            return Ok(());
        }
        let newest = if unless_back { self.store.latest_manifest(volume, None).await? } else { None };
        if newest.is_none_or(|newest| newest.sections.deleted.is_some()) {
            self.store.delete(&[Key::Name(name.clone())]).await?;
        }
        Ok(())
    }
}

impl Manifest {
    /// Whether the deletion of the volume can no longer be undone.
    pub(in crate::store) fn is_gone(&self) -> bool {
        self.sections.deleted == Some(Deletion::ForGood)
    }

    /// Whether the host that had the volume has released the volume, and has nothing left on the way to the store.
    pub(in crate::store) fn is_released(&self) -> bool {
        self.sections.holder.as_ref().is_some_and(|holder| holder.released)
    }
}

impl EncodedManifest {
    pub fn of(manifest: Manifest) -> Result<Self, VolumeError> {
        let key = Key::Manifest(manifest.volume, manifest.number);
        let bytes = manifest.encode().map_err(|source| unfit(&key, source))?.into();
        Ok(Self { manifest: Arc::new(manifest), bytes })
    }

    fn hash(&self) -> ManifestHash {
        *blake3::hash(&self.bytes).as_bytes()
    }
}
