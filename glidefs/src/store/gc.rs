//! Garbage collection: what no volume and no snapshot uses goes, after a time.
//!
//! Owns what is in use, since when something is not, and its removal. Does not own when a run is made. Invariant: a pack is
//! removed only when two runs, at least the grace period apart, and every run between them, saw that nothing used it.
//!
//! **In use** is what the newest manifest of a volume lists, unless the volume was deleted, and what a snapshot lists. A pack that
//! is on its way into a manifest looks unused; its writer brings the manifest within [`super::volume::UPLOAD_TIME_MAX`] or gives up,
//! and the grace period is longer. For the same reason everything that a manifest lists which is younger than the grace
//! period stays as well: the pack went out of use after that manifest, and was seen to be only then.
//!
//! What a run saw is in an object below `gc/`. The next run reads all of them, creates its own, and removes those it read; two
//! runs at once leave two. All times are those of the store's clock, as it dates objects.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::client::{Created, Store};
use super::clock::StoreClock;
use super::error::StoreError;
use super::format::{CANDIDATES_MAX, Candidate, Candidates, PackRef};
use super::ids::{PackId, StoreName, VolumeId};
use super::key::{Folder, Key};
use super::volume::GRACE_MIN;

/// Volumes that are looked at, and manifests that are read, at once.
const AT_ONCE: usize = 16;
/// How often the observations are read anew because another run removed one of them.
const ROUNDS_MAX: usize = 16;
/// Number of the manifest that a volume begins with.
const FIRST_MANIFEST: u64 = 1;
const OBSERVATION: &str = "candidates-";

/// How to collect.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// How long something stays that is not in use.
    pub grace: Duration,
    /// Change nothing, say what would go.
    pub dry_run: bool,
    /// Nothing else uses the store now. Only then the grace period may be shorter than [`GRACE_MIN`].
    pub alone: bool,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { grace: Duration::from_hours(24), dry_run: false, alone: false }
    }
}

/// What a run found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Volumes that are not deleted.
    pub volumes: u64,
    /// Packs in use.
    pub packs_in_use: u64,
    /// Their length, bytes.
    pub bytes_in_use: u64,
    /// Packs that are not in use, and wait for the end of the grace period.
    pub packs_waiting: u64,
    /// Their length, bytes.
    pub bytes_waiting: u64,
    /// Packs that are removed.
    pub packs_removed: u64,
    /// Their length, bytes.
    pub bytes_removed: u64,
    /// Other objects that are removed: old manifests, and what is left of deleted volumes.
    pub objects_removed: u64,
    /// Which objects would be removed. Only of a dry run.
    pub would_remove: Vec<Key>,
}

/// Why nothing more was collected.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// The store failed, or an object that says what is in use cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A flush or a fork under way could lose what it has uploaded.
    #[error(
        "a grace period of {} s is too short: daemons that use the store need {} s; stop all of them to collect sooner",
        grace.as_secs(),
        GRACE_MIN.as_secs()
    )]
    GraceTooShort {
        /// As it was asked for.
        grace: Duration,
    },
}

/// An object, for what garbage collection has to know of it.
#[derive(Clone, Copy, Debug)]
struct Found<T> {
    id: T,
    created_millis: u64,
    bytes: u64,
}

/// A volume as it was listed.
#[derive(Debug)]
struct Listed {
    id: VolumeId,
    deleted: Option<Found<()>>,
    /// By number.
    manifests: Vec<Found<u64>>,
    snapshots: Vec<Found<StoreName>>,
    packs: Vec<Found<PackId>>,
}

type ManifestId = (VolumeId, u64);
/// With its date: a name can be given again.
type SnapshotId = (VolumeId, StoreName, u64);

/// What was read of what is in use. Objects do not change, so they are read once.
#[derive(Debug, Default)]
struct InUse {
    packs: HashSet<PackId>,
    manifests: HashSet<ManifestId>,
    snapshots: HashSet<SnapshotId>,
}

/// Removes what has not been in use for the grace period. Any number of daemons may do so at once, beside all other use of the
/// store. `clock` is used by dry runs only, which must not ask the store for its time.
pub async fn collect(
    store: &Store,
    clock: &dyn StoreClock,
    options: &GcOptions,
) -> Result<GcReport, GcError> {
    let grace = options.grace;
    if grace < GRACE_MIN && !options.alone {
        return Err(GcError::GraceTooShort { grace });
    }
    let seen = Observations::read(store).await?;
    let mut in_use = InUse::default();
    let volumes = look(store, &mut in_use).await?;
    let mut report = GcReport {
        volumes: volumes.iter().filter(|volume| volume.deleted.is_none()).count() as u64,
        ..GcReport::default()
    };
    let mut unused: Vec<(Candidate, u64)> = Vec::new();
    for volume in &volumes {
        for pack in &volume.packs {
            if in_use.packs.contains(&pack.id) {
                report.packs_in_use += 1;
                report.bytes_in_use += pack.bytes;
            } else {
                let since_unix_millis = seen.unused_since(pack.id).unwrap_or(0);
                unused.push((Candidate { volume: volume.id, pack: pack.id, since_unix_millis }, pack.bytes));
            }
        }
    }
    let now_millis = if options.dry_run {
        clock.unix_millis()
    } else {
        let candidates = unused.iter().map(|(candidate, _)| *candidate).take(CANDIDATES_MAX).collect();
        seen.replace(store, &Candidates(candidates)).await?
    };
    let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let over = |millis: u64| millis.checked_add(grace_millis).is_some_and(|end| end <= now_millis);
    let due = |candidate: &Candidate| candidate.since_unix_millis > 0 && over(candidate.since_unix_millis);
    if !options.dry_run && unused.iter().any(|(candidate, _)| due(candidate)) {
        // Something may have moved from a volume that was not looked at yet to one that already was.
        look(store, &mut in_use).await?;
    }
    let mut keys = Vec::new();
    for (candidate, bytes) in unused {
        if in_use.packs.contains(&candidate.pack) {
            report.packs_in_use += 1;
            report.bytes_in_use += bytes;
        } else if due(&candidate) {
            report.packs_removed += 1;
            report.bytes_removed += bytes;
            keys.push(Key::Pack(candidate.volume, candidate.pack));
        } else {
            report.packs_waiting += 1;
            report.bytes_waiting += bytes;
        }
    }
    for volume in &volumes {
        let left = keys.len();
        superfluous(volume, &over, &mut keys);
        let deleted = volume.deleted.is_some_and(|deleted| over(deleted.created_millis));
        if deleted && !options.dry_run {
            keys.extend(name_left_behind(store, volume).await?);
        }
        report.objects_removed += (keys.len() - left) as u64;
    }
    if options.dry_run {
        report.would_remove = keys;
    } else {
        store.delete(&keys).await?;
    }
    Ok(report)
}

/// What no reader, writer or later run needs of `volume` besides its packs.
fn superfluous(volume: &Listed, over: &impl Fn(u64) -> bool, keys: &mut Vec<Key>) {
    let manifest = |manifest: &Found<u64>| Key::Manifest(volume.id, manifest.id);
    let Some(deleted) = volume.deleted else {
        let (_, older) = volume.manifests.split_last().unzip();
        // The first one stays: by its key everybody can ask whether the volume exists, without a listing.
        let older = older.unwrap_or_default().iter().filter(|found| found.id > FIRST_MANIFEST);
        return keys.extend(older.filter(|found| over(found.created_millis)).map(manifest));
    };
    if !over(deleted.created_millis) {
        return;
    }
    keys.extend(volume.manifests.iter().map(manifest));
    keys.extend(volume.snapshots.iter().map(|found| Key::Snapshot(volume.id, found.id.clone())));
    // Last, when a writer that did not hear of the deletion cannot bring anything any more.
    if volume.manifests.is_empty() && volume.snapshots.is_empty() && volume.packs.is_empty() {
        keys.push(Key::Tombstone(volume.id));
    }
}

/// The name of a deleted volume, if it still has it: the deletion was not finished.
async fn name_left_behind(store: &Store, volume: &Listed) -> Result<Option<Key>, StoreError> {
    let Some(newest) = volume.manifests.last() else { return Ok(None) };
    let name = match store.manifest(volume.id, newest.id).await {
        Ok(manifest) => manifest.name,
        // Whatever it is, it goes.
        Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let record = store.name(&name).await?;
    Ok(record.filter(|record| record.volume == volume.id).map(|_| Key::Name(name)))
}

/// Lists everything, and reads what says what is in use.
async fn look(store: &Store, in_use: &mut InUse) -> Result<Vec<Listed>, StoreError> {
    let ids = store.volumes().await?;
    let listing = stream::iter(ids).map(|id| list(store.clone(), id)).buffered(AT_ONCE);
    let volumes: Vec<Listed> = listing.try_collect().await?;
    let (mut manifests, mut snapshots) = (Vec::new(), Vec::new());
    for volume in volumes.iter().filter(|volume| volume.deleted.is_none()) {
        let newest = volume.manifests.last().map(|found| (volume.id, found.id));
        manifests.extend(newest.filter(|manifest| !in_use.manifests.contains(manifest)));
        let kept = volume.snapshots.iter().map(|found| (volume.id, found.id.clone(), found.created_millis));
        snapshots.extend(kept.filter(|snapshot| !in_use.snapshots.contains(snapshot)));
    }
    let reading = stream::iter(manifests).map(|manifest| listed_by(store.clone(), manifest));
    let mut reading = reading.buffer_unordered(AT_ONCE);
    while let Some((manifest, packs)) = reading.try_next().await? {
        in_use.manifests.insert(manifest);
        in_use.packs.extend(packs.iter().map(|pack| pack.pack));
    }
    let reading = stream::iter(snapshots).map(|snapshot| kept_by(store.clone(), snapshot));
    let mut reading = reading.buffer_unordered(AT_ONCE);
    while let Some(read) = reading.try_next().await? {
        // Otherwise it was deleted a moment ago.
        if let Some((snapshot, packs)) = read {
            in_use.snapshots.insert(snapshot);
            in_use.packs.extend(packs.iter().map(|pack| pack.pack));
        }
    }
    Ok(volumes)
}

async fn list(store: Store, id: VolumeId) -> Result<Listed, StoreError> {
    let mut volume =
        Listed { id, deleted: None, manifests: Vec::new(), snapshots: Vec::new(), packs: Vec::new() };
    for object in store.list(Folder::Volume(id), None).await?.objects {
        let (created_millis, bytes) = (object.created_unix_millis, object.bytes);
        match object.key {
            Key::Tombstone(_) => volume.deleted = Some(Found { id: (), created_millis, bytes }),
            Key::Manifest(_, id) => volume.manifests.push(Found { id, created_millis, bytes }),
            Key::Snapshot(_, id) => volume.snapshots.push(Found { id, created_millis, bytes }),
            Key::Pack(_, id) => volume.packs.push(Found { id, created_millis, bytes }),
            Key::Marker | Key::Name(_) | Key::Gc(_) => {}
        }
    }
    Ok(volume)
}

/// The packs of the newest manifest of a volume, which was `newest` a moment ago.
async fn listed_by(store: Store, newest: ManifestId) -> Result<(ManifestId, Vec<PackRef>), StoreError> {
    let (volume, number) = newest;
    match store.manifest(volume, number).await {
        Ok(manifest) => Ok((newest, manifest.packs)),
        Err(error) if error.is_missing() => match store.latest_manifest(volume, Some(number)).await? {
            Some(newer) => Ok(((volume, newer.number), newer.packs)),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The packs of a snapshot; `None` when it is not there.
async fn kept_by(
    store: Store,
    snapshot: SnapshotId,
) -> Result<Option<(SnapshotId, Vec<PackRef>)>, StoreError> {
    match store.snapshot(snapshot.0, &snapshot.1).await {
        Ok(found) => Ok(Some((snapshot, found.manifest.packs))),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What earlier runs saw.
#[derive(Debug, Default)]
struct Observations {
    keys: Vec<Key>,
    /// When each run was, and what it saw unused since when.
    runs: Vec<(u64, HashMap<PackId, u64>)>,
}

impl Observations {
    async fn read(store: &Store) -> Result<Self, StoreError> {
        let mut round = 0;
        'anew: loop {
            round += 1;
            let mut seen = Self::default();
            for object in store.list(Folder::Gc, None).await?.objects {
                if !matches!(&object.key, Key::Gc(name) if name.as_str().starts_with(OBSERVATION)) {
                    continue;
                }
                let created = object.created_unix_millis;
                match store.candidates(&object.key).await {
                    Ok(candidates) => seen.runs.push((created, since(&candidates, created))),
                    // As if everything had been in use then.
                    Err(StoreError::Damaged { .. }) => seen.runs.push((created, HashMap::new())),
                    // Another run has read it and says the same by now.
                    Err(error) if error.is_missing() && round < ROUNDS_MAX => continue 'anew,
                    Err(error) => return Err(error),
                }
                seen.keys.push(object.key);
            }
            return Ok(seen);
        }
    }

    /// Since when every run has seen that nothing used `pack`; `None`: not until now.
    fn unused_since(&self, pack: PackId) -> Option<u64> {
        let since = self.runs.iter().filter_map(|(_, unused)| unused.get(&pack).copied()).max()?;
        let used = |(at, unused): &(u64, HashMap<PackId, u64>)| *at >= since && !unused.contains_key(&pack);
        (!self.runs.iter().any(used)).then_some(since)
    }

    /// Puts `candidates` in the place of all that was read. The time by the clock of the store.
    async fn replace(&self, store: &Store, candidates: &Candidates) -> Result<u64, StoreError> {
        // As random as the identity of a pack.
        let name = format!("{OBSERVATION}{}", PackId::random(store.entropy()));
        let Ok(name) = name.parse::<StoreName>() else { unreachable!("letters, digits and a dash") };
        let key = Key::Gc(name);
        let _: Created = store.create(&key, &[candidates.encode().into()]).await?;
        let now_millis = store.head(&key).await?.created_unix_millis;
        let mut superseded = self.keys.clone();
        if candidates.0.is_empty() {
            superseded.push(key);
        }
        store.delete(&superseded).await?;
        Ok(now_millis)
    }
}

fn since(candidates: &Candidates, created_millis: u64) -> HashMap<PackId, u64> {
    let since = |candidate: &Candidate| match candidate.since_unix_millis {
        0 => created_millis,
        since => since,
    };
    candidates.0.iter().map(|candidate| (candidate.pack, since(candidate))).collect()
}

#[cfg(test)]
mod tests;
