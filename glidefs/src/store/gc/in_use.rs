//! A scan of the whole store: which objects exist, and which packs are in use.
//!
//! Owns which packs a volume keeps. Does not own since when a pack is unused, nor removal. Invariant: everything that may list a
//! pack was read, or every pack that may be listed counts as in use.

use std::collections::{HashMap, HashSet};

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryFutureExt, TryStreamExt, stream};

use super::{Deadline, GcReport};
use crate::store::client::{ObjectInfo, Store};
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
    /// An unreadable manifest hides whether the volume is deleted, and which packs the volume keeps.
    Damaged,
}

/// What a scan keeps of a volume: as much of a volume of many objects as of one of few.
#[derive(Debug)]
pub(super) struct ListedVolume {
    pub id: VolumeId,
    pub standing: Standing,
    /// The newest manifest.
    pub newest: Option<ListedObject<u64>>,
    /// When the first manifest was created, by the clock of the store, if there are later ones.
    pub followed_millis: Option<u64>,
    /// Whether there are manifests between the first and the newest one.
    pub has_between: bool,
    /// When the manifest that deleted the volume was created, by the clock of the store.
    deleted_millis: Option<u64>,
}

impl ListedVolume {
    fn of(listing: &Listing, standing: Standing) -> Self {
        let followed_millis = listing.created_millis(FIRST_MANIFEST).filter(|_| listing.manifests.len() > 1);
        let deleted_millis = match standing {
            Standing::Deleted { number } => listing.created_millis(number),
            _ => None,
        };
        let newest = listing.manifests.last().copied();
        let newest_number = newest.map_or(0, |newest| newest.id);
        let is_between = |found: &ListedObject<u64>| (FIRST_MANIFEST + 1..newest_number).contains(&found.id);
        let has_between = listing.manifests.iter().any(is_between);
        Self { id: listing.id, standing, newest, followed_millis, has_between, deleted_millis }
    }

    /// A time by the clock of the store: no manifest yet to come is the first to name a pack created before. `begun_millis`: when the run
    /// began, before the scan.
    ///
    /// A manifest with a new pack may be under way for any time, after a host stood still. But the number of the manifest was
    /// fixed within [`UPLOAD_TIME_MAX`] of the upload, and is not higher than the newest number, if the newest manifest was created
    /// later. The date of any other manifest proves nothing: a late manifest takes a number which garbage collection has freed.
    pub fn passed_until(&self, begun_millis: u64) -> u64 {
        let newest = self.newest.map(|newest| newest.created_millis);
        let passed = newest.unwrap_or(begun_millis).saturating_sub(NAMED_WITHIN_MILLIS);
        match self.standing {
            Standing::Gone => u64::MAX,
            Standing::Released | Standing::Deleted { .. } => newest.unwrap_or(passed),
            Standing::Live | Standing::Damaged => passed,
        }
    }

    /// Whether the volume counts as one that is not deleted: a damaged one does.
    pub fn is_live(&self) -> bool {
        matches!(self.standing, Standing::Live | Standing::Released | Standing::Damaged)
    }

    /// Whether the volume is not deleted, or the deletion can be undone.
    pub fn is_kept(&self) -> bool {
        self.standing != Standing::Gone
    }

    /// Whether the grace period of a deletion that can be undone is over.
    pub fn can_end(&self, deadline: Deadline) -> bool {
        self.deleted_millis.is_some_and(|deleted| deadline.is_over(deleted))
    }
}

/// All objects of a volume.
#[derive(Debug)]
struct Listing {
    id: VolumeId,
    /// Manifests ascend by number.
    manifests: Vec<ListedObject<u64>>,
    snapshots: Vec<ListedObject<StoreName>>,
    packs: Vec<PackId>,
}

impl Listing {
    /// The newest manifest; number 0 where there is none.
    fn newest(&self) -> ManifestId {
        (self.id, self.manifests.last().map_or(0, |found| found.id))
    }

    /// When manifest `number` was created by the clock of the store. `None`: the listing does not show the manifest.
    fn created_millis(&self, number: u64) -> Option<u64> {
        self.manifests.iter().find(|found| found.id == number).map(|found| found.created_millis)
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
            Standing::Gone => {}
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
            for ids in ids.chunks(AT_ONCE) {
                volumes.extend(self.scan_only(store, ids).await?);
            }
        }
    }

    /// As [`Self::scan`], of the volumes `ids`.
    async fn scan_only(&mut self, store: &Store, ids: &[VolumeId]) -> Result<Vec<ListedVolume>, StoreError> {
        let listing = ids.iter().map(|id| list(store, *id));
        let volumes: Vec<Listing> = try_join_all(listing).await?;
        let unread = volumes.iter().filter(|volume| !self.standings.contains_key(&volume.newest()));
        let unread: Vec<_> = unread.map(Listing::newest).collect();
        let reading = stream::iter(unread).map(|newest| {
            let store = store.clone();
            async move { (newest, standing(&store, newest).await) }
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
        let mut listed = Vec::with_capacity(volumes.len());
        for volume in &volumes {
            let standing = self.standings.get(&volume.newest()).copied().unwrap_or_default();
            let is_readable =
                standing == Standing::Gone || self.read_snapshots(store, volume, standing).await?;
            if standing == Standing::Damaged || !is_readable {
                self.use_all_of(store, volume).await?;
            }
            listed.push(ListedVolume::of(volume, standing));
        }
        Ok(listed)
    }

    /// Reads the snapshots of `volume`. False: an unreadable one hides which packs the volume keeps.
    async fn read_snapshots(
        &mut self,
        store: &Store,
        volume: &Listing,
        standing: Standing,
    ) -> Result<bool, StoreError> {
        let ids = volume.snapshots.iter().map(|found| (volume.id, found.id.clone(), found.created_millis));
        let unread: Vec<_> = ids.filter(|id| !self.snapshots.contains(id)).collect();
        let reading = stream::iter(unread).map(|snapshot| kept_by(store.clone(), snapshot));
        let mut reading = reading.buffer_unordered(AT_ONCE);
        let mut is_readable = true;
        while let Some((snapshot, packs)) = reading.try_next().await? {
            match packs {
                Some(packs) => {
                    self.add(standing, &packs, &[]);
                    self.snapshots.insert(snapshot);
                }
                None => {
                    is_readable = false;
                    self.damaged.insert(Key::Snapshot(snapshot.0, snapshot.1));
                }
            }
        }
        Ok(is_readable)
    }

    /// Counts every pack that `volume` may list as in use: all packs of its own, and all packs of its origin. Packs of the origin
    /// are in the first manifest; later manifests and snapshots list no other packs of other volumes.
    async fn use_all_of(&mut self, store: &Store, volume: &Listing) -> Result<(), StoreError> {
        self.packs.extend(&volume.packs);
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

async fn list(store: &Store, id: VolumeId) -> Result<Listing, StoreError> {
    let mut volume = Listing { id, manifests: Vec::new(), snapshots: Vec::new(), packs: Vec::new() };
    for object in store.list(Folder::Volume(id), None).await? {
        let (created_millis, bytes) = (object.created_unix_millis, object.bytes);
        match object.key {
            Key::Manifest(_, id) => volume.manifests.push(ListedObject { id, created_millis, bytes }),
            Key::Snapshot(_, id) => volume.snapshots.push(ListedObject { id, created_millis, bytes }),
            Key::Pack(_, id) => volume.packs.push(id),
            Key::Fence(..) | Key::Marker | Key::Name(_) | Key::Deleted(..) | Key::Grave(_) | Key::Gc(_) => {}
        }
    }
    Ok(volume)
}

/// The packs of volume `id`.
pub(super) async fn packs_of(store: &Store, id: VolumeId) -> Result<Vec<ListedObject<PackId>>, StoreError> {
    let objects = store.list(Folder::Packs(id), None).await?;
    let pack = |object: ObjectInfo| match object.key {
        Key::Pack(_, id) => {
            Some(ListedObject { id, created_millis: object.created_unix_millis, bytes: object.bytes })
        }
        _ => None,
    };
    Ok(objects.into_iter().filter_map(pack).collect())
}

/// Reads the newest manifest of a volume, which was `newest` a moment ago: its standing, and the manifest if there is one; or the
/// error of a request, and the key of its object.
async fn standing(
    store: &Store,
    (volume, number): ManifestId,
) -> Result<(Standing, Option<Manifest>), (Key, StoreError)> {
    let is_buried = || store.is_buried(volume).map_err(move |error| (Key::Grave(volume), error));
    // Any objects may have arrived since the end of the volume, so none of them proves that it is there.
    if is_buried().await? {
        return Ok((Standing::Gone, None));
    }
    if number == 0 {
        return Ok((Standing::Live, None));
    }
    let manifest = match store.manifest_or_newer(volume, number).await {
        Ok((manifest, _)) => manifest,
        // Another run has removed the last manifest since the listing.
        Err(error) if error.is_missing() && is_buried().await? => return Ok((Standing::Gone, None)),
        Err(error) => return Err((Key::Manifest(volume, number), error)),
    };
    let standing = match manifest.sections.deleted {
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
/// for then. `listed`: the packs that an earlier listing had.
pub(super) async fn missing(
    store: &Store,
    listed: &HashSet<PackId>,
    in_use: &InUse,
    report: &mut GcReport,
) -> Result<(), StoreError> {
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
