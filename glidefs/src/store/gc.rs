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
//!
//! A run keeps the packs in use in memory, and those that it removes, at most [`DUE_MAX`] at a time. Garbage it looks at one volume after
//! the other: there may be millions of packs of it.

mod deletions;
mod in_use;
mod leftovers;
mod observations;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::deletions::{carry_on_all, restore_names};
use self::in_use::{AT_ONCE, FIRST_MANIFEST, InUse, ListedObject, ListedVolume, missing, packs_of};
use self::leftovers::remove_leftovers;
pub use self::observations::observations;
use self::observations::{Observation, Observations, is_observation};
use super::client::Store;
use super::clock::StoreClock;
use super::error::StoreError;
use super::format::{Candidate, Candidates};
use super::ids::{PackId, VolumeId};
use super::key::Key;
use super::removals::Removal;
use super::volume::GRACE_MIN;

/// No run takes longer: a removal record of that age is of a run that has ended, and so is a part of an observation. A use that began no
/// longer before the end of an observation may have been missed by the scan before.
const RUN_MILLIS_MAX: u64 = 24 * 3600 * 1000;
/// Most packs in a removal record.
const RECORD_MAX: usize = if cfg!(test) { 16 } else { 65_536 };
/// Most packs that are removed at a time, in 16 removal records: whoever has to know whether packs stay reads all of them, up to 42 MB.
const DUE_MAX: usize = 16 * RECORD_MAX;
/// Packs that are deleted at once.
const DELETE_MAX: usize = 1000;
/// How often a run begins anew, because another run has ended meanwhile and has removed an observation.
const ROUNDS_MAX: usize = 16;

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

    fn count_waiting(&mut self, pack: &ListedObject<PackId>) {
        self.packs_waiting += 1;
        self.bytes_waiting += pack.bytes;
    }

    /// Removes the objects at `keys`, which are no packs; in a dry run they are only named.
    async fn remove(&mut self, store: &Store, keys: &[Key]) -> Result<(), StoreError> {
        self.objects_removed += keys.len() as u64;
        self.remove_or_name(store, keys).await
    }

    async fn remove_or_name(&mut self, store: &Store, keys: &[Key]) -> Result<(), StoreError> {
        if self.dry_run {
            self.would_remove.extend(keys.iter().map(Key::to_string));
            return Ok(());
        }
        store.delete(keys).await
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
    let grace = options.grace;
    if grace < GRACE_MIN && !options.alone {
        return Err(GcError::GraceTooShort { grace });
    }
    let mut removed = GcReport::default();
    let mut overtaken = 0;
    loop {
        let (mut report, has_more) = match collect_once(store, clock, options).await {
            Err(StoreError::Missing { key, .. }) if is_observation(&key) && overtaken < ROUNDS_MAX => {
                overtaken += 1;
                continue;
            }
            collected => collected?,
        };
        overtaken = 0;
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

/// As [`collect`], of no more than [`DUE_MAX`] packs; and whether more are due.
async fn collect_once(
    store: &Store,
    clock: &dyn StoreClock,
    options: &GcOptions,
) -> Result<(GcReport, bool), StoreError> {
    let seen = Observations::read(store).await?;
    let others = store.removals().await?;
    let observation = if options.dry_run { None } else { Some(Observation::begin(store).await?) };
    let now_millis = observation.as_ref().map_or_else(|| clock.unix_millis(), |begun| begun.begun_millis);
    let grace_millis = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
    let mut in_use = InUse::default();
    let volumes = in_use.scan(store).await?;
    let mut reused = Reused { from_millis: seen.oldest_millis, ..Reused::default() };
    reused.read(store, &volumes).await?;
    let live = volumes.iter().filter(|volume| volume.is_live()).count() as u64;
    let mut run = Run {
        store,
        deadline: Deadline { now_millis, grace_millis },
        alone: options.alone,
        reused,
        seen,
        observation,
        report: GcReport { dry_run: options.dry_run, volumes: live, ..GcReport::default() },
        due: Vec::new(),
        has_more: false,
        listed: HashSet::new(),
        of_others: HashSet::new(),
    };
    run.look(&volumes, &in_use, &others).await?;
    let records = run.record().await?;
    if !records.is_empty() {
        // Since the first scan, a use may have come and gone, or moved from a volume not yet scanned to one that was scanned already.
        let volumes = in_use.scan(store).await?;
        run.reused.read(store, &volumes).await?;
    }
    let due = run.still_due(&in_use);
    let Run { deadline, seen, mut report, has_more, listed, mut of_others, .. } = run;
    if !options.dry_run {
        carry_on_all(store, &volumes, deadline, &mut report).await?;
        restore_names(store, &in_use.names, deadline).await?;
    }
    missing(store, &listed, &in_use, &mut report).await?;
    report_others(&others, &in_use, now_millis, &mut report);
    report.damaged.extend(in_use.damaged.iter().map(Key::to_string));
    report.damaged.sort_unstable();
    report.damaged.dedup();
    store.stats().gc_damaged.store(report.damaged.len() as u64, Relaxed);
    for due in due.chunks(DELETE_MAX) {
        let keys: Vec<_> = due.iter().map(Due::key).collect();
        report.remove_or_name(store, &keys).await?;
        report.packs_removed += keys.len() as u64;
        report.bytes_removed += due.iter().map(|due| due.pack.bytes).sum::<u64>();
    }
    remove_leftovers(store, &volumes, deadline, &mut report).await?;
    if !options.dry_run {
        for due in &due {
            of_others.remove(&due.pack.id);
        }
        // The deletions of a run that has ended without an answer may still arrive. So its record stays as long as the packs do.
        let over = others.into_iter().filter(|other| other.is_over(|pack| of_others.contains(&pack)));
        let over: Vec<_> = records.into_iter().chain(over).map(|removal| removal.key).collect();
        store.delete(&over).await?;
        // A host that finds the observations gone knows that a run has ended well, so they go last.
        seen.remove(store, now_millis).await?;
    }
    Ok((report, has_more))
}

/// Reports those of `others`, the records of earlier runs, that cannot be read, and those that keep others from relying on packs in use.
fn report_others(others: &[Removal], in_use: &InUse, now_millis: u64, report: &mut GcReport) {
    let is_stale = |other: &&Removal| {
        let age_millis = other.created_unix_millis.map(|created| now_millis.saturating_sub(created));
        let is_old = age_millis.is_some_and(|age| age > RUN_MILLIS_MAX);
        is_old && !other.is_unreadable() && in_use.packs.iter().any(|pack| other.has(*pack))
    };
    report.stale_records = others.iter().filter(is_stale).map(|other| other.key.to_string()).collect();
    let unreadable = others.iter().filter(|other| other.is_unreadable());
    report.damaged.extend(unreadable.map(|other| other.key.to_string()));
}

/// A pack that may be removed, as far as times tell.
#[derive(Clone, Copy, Debug)]
struct Due {
    volume: VolumeId,
    pack: ListedObject<PackId>,
    since_unix_millis: u64,
}

impl Due {
    fn key(&self) -> Key {
        Key::Pack(self.volume, self.pack.id)
    }

    fn candidate(&self) -> Candidate {
        let Self { volume, pack, since_unix_millis } = *self;
        Candidate { volume, pack: pack.id, since_unix_millis }
    }
}

/// A run between its two scans.
struct Run<'a> {
    store: &'a Store,
    deadline: Deadline,
    /// As in [`GcOptions`].
    alone: bool,
    seen: Observations,
    reused: Reused,
    /// `None` in a dry run.
    observation: Option<Observation>,
    report: GcReport,
    /// No more than [`DUE_MAX`].
    due: Vec<Due>,
    /// Whether more packs are due.
    has_more: bool,
    /// Packs in use that are in the store.
    listed: HashSet<PackId>,
    /// Packs in the store that records of other runs name.
    of_others: HashSet<PackId>,
}

impl Run<'_> {
    /// Looks at all packs, writes the observation, and fills `due`. `others`: records of other runs.
    async fn look(
        &mut self,
        volumes: &[ListedVolume],
        in_use: &InUse,
        others: &[Removal],
    ) -> Result<(), StoreError> {
        let is_known = |pack: &PackId| others.iter().any(|other| !other.is_unreadable() && other.has(*pack));
        for volumes in volumes.chunks(AT_ONCE) {
            let listing = try_join_all(volumes.iter().map(|volume| packs_of(self.store, volume.id))).await?;
            for (volume, packs) in volumes.iter().zip(listing) {
                self.of_others.extend(packs.iter().map(|pack| pack.id).filter(is_known));
                let keeps_any = packs.iter().any(|pack| in_use.uses(pack));
                // A later run can remove more of a deleted volume, without any change by others.
                self.report.is_unfinished |= !volume.is_live() && (volume.is_kept() || !keeps_any);
                self.look_at(volume, &packs, in_use).await?;
            }
        }
        match self.observation.take() {
            Some(observation) => observation.end(self.store).await,
            None => Ok(()),
        }
    }

    async fn look_at(
        &mut self,
        volume: &ListedVolume,
        packs: &[ListedObject<PackId>],
        in_use: &InUse,
    ) -> Result<(), StoreError> {
        // A manifest of any age counts: the newest one does not name the pack, and the number of a late one is not higher than the
        // newest number.
        let passed_until = if self.alone { u64::MAX } else { volume.passed_until(self.deadline.now_millis) };
        let sinces = self.seen.of(self.store, volume.id).await?;
        for pack in packs {
            if in_use.uses(pack) {
                self.report.count_in_use(pack);
                self.listed.insert(pack.id);
                continue;
            }
            if pack.created_millis >= passed_until || in_use.held.contains(&pack.id) {
                // The pack may come into use.
                self.report.count_waiting(pack);
                continue;
            }
            let since = sinces.unused_since(pack.id).filter(|since| !self.reused.since(pack.id, *since));
            let due = Due { volume: volume.id, pack: *pack, since_unix_millis: since.unwrap_or(0) };
            if let Some(observation) = &mut self.observation {
                observation.add(self.store, due.candidate()).await?;
            }
            if !since.is_some_and(|since| self.deadline.is_over(since)) {
                self.report.count_waiting(pack);
                self.report.is_unfinished = true;
            } else if self.report.dry_run || self.due.len() < DUE_MAX {
                self.due.push(due);
            } else {
                self.report.count_waiting(pack);
                self.report.is_unfinished = true;
                self.has_more = true;
            }
        }
        Ok(())
    }

    /// Creates the records of the packs that are due.
    async fn record(&mut self) -> Result<Vec<Removal>, StoreError> {
        let mut records = Vec::new();
        for due in self.due.chunks(RECORD_MAX).filter(|_| !self.report.dry_run) {
            let packs = Candidates(due.iter().map(Due::candidate).collect());
            records.push(self.store.create_removal(packs).await?);
        }
        Ok(records)
    }

    /// What is due after a look at all uses since the records.
    fn still_due(&mut self, in_use: &InUse) -> Vec<Due> {
        let mut due = std::mem::take(&mut self.due);
        due.retain(|due| {
            if in_use.uses(&due.pack) {
                self.report.count_in_use(&due.pack);
                self.listed.insert(due.pack.id);
                return false;
            }
            let was_used = self.reused.since(due.pack.id, due.since_unix_millis);
            if was_used || in_use.held.contains(&due.pack.id) {
                self.report.count_waiting(&due.pack);
                self.report.is_unfinished = true;
                return false;
            }
            true
        });
        due
    }
}

/// Packs that a fork has used though no run may have seen the use: a fork of the fork may rely on a whole grace period. The first manifest
/// of the fork lists the packs, and stays as long as the fork.
#[derive(Debug, Default)]
struct Reused {
    /// From when on uses are known. `None`: no use is asked for.
    from_millis: Option<u64>,
    /// The forks that were read: an object never changes, so each is read once.
    known: HashSet<VolumeId>,
    /// For each pack the date of the last such manifest.
    last: HashMap<PackId, u64>,
    /// The date of the last such manifest that cannot be read: it may have listed any pack.
    all: u64,
}

impl Reused {
    /// Reads those forks among `volumes` that may have used packs.
    async fn read(&mut self, store: &Store, volumes: &[ListedVolume]) -> Result<(), StoreError> {
        let Some(from) = self.from_millis else { return Ok(()) };
        let began = |volume: &ListedVolume| {
            // If the first manifest is the newest, the packs are in use.
            let created_millis = volume.followed_millis.filter(|_| volume.is_kept())?;
            let is_young = created_millis.saturating_add(RUN_MILLIS_MAX) >= from;
            (is_young && !self.known.contains(&volume.id)).then_some((volume.id, created_millis))
        };
        let forks: Vec<_> = volumes.iter().filter_map(began).collect();
        self.known.extend(forks.iter().map(|(volume, _)| *volume));
        let reading = stream::iter(forks).map(|(volume, created_millis)| {
            let store = store.clone();
            async move {
                let packs = match store.manifest(volume, FIRST_MANIFEST).await {
                    Ok(first) => Some(first.packs),
                    Err(error) if error.is_missing() => Some(Vec::new()),
                    Err(StoreError::Damaged { .. }) => None,
                    Err(error) => return Err(error),
                };
                Ok((created_millis, packs))
            }
        });
        let mut reading = reading.buffer_unordered(AT_ONCE);
        while let Some((created_millis, packs)) = reading.try_next().await? {
            match packs {
                Some(packs) => {
                    for pack in packs {
                        let last = self.last.entry(pack.pack).or_default();
                        *last = created_millis.max(*last);
                    }
                }
                None => self.all = created_millis.max(self.all),
            }
        }
        Ok(())
    }

    /// Whether `pack` may have been used since `since`.
    fn since(&self, pack: PackId, since: u64) -> bool {
        let last = self.last.get(&pack).copied().unwrap_or_default().max(self.all);
        self.from_millis.is_none_or(|from| since < from) || last.saturating_add(RUN_MILLIS_MAX) >= since
    }
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
