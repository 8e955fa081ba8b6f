//! Garbage collection: what no volume and no snapshot uses goes, after a time.
//!
//! Owns what is in use, since when something is not, and its removal. Does not own when a run is made. Invariant: a pack is
//! removed only when two runs, at least the grace period apart, and every run between them, saw that nothing used it.
//!
//! **In use** is what the newest manifest of a volume names, as content or as uploaded, unless the volume was deleted, and what its
//! snapshots list. A pack that no manifest names yet looks unused; its writer sends one within [`super::volume::UPLOAD_TIME_MAX`] or
//! gives up. That manifest may arrive days later, when a host was paused, and must find its packs: a pack stays until another
//! manifest was created so long after the pack that it has the number of any such manifest, or a later one, or until the host
//! has released the volume. So what an upload that failed, or merging, has left of the last hours before a volume came to rest stays
//! until the next manifest of that volume. Everything that a manifest lists which is younger than the grace period stays as well:
//! the pack went out of use after that manifest, and was seen to be only then.
//!
//! A volume that was deleted can be had back until the grace period is over: its packs count as unused since its deletion, and stay
//! until garbage collection itself creates a manifest that says that the deletion is for good. That manifest is the next one of
//! the volume, so who has the volume back at the same time comes before it or finds it.
//!
//! A manifest or snapshot that cannot be read keeps what it may list, and nothing else.
//!
//! What a run saw is in an object below `gc/`. The next run reads all of them, creates its own, and removes those it read; two
//! runs at once leave two. All times are those of the store's clock, as it dates objects.

mod in_use;
mod observations;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use self::in_use::{AT_ONCE, FIRST_MANIFEST, InUse, ListedObject, ListedVolume, Standing};
use self::observations::Observations;
use super::client::{Created, Store};
use super::clock::StoreClock;
use super::error::StoreError;
use super::format::{CANDIDATES_MAX, Candidate, Candidates, Deletion, Manifest, Sections};
use super::ids::{PackId, VolumeId};
use super::key::{Folder, Key};
use super::volume::GRACE_MIN;

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
    /// Packs that are not in use, and wait for the end of the grace period, or for the next manifest of their volume.
    pub packs_waiting: u64,
    /// Their length, bytes.
    pub bytes_waiting: u64,
    /// Packs that are removed.
    pub packs_removed: u64,
    /// Their length, bytes.
    pub bytes_removed: u64,
    /// Other objects that are removed: old manifests, and what is left of deleted volumes.
    pub objects_removed: u64,
    /// Manifests and snapshots that cannot be read: what they may list is kept.
    pub damaged: Vec<Key>,
    /// Which objects would be removed. Only of a dry run.
    pub would_remove: Vec<Key>,
}

/// Why nothing more was collected.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// The store failed, or an object that says what is in use was written by another version.
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

/// A time by the clock of the store, and how long before it something must have ended to be over.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    now_millis: u64,
    grace_millis: u64,
}

impl Deadline {
    /// Whether the grace period of what began at `millis` is over.
    fn is_over(self, millis: u64) -> bool {
        millis.checked_add(self.grace_millis).is_some_and(|end| end <= self.now_millis)
    }
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
    let volumes = in_use.scan(store).await?;
    let live = |volume: &&ListedVolume| {
        matches!(volume.standing, Standing::Live | Standing::Released | Standing::Damaged)
    };
    let mut report = GcReport { volumes: volumes.iter().filter(live).count() as u64, ..GcReport::default() };
    let mut unused = Vec::new();
    for volume in &volumes {
        for pack in &volume.packs {
            if in_use.uses(pack) {
                report.packs_in_use += 1;
                report.bytes_in_use += pack.bytes;
            } else {
                let since_unix_millis = seen.unused_since(pack.id).unwrap_or(0);
                let candidate = Candidate { volume: volume.id, pack: pack.id, since_unix_millis };
                unused.push((candidate, *pack));
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
    let deadline = Deadline { now_millis, grace_millis };
    let passed_until: HashMap<VolumeId, u64> =
        volumes.iter().map(|volume| (volume.id, volume.passed_until(|at| deadline.is_over(at)))).collect();
    let due = |candidate: &Candidate, pack: &ListedObject<PackId>| {
        let is_passed = passed_until.get(&candidate.volume).is_some_and(|until| pack.created_millis < *until);
        (options.alone || is_passed)
            && candidate.since_unix_millis > 0
            && deadline.is_over(candidate.since_unix_millis)
    };
    if !options.dry_run && unused.iter().any(|(candidate, pack)| due(candidate, pack)) {
        // Something may have moved from a volume that was not looked at yet to one that already was.
        in_use.scan(store).await?;
    }
    let mut keys = Vec::new();
    for (candidate, pack) in unused {
        if in_use.uses(&pack) {
            report.packs_in_use += 1;
            report.bytes_in_use += pack.bytes;
        } else if due(&candidate, &pack) && !in_use.holds(pack.id) {
            report.packs_removed += 1;
            report.bytes_removed += pack.bytes;
            keys.push(Key::Pack(candidate.volume, candidate.pack));
        } else {
            report.packs_waiting += 1;
            report.bytes_waiting += pack.bytes;
        }
    }
    let packs = keys.len();
    if !options.dry_run {
        let endings: Vec<_> = volumes.iter().map(|volume| carry_on(store, volume, deadline)).collect();
        let names: Vec<_> = stream::iter(endings).buffered(AT_ONCE).try_collect().await?;
        report.objects_removed = names.iter().sum();
    }
    for volume in &volumes {
        superfluous(volume, deadline, &mut keys);
    }
    keys.extend(ways_to_nowhere(store, &volumes, deadline).await?);
    report.objects_removed += (keys.len() - packs) as u64;
    report.damaged = in_use.damaged.into_iter().collect();
    report.damaged.sort_unstable();
    store.stats().gc_damaged.store(report.damaged.len() as u64, Relaxed);
    if options.dry_run {
        report.would_remove = keys;
    } else {
        store.delete(&keys).await?;
    }
    Ok(report)
}

/// What no reader, writer or later run needs of `volume` besides its packs.
fn superfluous(volume: &ListedVolume, deadline: Deadline, keys: &mut Vec<Key>) {
    let key = |number: u64| Key::Manifest(volume.id, number);
    let numbers = || volume.manifests.iter().map(|found| found.id);
    let snapshots = || volume.snapshots.iter().map(|found| Key::Snapshot(volume.id, found.id.clone()));
    let is_empty = volume.snapshots.is_empty() && volume.packs.is_empty();
    match volume.standing {
        Standing::Live | Standing::Released => {
            let (_, older) = volume.manifests.split_last().unzip();
            // The first one stays: by its key everybody can ask whether the volume exists, without a listing.
            let older = older.unwrap_or_default().iter().filter(|found| found.id > FIRST_MANIFEST);
            keys.extend(
                older.filter(|found| deadline.is_over(found.created_millis)).map(|found| key(found.id)),
            );
        }
        Standing::Deleted { .. } | Standing::Damaged => {}
        // The newest last, when a writer that did not hear of the deletion cannot bring anything any more.
        Standing::Gone { number } => {
            let older = numbers().filter(|found| *found != number);
            keys.extend(older.map(key).chain(snapshots()));
            let ended = volume.created_millis(number).is_some_and(|created| deadline.is_over(created));
            if ended && is_empty && volume.manifests.len() == 1 {
                keys.push(key(number));
            }
        }
        Standing::Tombstoned => {
            if !volume.tombstone.is_some_and(|tombstone| deadline.is_over(tombstone.created_millis)) {
                return;
            }
            keys.extend(numbers().map(key).chain(snapshots()));
            if volume.manifests.is_empty() && is_empty {
                keys.push(Key::Tombstone(volume.id));
            }
        }
    }
}

/// Takes the deletion of `volume` further, if there is one. Returns how many names were removed.
async fn carry_on(store: &Store, volume: &ListedVolume, deadline: Deadline) -> Result<u64, StoreError> {
    end(store, volume, deadline).await?;
    let Some(name) = name_left_behind(store, volume).await? else { return Ok(0) };
    // At once: the name may be given to another volume at any time.
    store.delete(&[name]).await?;
    Ok(1)
}

/// Makes the deletion of `volume` one for good, if its grace period is over.
async fn end(store: &Store, volume: &ListedVolume, deadline: Deadline) -> Result<(), StoreError> {
    let Standing::Deleted { number } = volume.standing else { return Ok(()) };
    if !volume.created_millis(number).is_some_and(|created| deadline.is_over(created)) {
        return Ok(());
    }
    let deleted = match store.manifest(volume.id, number).await {
        // The volume was had back a moment ago.
        Err(error) if error.is_missing() => return Ok(()),
        deleted => deleted?,
    };
    let last = Manifest {
        number: number.saturating_add(1),
        packs: Vec::new(),
        sections: Sections { deleted: Some(Deletion::ForGood), ..deleted.sections.clone() },
        ..deleted
    };
    // Where another manifest was faster, the volume is had back, or another run did the same.
    let _: Created = store.create_manifest(&last).await?;
    Ok(())
}

/// The name of a volume that is gone, if it still has it: the deletion was not finished, or its undoing was not.
async fn name_left_behind(store: &Store, volume: &ListedVolume) -> Result<Option<Key>, StoreError> {
    if volume.is_kept() {
        return Ok(None);
    }
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

/// The ways from names to volumes that are not deleted, or cannot be had back.
async fn ways_to_nowhere(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
) -> Result<Vec<Key>, StoreError> {
    let ways = store.list(Folder::Deleted, None).await?.objects;
    let standings: HashMap<_, _> = volumes.iter().map(|volume| (volume.id, volume.standing)).collect();
    let leads_nowhere = |object: &super::ObjectInfo| match &object.key {
        Key::Deleted(_, volume) => match standings.get(volume) {
            Some(Standing::Deleted { .. } | Standing::Damaged) => false,
            // A way is made before the deletion, which may be under way, and the volume may be younger than the look at what is there.
            Some(Standing::Live | Standing::Released) | None => deadline.is_over(object.created_unix_millis),
            Some(Standing::Gone { .. } | Standing::Tombstoned) => true,
        },
        _ => false,
    };
    Ok(ways.into_iter().filter(leads_nowhere).map(|object| object.key).collect())
}

#[cfg(test)]
mod tests;
