//! A scan of the whole store: which objects exist, and which packs are in use.
//!
//! Owns which packs a volume keeps. Does not own since when a pack is unused, nor removal. Invariant: everything that may list a
//! pack was read, or every pack that may be listed counts as in use.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryFutureExt, TryStreamExt, stream};

use super::{Deadline, GcReport};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{Deletion, Manifest, PackRef};
use crate::store::ids::{PackId, StoreName, VolumeId};
use crate::store::key::{Folder, Key};
use crate::store::volume::UPLOAD_TIME_MAX;

/// Number of missing packs named by a run.
const MISSING_MAX: usize = 100;
/// Volumes listed, and manifests read, at once.
pub(super) const AT_ONCE: usize = 16;
/// Longest time from the date of a pack to the choice of the number of the first manifest with the pack: [`UPLOAD_TIME_MAX`], and
/// an hour for the difference between the clocks of the writer and of the store.
const NAMED_WITHIN_MILLIS: u64 = (UPLOAD_TIME_MAX.as_secs() + 3600) * 1000;
/// Number of a volume's first manifest, which stays as long as the volume.
pub(super) const FIRST_MANIFEST: u64 = 1;

/// An object of a listing, with date and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedObject<T> {
    pub id: T,
    pub created_millis: u64,
    pub bytes: u64,
}

/// State of a volume, which decides about the objects of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// The volume is not deleted, or no manifest says so yet.
    #[default]
    Live,
    /// The volume is not deleted, and its writer has released the volume with nothing left on the way to the store.
    Released,
    /// Manifest `number` deleted the volume. The deletion can be undone.
    Deleted { number: u64 },
    /// The deletion of the volume is final: the newest manifest or the grave says so.
    Gone,
    /// An earlier version deleted the volume, by an object of its own.
    Tombstoned,
    /// An unreadable manifest or tombstone hides whether the volume is deleted, and which packs the volume keeps.
    Damaged,
}

/// A volume as a listing shows the volume.
#[derive(Debug)]
pub(super) struct ListedVolume {
    pub id: VolumeId,
    pub standing: Standing,
    /// Whether an unreadable snapshot hides which packs the volume keeps.
    pub hides_packs: bool,
    /// When an earlier version marked the volume as deleted, by the clock of the store.
    pub tombstone_millis: Option<u64>,
    /// Manifests ascend by number.
    pub manifests: Vec<ListedObject<u64>>,
    pub snapshots: Vec<ListedObject<StoreName>>,
    /// Numbers with a fence. One made during the listing may be left out.
    pub fences: Vec<u64>,
    pub packs: Vec<ListedObject<PackId>>,
}

impl ListedVolume {
    /// The newest manifest; number 0 where there is none.
    fn newest(&self) -> ManifestId {
        (self.id, self.manifests.last().map_or(0, |found| found.id))
    }

    /// When manifest `number` was created by the clock of the store. `None`: the listing does not show the manifest.
    pub fn created_millis(&self, number: u64) -> Option<u64> {
        self.manifests.iter().find(|found| found.id == number).map(|found| found.created_millis)
    }

    /// A time by the clock of the store: no manifest yet to come is the first to name a pack created before. Heeds only manifests
    /// with dates that `counts` accepts.
    ///
    /// A manifest with a new pack may be under way for any time, after a host stood still. But the number of the manifest was
    /// fixed within [`UPLOAD_TIME_MAX`] of the upload, and is not higher than the newest number, if the newest manifest was created
    /// later. The date of any other manifest proves this only if all manifests with higher numbers are as young: a late manifest
    /// takes a number which garbage collection has freed, at a date that says nothing about higher numbers.
    pub fn passed_until(&self, counts: impl Fn(u64) -> bool) -> u64 {
        let Some(newest) = self.manifests.last() else { return u64::MAX };
        let mut lowest = u64::MAX;
        let mut lowest_dates = self.manifests.iter().rev().map(|found| {
            lowest = lowest.min(found.created_millis);
            lowest
        });
        let date = lowest_dates.find(|date| counts(*date)).unwrap_or_default();
        let passed = date.saturating_sub(NAMED_WITHIN_MILLIS);
        match self.standing {
            Standing::Gone | Standing::Tombstoned => u64::MAX,
            Standing::Released | Standing::Deleted { .. } => newest.created_millis.max(passed),
            Standing::Live | Standing::Damaged => passed,
        }
    }

    /// Whether the volume counts as one that is not deleted: a damaged one does.
    pub fn is_live(&self) -> bool {
        matches!(self.standing, Standing::Live | Standing::Released | Standing::Damaged)
    }

    /// Whether the volume is not deleted, or the deletion can be undone.
    pub fn is_kept(&self) -> bool {
        !matches!(self.standing, Standing::Gone | Standing::Tombstoned)
    }

    /// Whether the deletion cannot be undone any more.
    pub fn is_over(&self, deadline: Deadline) -> bool {
        match self.standing {
            Standing::Gone => true,
            Standing::Tombstoned => self.tombstone_millis.is_some_and(|marked| deadline.is_over(marked)),
            Standing::Live | Standing::Released | Standing::Deleted { .. } | Standing::Damaged => false,
        }
    }
}

type ManifestId = (VolumeId, u64);
/// With the date of the snapshot: a name can be given again.
type SnapshotId = (VolumeId, StoreName, u64);

/// Packs in use. An object never changes, so each is read once, over any number of scans.
#[derive(Debug, Default)]
pub(super) struct InUse {
    pub packs: HashSet<PackId>,
    /// The packs among these that are content of a volume or a snapshot, with the volumes that made the packs.
    content: HashMap<PackId, VolumeId>,
    /// Packs of deleted volumes whose deletion can be undone: not in use, and not to be removed.
    pub held: HashSet<PackId>,
    /// Every pack created up to this time, by the clock of the store, counts as in use.
    all_until_millis: u64,
    standings: HashMap<ManifestId, Standing>,
    snapshots: HashSet<SnapshotId>,
    /// The names of live volumes, by their newest manifests.
    pub names: HashMap<VolumeId, StoreName>,
    /// Keys of unreadable objects.
    pub damaged: HashSet<Key>,
}

impl InUse {
    /// Whether a live volume, or a snapshot of a live volume, uses `pack`.
    pub fn uses(&self, pack: &ListedObject<PackId>) -> bool {
        self.packs.contains(&pack.id) || pack.created_millis <= self.all_until_millis
    }

    fn add(&mut self, standing: Standing, content: &[PackRef], uploaded: &[PackId]) {
        let packs = content.iter().map(|pack| pack.pack).chain(uploaded.iter().copied());
        match standing {
            Standing::Live | Standing::Released | Standing::Damaged => {
                self.packs.extend(packs);
                self.content.extend(content.iter().map(|pack| (pack.pack, pack.volume)));
            }
            Standing::Deleted { .. } => self.held.extend(packs),
            Standing::Gone | Standing::Tombstoned => {}
        }
    }

    /// Lists all volumes, and reads newest manifests and snapshots for the packs in use.
    ///
    /// A fork that comes between the listing of volumes and the reading of its origin may take a use over from the origin, which gives
    /// up the packs before the reading. So the volumes are listed again until none is new: a fork whose origin had the packs after
    /// the last listing comes after the reading of the origin, so the use was seen there. A fork need not ask for anything, and a fork
    /// by an earlier version is safe as well. The loop ends: a round takes as long as the few volumes created during the round before.
    pub async fn scan(&mut self, store: &Store) -> Result<Vec<ListedVolume>, StoreError> {
        let mut volumes: Vec<ListedVolume> = Vec::new();
        loop {
            let known: HashSet<VolumeId> = volumes.iter().map(|volume| volume.id).collect();
            let mut ids = store.volumes().await?;
            ids.retain(|id| !known.contains(id));
            if ids.is_empty() {
                volumes.sort_unstable_by_key(|volume| volume.id);
                return Ok(volumes);
            }
            volumes.extend(self.scan_only(store, ids).await?);
        }
    }

    /// As [`Self::scan`], of the volumes `ids`.
    async fn scan_only(
        &mut self,
        store: &Store,
        ids: Vec<VolumeId>,
    ) -> Result<Vec<ListedVolume>, StoreError> {
        let listing = stream::iter(ids).map(|id| list(store.clone(), id)).buffered(AT_ONCE);
        let mut volumes: Vec<ListedVolume> = listing.try_collect().await?;
        let unread = volumes.iter().filter(|volume| !self.standings.contains_key(&volume.newest()));
        let unread: Vec<_> =
            unread.map(|volume| (volume.newest(), volume.tombstone_millis.is_some())).collect();
        let reading = stream::iter(unread).map(|(newest, marked)| {
            let store = store.clone();
            async move { (newest, standing(&store, newest, marked).await) }
        });
        let mut reading = reading.buffer_unordered(AT_ONCE);
        while let Some((newest, read)) = reading.next().await {
            let standing = match read {
                Ok((standing, manifest)) => {
                    if let Some(manifest) = manifest {
                        self.add(standing, &manifest.packs, &manifest.sections.uploaded);
                        if matches!(standing, Standing::Live | Standing::Released) {
                            self.names.insert(newest.0, manifest.name);
                        }
                    }
                    standing
                }
                Err((key, StoreError::Damaged { .. } | StoreError::Archived { .. })) => {
                    self.damaged.insert(key);
                    Standing::Damaged
                }
                Err((_, error)) => return Err(error),
            };
            self.standings.insert(newest, standing);
        }
        for volume in &mut volumes {
            volume.standing = self.standings.get(&volume.newest()).copied().unwrap_or_default();
        }
        self.read_snapshots(store, &mut volumes).await?;
        let hides = |volume: &&ListedVolume| volume.standing == Standing::Damaged || volume.hides_packs;
        for volume in volumes.iter().filter(hides) {
            self.use_all_of(store, volume).await?;
        }
        Ok(volumes)
    }

    /// Reads the snapshots of volumes kept.
    async fn read_snapshots(
        &mut self,
        store: &Store,
        volumes: &mut [ListedVolume],
    ) -> Result<(), StoreError> {
        for volume in volumes.iter_mut().filter(|volume| volume.is_kept()) {
            let ids =
                volume.snapshots.iter().map(|found| (volume.id, found.id.clone(), found.created_millis));
            let unread: Vec<_> = ids.filter(|id| !self.snapshots.contains(id)).collect();
            let reading = stream::iter(unread).map(|snapshot| kept_by(store.clone(), snapshot));
            let mut reading = reading.buffer_unordered(AT_ONCE);
            while let Some((snapshot, packs)) = reading.try_next().await? {
                match packs {
                    Some(packs) => {
                        self.add(volume.standing, &packs, &[]);
                        self.snapshots.insert(snapshot);
                    }
                    None => {
                        volume.hides_packs = true;
                        self.damaged.insert(Key::Snapshot(snapshot.0, snapshot.1));
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts every pack that `volume` may list as in use: all packs of its own, and all packs of its origin. Packs of the origin
    /// are in the first manifest; later manifests and snapshots list no other packs of other volumes.
    async fn use_all_of(&mut self, store: &Store, volume: &ListedVolume) -> Result<(), StoreError> {
        self.packs.extend(volume.packs.iter().map(|pack| pack.id));
        match store.manifest(volume.id, FIRST_MANIFEST).await {
            // Which of these are content of the newest state is not known.
            Ok(first) => self.packs.extend(first.packs.iter().map(|pack| pack.pack)),
            Err(error) if error.is_missing() => self.all_until_millis = u64::MAX,
            Err(StoreError::Damaged { .. } | StoreError::Archived { .. }) => {
                // Packs of the origin are older than the first manifest of the fork.
                let begun_millis = volume.created_millis(FIRST_MANIFEST).unwrap_or(u64::MAX);
                self.all_until_millis = self.all_until_millis.max(begun_millis);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

async fn list(store: Store, id: VolumeId) -> Result<ListedVolume, StoreError> {
    let mut volume = ListedVolume {
        id,
        standing: Standing::Live,
        hides_packs: false,
        tombstone_millis: None,
        manifests: Vec::new(),
        snapshots: Vec::new(),
        fences: Vec::new(),
        packs: Vec::new(),
    };
    for object in store.list(Folder::Volume(id), None).await? {
        let (created_millis, bytes) = (object.created_unix_millis, object.bytes);
        match object.key {
            Key::Tombstone(_) => volume.tombstone_millis = Some(created_millis),
            Key::Manifest(_, id) => volume.manifests.push(ListedObject { id, created_millis, bytes }),
            Key::Snapshot(_, id) => volume.snapshots.push(ListedObject { id, created_millis, bytes }),
            Key::Pack(_, id) => volume.packs.push(ListedObject { id, created_millis, bytes }),
            Key::Fence(_, number) => volume.fences.push(number),
            Key::Marker | Key::Name(_) | Key::Deleted(..) | Key::Grave(_) | Key::Gc(_) => {}
        }
    }
    Ok(volume)
}

/// Reads the newest manifest of a volume, which was `newest` a moment ago: its standing, and the manifest if there is one; or the
/// error of a request, and the key of its object. `marked`: an earlier version marked the volume as deleted.
async fn standing(
    store: &Store,
    (volume, number): ManifestId,
    marked: bool,
) -> Result<(Standing, Option<Manifest>), (Key, StoreError)> {
    let is_buried = || store.is_buried(volume).map_err(move |error| (Key::Grave(volume), error));
    // Any objects may have arrived since the end of the volume, so none of them proves that it is there.
    if is_buried().await? {
        return Ok((Standing::Gone, None));
    }
    if number == 0 {
        return Ok((if marked { Standing::Tombstoned } else { Standing::Live }, None));
    }
    let manifest = match store.manifest_or_newer(volume, number).await {
        Ok((manifest, _)) => manifest,
        // Another run has removed the last manifest since the listing.
        Err(error) if error.is_missing() && is_buried().await? => return Ok((Standing::Gone, None)),
        Err(error) => return Err((Key::Manifest(volume, number), error)),
    };
    // The newest manifest names the last writer.
    let is_marked = store.is_marked_deleted(volume, manifest.writer);
    let is_marked = marked && is_marked.await.map_err(|error| (Key::Tombstone(volume), error))?;
    let standing = match manifest.sections.deleted {
        _ if is_marked => Standing::Tombstoned,
        Some(Deletion::CanBeUndone) => Standing::Deleted { number: manifest.number },
        Some(Deletion::ForGood) => Standing::Gone,
        None if manifest.is_released() => Standing::Released,
        None => Standing::Live,
    };
    Ok((standing, Some(manifest)))
}

/// Packs of a snapshot: none when the snapshot is gone again, `None` when the snapshot cannot be read.
async fn kept_by(
    store: Store,
    snapshot: SnapshotId,
) -> Result<(SnapshotId, Option<Vec<PackRef>>), StoreError> {
    match store.snapshot(snapshot.0, &snapshot.1).await {
        Ok(found) => Ok((snapshot, Some(found.manifest.packs))),
        Err(error) if error.is_missing() => Ok((snapshot, Some(Vec::new()))),
        Err(StoreError::Damaged { .. } | StoreError::Archived { .. }) => Ok((snapshot, None)),
        Err(error) => Err(error),
    }
}

/// Reports packs that `in_use` has as content, and that are not in the store, up to [`MISSING_MAX`]; and how many packs were not looked
/// for then. `volumes`: an earlier listing.
pub(super) async fn missing(
    store: &Store,
    volumes: &[ListedVolume],
    in_use: &InUse,
    report: &mut GcReport,
) -> Result<(), StoreError> {
    let listed: HashSet<_> = volumes.iter().flat_map(|volume| &volume.packs).map(|pack| pack.id).collect();
    // The pack, or the volume of the pack, may be younger than the listing.
    let unlisted = in_use.content.iter().filter(|(pack, _)| !listed.contains(*pack));
    let keys: Vec<_> = unlisted.map(|(pack, volume)| Key::Pack(*volume, *pack)).collect();
    report.not_looked_for = keys.len() as u64;
    let looks = stream::iter(keys).map(|key| {
        let store = store.clone();
        async move {
            match store.head(&key).await {
                Ok(_) => Ok(None),
                Err(error) if error.is_missing() => Ok(Some(key)),
                Err(error) => Err(error),
            }
        }
    });
    let mut looks = looks.buffer_unordered(AT_ONCE);
    let mut missing = Vec::new();
    while missing.len() < MISSING_MAX
        && let Some(found) = looks.try_next().await?
    {
        report.not_looked_for = report.not_looked_for.saturating_sub(1);
        missing.extend(found);
    }
    report.damaged.extend(missing.iter().map(Key::to_string));
    Ok(())
}
