//! Garbage collection: removes objects unused by every volume and snapshot for a time.
//!
//! Owns which objects are in use, since when others are not, and their removal. Does not own when a run is made. Invariant: a
//! pack is removed only when two runs, at least the grace period apart, and every run between the two, saw the pack unused, and
//! no manifest created after the first of these runs could be the first to name the pack.
//!
//! A pack is **in use** when the newest manifest of a live volume names the pack, as content or as uploaded, or when a snapshot
//! of a live volume lists the pack.
//!
//! A pack looks unused before the first manifest names the pack. The writer creates such a manifest within
//! [`super::volume::UPLOAD_TIME_MAX`], or gives up. The manifest may arrive days later, after a host stood still, and must find
//! the packs. So an unused pack also stays until the newest manifest of its volume was created so long after the pack that any
//! such late manifest would need the same number or a lower one, or until the host has released the volume. Packs that a failed upload or a
//! merge left in the last hours before a volume came to rest therefore stay until the next manifest of that volume.
//!
//! The grace period of a pack begins with the first run that sees the pack unused when no manifest yet to come may name the pack.
//! A run that sees the pack before the first manifest with the pack begins nothing: between that run and the next, the pack may
//! have come into use and gone out of use, and a fork may have read the manifest and rely on a whole grace period.
//!
//! The deletion of a volume can be undone until the grace period is over. The packs of the volume stay until garbage collection
//! itself creates the manifest of a final deletion; their own grace period begins with the next run. This manifest is the next one of the
//! volume: an undoing at the same time comes before the manifest, or finds the manifest.
//!
//! Between the last look at a pack and the removal, a run may stand still for any time. So the pack is in a removal record of the run
//! before the last look, and until the pack is gone: see `removals`. Whoever lists packs that may have been unused reads the records.
//!
//! An unreadable manifest or snapshot keeps every pack that may be listed there, and no other.
//!
//! Each run leaves an observation below `gc/` with the packs seen unused, without those that a manifest may still name. The next run
//! reads all observations, creates another one, and removes those that were read; two runs at once leave two.
//! All times are those of the store's clock, which dates objects.

mod deletions;
mod in_use;
mod leftovers;
mod observations;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::deletions::{carry_on_all, restore_names};
use self::in_use::{AT_ONCE, FIRST_MANIFEST, InUse, ListedObject, ListedVolume, missing};
use self::leftovers::{can_go, leftovers};
use self::observations::Observations;
pub use self::observations::observations;
use super::client::Store;
use super::clock::StoreClock;
use super::error::StoreError;
use super::format::{Candidate, Candidates};
use super::ids::{PackId, VolumeId};
use super::key::Key;
use super::removals::Removal;
use super::volume::GRACE_MIN;

/// Time between the scan of a run and the date of the observation of the run that counts for sure. A use which began that long before the
/// observation may have been missed by the scan.
const SCAN_MILLIS: u64 = 4 * 3600 * 1000;
/// Most packs in a removal record.
const RECORD_MAX: usize = if cfg!(test) { 16 } else { 65_536 };
/// Most removal records of a run, which removes no more packs than these name: whoever has to know whether packs stay reads all of
/// them, up to 84 MB. A host that has its caches written back each 30 s makes 33 packs a second, 1.4 million in 12 hours.
const RECORDS_MAX: usize = 32;
/// Age at which a removal record counts as one of a run that has ended: no run takes that long.
const STALE_MILLIS: u64 = 24 * 3600 * 1000;

/// Options of a garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// How long an unused object stays.
    pub grace: Duration,
    /// Change nothing; report which objects would be removed.
    pub dry_run: bool,
    /// Nothing else uses the store now. Only then may the grace period be shorter than [`GRACE_MIN`].
    pub alone: bool,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { grace: Duration::from_hours(24), dry_run: false, alone: false }
    }
}

/// The result of garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GcAnswer)]
pub struct GcReport {
    /// Whether this was a dry run, without changes.
    pub dry_run: bool,
    /// Number of volumes that are not deleted.
    pub volumes: u64,
    /// Number of packs in use.
    pub packs_in_use: u64,
    /// Length of the packs in use, bytes.
    pub bytes_in_use: u64,
    /// Number of packs not in use that wait for the end of the grace period, or for the next manifest of the volume.
    pub packs_waiting: u64,
    /// Length of the waiting packs, bytes.
    pub bytes_waiting: u64,
    /// Number of packs that were removed, or would be in a dry run.
    pub packs_removed: u64,
    /// Length of the removed packs, bytes.
    pub bytes_removed: u64,
    /// Number of other objects that were removed, or would be in a dry run.
    pub objects_removed: u64,
    /// Keys of manifests and snapshots that cannot be read: every pack such an object may list is kept. Keys of removal records that
    /// cannot be read. Keys of packs in use that are missing, up to 100.
    pub damaged: Vec<String>,
    /// Number of packs in use that may be missing, and that were not looked for because 100 are known to be missing.
    pub not_looked_for: u64,
    /// Keys of removal records older than a day with packs in use. Forks and snapshots that need these packs wait until the record is
    /// deleted.
    pub stale_records: Vec<String>,
    /// Keys of the objects to remove. Filled by a dry run only.
    pub would_remove: Vec<String>,
    /// Whether a later run has something to do even if nothing changes: packs and manifests whose grace period goes on, and deleted
    /// volumes of which no volume or snapshot uses a pack. Packs that wait for the next manifest of their volume do not count, since
    /// such a manifest is a change.
    #[serde(skip)]
    pub is_unfinished: bool,
}

impl GcReport {
    fn count_in_use(&mut self, pack: &ListedObject<PackId>) {
        self.packs_in_use += 1;
        self.bytes_in_use += pack.bytes;
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// A request to the store failed, or an object was written by another version, and packs in use are unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The grace period is shorter than an upload or a fork under way may take, so the run could remove new packs.
    #[error(
        "a grace period of {} s is too short: an upload or a fork under way may take {} s; give at least that",
        grace.as_secs(),
        GRACE_MIN.as_secs()
    )]
    GraceTooShort {
        /// The grace period asked for.
        grace: Duration,
    },
}

/// Removes objects unused for the grace period. Any number of daemons may collect at once, beside all other use of the store.
/// Only a dry run uses `clock`: a dry run must not write, and so cannot learn the store's time.
pub async fn collect(
    store: &Store,
    clock: &dyn StoreClock,
    options: &GcOptions,
) -> Result<GcReport, GcError> {
    let mut removed = GcReport::default();
    loop {
        let (mut report, has_more) = collect_once(store, clock, options).await?;
        let is_last = !has_more || report.packs_removed == 0;
        report.packs_removed += removed.packs_removed;
        report.bytes_removed += removed.bytes_removed;
        report.objects_removed += removed.objects_removed;
        if is_last {
            return Ok(report);
        }
        removed = report;
    }
}

/// As [`collect`], of no more packs than [`RECORDS_MAX`] records have; and whether more are due.
async fn collect_once(
    store: &Store,
    clock: &dyn StoreClock,
    options: &GcOptions,
) -> Result<(GcReport, bool), GcError> {
    let grace = options.grace;
    if grace < GRACE_MIN && !options.alone {
        return Err(GcError::GraceTooShort { grace });
    }
    let seen = Observations::read(store).await?;
    let others = store.removals().await?;
    let mut in_use = InUse::default();
    let volumes = in_use.scan(store).await?;
    let live = volumes.iter().filter(|volume| volume.is_live()).count() as u64;
    let mut report = GcReport { dry_run: options.dry_run, volumes: live, ..GcReport::default() };
    let mut unused = unused_packs(&volumes, &in_use, &seen, options.alone, &mut report);
    begin_anew(store, &volumes, &mut unused).await?;
    let now_millis = if options.dry_run {
        clock.unix_millis()
    } else {
        Observations::create(store, unused.iter().filter_map(Unused::candidate).collect()).await?
    };
    let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let deadline = Deadline { now_millis, grace_millis };
    // Observations of earlier versions may have packs that a manifest yet to come could name first. So only a manifest older than
    // the grace period proves that no such manifest is to come, with no older date on a higher number.
    let passed = |volume: &ListedVolume| (volume.id, volume.passed_until(|at| deadline.is_over(at)));
    let passed_until: HashMap<_, _> = volumes.iter().map(passed).collect();
    // Whether the pack may be removed now, as far as times tell.
    let is_due = |unused: &Unused| {
        let until = passed_until.get(&unused.volume);
        let is_passed = until.is_some_and(|until| unused.pack.created_millis < *until);
        (options.alone || is_passed) && unused.since().is_some_and(|since| deadline.is_over(since))
    };
    let due = unused.iter().filter(|unused| is_due(unused)).filter_map(Unused::candidate);
    let removals = if options.dry_run { Vec::new() } else { record(store, due.collect()).await? };
    if !removals.is_empty() {
        // During the first scan, a use may have moved from a volume not yet scanned to one that was scanned already.
        in_use.scan(store).await?;
    }
    let may_go = |pack: PackId| options.dry_run || removals.iter().any(|removal| removal.has(pack));
    let mut keys = Vec::new();
    let mut removed = HashSet::new();
    let mut has_more = false;
    report.is_unfinished = volumes.iter().any(|volume| can_go(volume, &in_use, deadline));
    for unused in unused {
        let pack = unused.pack;
        if in_use.uses(&pack) {
            report.count_in_use(&pack);
        } else if is_due(&unused) && !in_use.held.contains(&pack.id) && may_go(pack.id) {
            removed.insert(pack.id);
            report.packs_removed += 1;
            report.bytes_removed += pack.bytes;
            keys.push(Key::Pack(unused.volume, pack.id));
        } else {
            report.is_unfinished |= unused.since_unix_millis.is_some();
            has_more |= is_due(&unused) && !in_use.held.contains(&pack.id);
            report.packs_waiting += 1;
            report.bytes_waiting += pack.bytes;
        }
    }
    if !options.dry_run {
        carry_on_all(store, &volumes, deadline, &mut report).await?;
        restore_names(store, &in_use.names, deadline).await?;
    }
    keys.extend(leftovers(store, &volumes, deadline, &mut report).await?);
    missing(store, &volumes, &in_use, &mut report).await?;
    let is_stale = |other: &&Removal| {
        let age_millis = other.created_unix_millis.map(|created| now_millis.saturating_sub(created));
        let is_old = age_millis.is_some_and(|age| age > STALE_MILLIS);
        is_old && !other.is_unreadable() && in_use.packs.iter().any(|pack| other.has(*pack))
    };
    report.stale_records = others.iter().filter(is_stale).map(|other| other.key.to_string()).collect();
    report.damaged.extend(in_use.damaged.iter().map(Key::to_string));
    let unreadable = others.iter().filter(|other| other.is_unreadable());
    report.damaged.extend(unreadable.map(|other| other.key.to_string()));
    report.damaged.sort_unstable();
    report.damaged.dedup();
    store.stats().gc_damaged.store(report.damaged.len() as u64, Relaxed);
    if options.dry_run {
        report.would_remove = keys.iter().map(Key::to_string).collect();
    } else {
        store.delete(&keys).await?;
        let left = |pack: &ListedObject<PackId>| (!removed.contains(&pack.id)).then_some(pack.id);
        let left: HashSet<_> = volumes.iter().flat_map(|volume| &volume.packs).filter_map(left).collect();
        // The deletions of a run that has ended without an answer may still arrive. So its record stays as long as the packs do.
        let over = others.into_iter().filter(|other| other.is_over(|pack| left.contains(&pack)));
        let over: Vec<_> = removals.into_iter().chain(over).map(|removal| removal.key).collect();
        store.delete(&over).await?;
        // A host that finds the observations gone knows that a run has ended well, so they go last.
        store.delete(&seen.keys).await?;
    }
    Ok((report, has_more))
}

/// Creates the records of `packs`. Packs without a record stay for the next run.
async fn record(store: &Store, packs: Vec<Candidate>) -> Result<Vec<Removal>, StoreError> {
    let mut records = Vec::new();
    for packs in packs.chunks(RECORD_MAX).take(RECORDS_MAX) {
        records.push(store.create_removal(Candidates(packs.to_vec())).await?);
    }
    Ok(records)
}

/// A pack used by nothing that the scan has seen.
struct Unused {
    volume: VolumeId,
    pack: ListedObject<PackId>,
    /// Since when earlier runs have seen the pack unused: 0 if no run has. `None`: the pack may come into use.
    since_unix_millis: Option<u64>,
}

impl Unused {
    /// Since when earlier runs have seen the pack unused, if any run has.
    fn since(&self) -> Option<u64> {
        self.since_unix_millis.filter(|since| *since > 0)
    }

    fn candidate(&self) -> Option<Candidate> {
        let since_unix_millis = self.since_unix_millis?;
        Some(Candidate { volume: self.volume, pack: self.pack.id, since_unix_millis })
    }
}

/// Begins the grace periods of those packs of `unused` anew that a fork has used since the last run, though no run has seen the use: a
/// fork of the fork may rely on a whole grace period. The first manifest of the fork lists the packs, and stays as long as the fork.
async fn begin_anew(
    store: &Store,
    volumes: &[ListedVolume],
    unused: &mut [Unused],
) -> Result<(), StoreError> {
    let sinces = unused.iter().filter_map(Unused::since);
    let Some(oldest) = sinces.min() else { return Ok(()) };
    let began = |volume: &ListedVolume| {
        let created_millis = volume.created_millis(FIRST_MANIFEST)?;
        let is_young = created_millis.saturating_add(SCAN_MILLIS) >= oldest;
        // If the first manifest is the newest, the packs are in use.
        let is_followed = volume.manifests.len() > 1 && volume.is_kept();
        (is_young && is_followed).then_some((volume.id, created_millis))
    };
    let forks: Vec<_> = volumes.iter().filter_map(began).collect();
    let reading = stream::iter(forks).map(|(volume, created_millis)| {
        let store = store.clone();
        async move {
            let packs = match store.manifest(volume, FIRST_MANIFEST).await {
                Ok(first) => Some(first.packs),
                Err(error) if error.is_missing() => Some(Vec::new()),
                // The manifest may have listed any pack.
                Err(StoreError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            };
            Ok((created_millis, packs))
        }
    });
    let mut reading = reading.buffer_unordered(AT_ONCE);
    let mut used: HashMap<PackId, u64> = HashMap::new();
    let mut all_used = 0;
    while let Some((created_millis, packs)) = reading.try_next().await? {
        match packs {
            Some(packs) => {
                for pack in packs {
                    let last = used.entry(pack.pack).or_default();
                    *last = created_millis.max(*last);
                }
            }
            None => all_used = created_millis.max(all_used),
        }
    }
    for unused in unused {
        let last = used.get(&unused.pack.id).copied().unwrap_or_default().max(all_used);
        if unused.since().is_some_and(|since| last.saturating_add(SCAN_MILLIS) >= since) {
            unused.since_unix_millis = Some(0);
        }
    }
    Ok(())
}

/// The packs of `volumes` that nothing uses. Packs in use are counted in `report`. `alone`: as in [`GcOptions`].
fn unused_packs(
    volumes: &[ListedVolume],
    in_use: &InUse,
    seen: &Observations,
    alone: bool,
    report: &mut GcReport,
) -> Vec<Unused> {
    let mut unused = Vec::new();
    for volume in volumes {
        // A manifest of any age counts: the newest one does not name the pack, and the number of a late one is not higher than the
        // newest number.
        let passed_until = volume.passed_until(|_| true);
        for pack in &volume.packs {
            if in_use.uses(pack) {
                report.count_in_use(pack);
                continue;
            }
            let is_passed = alone || pack.created_millis < passed_until;
            let since = (is_passed && !in_use.held.contains(&pack.id))
                .then(|| seen.unused_since(pack.id).unwrap_or(0));
            unused.push(Unused { volume: volume.id, pack: *pack, since_unix_millis: since });
        }
    }
    unused
}

/// The time of a run by the clock of the store, and the grace period.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    now_millis: u64,
    grace_millis: u64,
}

impl Deadline {
    /// Whether the grace period of an event at `millis` is over.
    fn is_over(self, millis: u64) -> bool {
        millis.checked_add(self.grace_millis).is_some_and(|end| end <= self.now_millis)
    }
}

#[cfg(test)]
mod tests;
