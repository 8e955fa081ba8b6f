//! A look at the whole store: what is there, and what of it is in use.
//!
//! Owns what keeps a pack. Does not own since when a pack is not in use, nor removal. Invariant: whatever may list a pack was
//! read, or everything that it may list counts as in use.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{Deletion, Manifest, PackRef};
use crate::store::ids::{PackId, StoreName, VolumeId};
use crate::store::key::{Folder, Key};
use crate::store::volume::UPLOAD_TIME_MAX;

/// Volumes that are looked at, and manifests that are read, at once.
pub(super) const AT_ONCE: usize = 16;
/// How long after a pack was dated its writer may choose the number of the first manifest that names the pack: the clocks of the
/// writer and of the store may go differently.
const NAMED_WITHIN_MILLIS: u64 = (UPLOAD_TIME_MAX.as_secs() + 3600) * 1000;
/// Number of the manifest that a volume begins with. It stays as long as the volume.
pub(super) const FIRST_MANIFEST: u64 = 1;

/// An object, for what garbage collection has to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedObject<T> {
    pub id: T,
    pub created_millis: u64,
    pub bytes: u64,
}

/// What is to become of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is there for everybody; or nothing says yet that it is.
    #[default]
    Live,
    /// The same, and its writer has nothing on the way into the store.
    Released,
    /// It is deleted by manifest `number`, and can be had back.
    Deleted { number: u64 },
    /// It is deleted for good by manifest `number`.
    Gone { number: u64 },
    /// It was deleted by an earlier version.
    Tombstoned,
    /// What says which packs it needs cannot be read.
    Damaged,
}

/// A volume as it was listed.
#[derive(Debug)]
pub(super) struct ListedVolume {
    pub id: VolumeId,
    pub standing: Standing,
    pub tombstone: Option<ListedObject<()>>,
    /// By number.
    pub manifests: Vec<ListedObject<u64>>,
    pub snapshots: Vec<ListedObject<StoreName>>,
    pub packs: Vec<ListedObject<PackId>>,
}

impl ListedVolume {
    fn newest(&self) -> Option<ManifestId> {
        self.manifests.last().map(|found| (self.id, found.id))
    }

    /// When manifest `number` was created by the clock of the store. `None`: the listing did not show it yet.
    pub fn created_millis(&self, number: u64) -> Option<u64> {
        self.manifests.iter().find(|found| found.id == number).map(|found| found.created_millis)
    }

    /// Packs created before this time, by the clock of the store, are named for the first time by no manifest that is still to come.
    ///
    /// A manifest that names a new pack may be on its way for any time, after a host stood still, but its number was fixed within
    /// [`UPLOAD_TIME_MAX`] of the upload. Another manifest that was created later has that number, or a later one.
    pub fn passed_until(&self, is_over: impl Fn(u64) -> bool) -> u64 {
        let Some(newest) = self.manifests.last() else { return u64::MAX };
        // A writer that stood still before a manifest may need a moment after that.
        let over =
            self.manifests.iter().map(|found| found.created_millis).filter(|created| is_over(*created));
        let passed = over.max().unwrap_or_default().saturating_sub(NAMED_WITHIN_MILLIS);
        match self.standing {
            Standing::Gone { .. } | Standing::Tombstoned => u64::MAX,
            Standing::Released | Standing::Deleted { .. } => newest.created_millis.max(passed),
            Standing::Live | Standing::Damaged => passed,
        }
    }

    /// Whether the volume is there, or can be had back.
    pub fn is_kept(&self) -> bool {
        !matches!(self.standing, Standing::Gone { .. } | Standing::Tombstoned)
    }
}

type ManifestId = (VolumeId, u64);
/// With its date: a name can be given again.
type SnapshotId = (VolumeId, StoreName, u64);

/// What is in use. Objects do not change, so they are read once, by however many looks.
#[derive(Debug, Default)]
pub(super) struct InUse {
    packs: HashSet<PackId>,
    /// Packs of deleted volumes that can be had back. Not in use, and not to be removed.
    held: HashSet<PackId>,
    /// Every pack that was created until then counts as in use, by the clock of the store.
    all_until_millis: u64,
    standings: HashMap<ManifestId, Standing>,
    snapshots: HashSet<SnapshotId>,
    /// Objects that should say what is in use and cannot be read.
    pub damaged: HashSet<Key>,
}

impl InUse {
    /// Whether a volume that was not deleted, or a snapshot of one, uses `pack`.
    pub fn uses(&self, pack: &ListedObject<PackId>) -> bool {
        self.packs.contains(&pack.id) || pack.created_millis <= self.all_until_millis
    }

    /// Whether a deleted volume that can be had back would use `pack`.
    pub fn holds(&self, pack: PackId) -> bool {
        self.held.contains(&pack)
    }

    fn add(&mut self, standing: Standing, packs: impl IntoIterator<Item = PackId>) {
        match standing {
            Standing::Live | Standing::Released | Standing::Damaged => self.packs.extend(packs),
            Standing::Deleted { .. } => self.held.extend(packs),
            Standing::Gone { .. } | Standing::Tombstoned => {}
        }
    }

    /// Lists everything, and reads what says what is in use.
    pub async fn scan(&mut self, store: &Store) -> Result<Vec<ListedVolume>, StoreError> {
        let ids = store.volumes().await?;
        let listing = stream::iter(ids).map(|id| list(store.clone(), id)).buffered(AT_ONCE);
        let mut volumes: Vec<ListedVolume> = listing.try_collect().await?;
        let unread = |volume: &&ListedVolume| {
            volume.newest().is_some_and(|newest| !self.standings.contains_key(&newest))
        };
        let unread: Vec<_> = volumes
            .iter()
            .filter(unread)
            .filter_map(|volume| Some((volume.newest()?, volume.tombstone.is_some())))
            .collect();
        let reading = stream::iter(unread).map(|(newest, marked)| standing(store.clone(), newest, marked));
        let mut reading = reading.buffer_unordered(AT_ONCE);
        while let Some((newest, standing, packs)) = reading.try_next().await? {
            self.standings.insert(newest, standing);
            self.add(standing, packs);
            if standing == Standing::Damaged {
                self.damaged.insert(Key::Manifest(newest.0, newest.1));
            }
        }
        for volume in &mut volumes {
            volume.standing = match volume.newest() {
                Some(newest) => self.standings.get(&newest).copied().unwrap_or_default(),
                None if volume.tombstone.is_some() => Standing::Tombstoned,
                None => Standing::Live,
            };
        }
        self.read_snapshots(store, &mut volumes).await?;
        for volume in volumes.iter().filter(|volume| volume.standing == Standing::Damaged) {
            self.use_all_of(store, volume).await?;
        }
        Ok(volumes)
    }

    /// Reads the snapshots of volumes that are kept.
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
                        self.add(volume.standing, packs.iter().map(|pack| pack.pack));
                        self.snapshots.insert(snapshot);
                    }
                    None => {
                        volume.standing = Standing::Damaged;
                        self.damaged.insert(Key::Snapshot(snapshot.0, snapshot.1));
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts everything as in use that `volume` may list: all that is its own, and all that it had from the volume it was
    /// forked from, which is in its first manifest; later manifests and snapshots list no other packs of other volumes.
    async fn use_all_of(&mut self, store: &Store, volume: &ListedVolume) -> Result<(), StoreError> {
        self.packs.extend(volume.packs.iter().map(|pack| pack.id));
        match store.manifest(volume.id, FIRST_MANIFEST).await {
            Ok(first) => self.add(Standing::Damaged, first.packs.iter().map(|pack| pack.pack)),
            Err(error) if error.is_missing() => self.all_until_millis = u64::MAX,
            Err(StoreError::Damaged { .. }) => {
                // What the volume was forked from had its packs before.
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
        tombstone: None,
        manifests: Vec::new(),
        snapshots: Vec::new(),
        packs: Vec::new(),
    };
    for object in store.list(Folder::Volume(id), None).await?.objects {
        let (created_millis, bytes) = (object.created_unix_millis, object.bytes);
        match object.key {
            Key::Tombstone(_) => volume.tombstone = Some(ListedObject { id: (), created_millis, bytes }),
            Key::Manifest(_, id) => volume.manifests.push(ListedObject { id, created_millis, bytes }),
            Key::Snapshot(_, id) => volume.snapshots.push(ListedObject { id, created_millis, bytes }),
            Key::Pack(_, id) => volume.packs.push(ListedObject { id, created_millis, bytes }),
            Key::Marker | Key::Name(_) | Key::Deleted(..) | Key::Gc(_) => {}
        }
    }
    Ok(volume)
}

/// What the newest manifest of a volume says, which was `newest` a moment ago, and the packs that manifest keeps: those that are
/// listed, and those that are on their way into a later manifest. `marked`: the volume has the mark of an earlier version that
/// the volume is deleted.
async fn standing(
    store: Store,
    newest: ManifestId,
    marked: bool,
) -> Result<(ManifestId, Standing, Vec<PackId>), StoreError> {
    let manifest = match read_newest(&store, newest).await {
        Ok(manifest) => manifest,
        Err(StoreError::Damaged { .. }) => return Ok((newest, Standing::Damaged, Vec::new())),
        Err(error) => return Err(error),
    };
    let tombstone = if marked { store.tombstone(newest.0).await? } else { None };
    // The mark of a writer that another one has followed is void, and the newest manifest says who is the last one.
    let is_marked = tombstone.is_some_and(|tombstone| tombstone.writer == manifest.writer);
    let standing = match manifest.sections.deleted {
        _ if is_marked => Standing::Tombstoned,
        Some(Deletion::CanBeUndone) => Standing::Deleted { number: manifest.number },
        Some(Deletion::ForGood) => Standing::Gone { number: manifest.number },
        None if manifest.is_released() => Standing::Released,
        None => Standing::Live,
    };
    let listed = manifest.packs.iter().map(|pack| pack.pack);
    let packs = listed.chain(manifest.sections.uploaded.iter().copied()).collect();
    Ok((newest, standing, packs))
}

async fn read_newest(store: &Store, (volume, number): ManifestId) -> Result<Manifest, StoreError> {
    match store.manifest(volume, number).await {
        Err(error) if error.is_missing() => store.latest_manifest(volume, Some(number)).await?.ok_or(error),
        read => read,
    }
}

/// The packs of a snapshot: none when it is gone again, and `None` when it cannot be read.
async fn kept_by(
    store: Store,
    snapshot: SnapshotId,
) -> Result<(SnapshotId, Option<Vec<PackRef>>), StoreError> {
    match store.snapshot(snapshot.0, &snapshot.1).await {
        Ok(found) => Ok((snapshot, Some(found.manifest.packs))),
        Err(error) if error.is_missing() => Ok((snapshot, Some(Vec::new()))),
        Err(StoreError::Damaged { .. }) => Ok((snapshot, None)),
        Err(error) => Err(error),
    }
}
