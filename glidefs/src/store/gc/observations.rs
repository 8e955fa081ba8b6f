//! Observations of garbage collection: since when each pack has been unused.
//!
//! Owns the objects `gc/candidates-…`. Does not own which packs are in use. Invariant: a pack counts as unused since a run only if the
//! run and every later one that has ended its look saw the pack unused.
//!
//! An observation has parts, `gc/candidates-RUN-PART-PARTS`, written while the run looks at one volume after the other. The first one
//! is empty, and its date is the time at which the run began. PARTS is 0 but in the last part, which has their number. A run without
//! its last part has not ended its look, has removed nothing, and counts as one that was never made. A run with its last part and
//! without another one is being removed, and counts as one that saw every pack in use, as does a damaged part: grace periods begin anew.
//! An observation of an earlier version, with other names, counts as one of which a part is missing.
//!
//! Parts are in the order of volumes, and are read in this order: no more than one part of each run is in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::RUN_MILLIS_MAX;
use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{Candidate, Candidates};
use crate::store::ids::{PackId, StoreName, VolumeId};
use crate::store::key::{Folder, Key};

const OBSERVATION: &str = "candidates-";
/// Most packs in an object, 2.6 MB.
const PART_MAX: usize = if cfg!(test) { 16 } else { 65_536 };

/// A part of an observation, by its key.
struct Part<'a> {
    run: &'a str,
    number: usize,
    /// Number of the parts of the run; 0 in a part that is not the last one.
    parts: usize,
}

impl<'a> Part<'a> {
    /// `None`: `key` is no observation.
    fn of(key: &'a Key) -> Option<Self> {
        let Key::Gc(name) = key else { return None };
        let name = name.as_str().strip_prefix(OBSERVATION)?;
        let (run, part) = name.split_once('-').unwrap_or((name, ""));
        let numbers = part
            .split_once('-')
            .and_then(|(number, parts)| Some((number.parse().ok()?, parts.parse().ok()?)));
        // A name that this version does not make is of a run that is never whole.
        let is_made = |(number, parts): &(usize, usize)| *parts == 0 || parts == number;
        let (number, parts) = numbers.filter(is_made).unwrap_or((1, usize::MAX));
        Some(Self { run, number, parts })
    }
}

/// Whether `key` names a part of an observation.
pub(super) fn is_observation(key: &str) -> bool {
    key.contains(&format!("gc/{OBSERVATION}"))
}

fn is_last(key: &Key) -> bool {
    Part::of(key).is_some_and(|part| part.parts > 0)
}

/// An earlier run.
#[derive(Debug, Default)]
struct Run {
    /// By the clock of the store, milliseconds since 1970-01-01 UTC: when its last object was created.
    created_millis: u64,
    /// Number of its parts; 0 as long as the last one is not there.
    parts: usize,
    /// Numbers and keys of the parts that are there.
    keys: Vec<(usize, Key)>,
    /// Keys of the parts not read yet. Empty if the parts are not all there.
    left: VecDeque<Key>,
    /// What is left of the part that was read last.
    part: VecDeque<Candidate>,
}

impl Run {
    fn has_ended(&self) -> bool {
        self.parts > 0
    }

    fn begin_reading(&mut self) {
        let is_whole = self.keys.len() == self.parts;
        self.left = self.keys.iter().filter(|_| is_whole).map(|(_, key)| key.clone()).collect();
        self.part.clear();
    }

    fn into_keys(self) -> impl Iterator<Item = Key> {
        self.keys.into_iter().map(|(_, key)| key)
    }

    /// Reads the next part. False: there is none.
    async fn read_next(&mut self, store: &Store) -> Result<bool, StoreError> {
        let Some(key) = self.left.pop_front() else { return Ok(false) };
        match store.candidates(&key).await {
            Ok(Candidates(candidates)) => self.part = candidates.into(),
            Err(StoreError::Damaged { .. }) => self.part.clear(),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Since when the run says that packs of `volume` were unused. Volumes are asked for in ascending order.
    async fn of(&mut self, store: &Store, volume: VolumeId) -> Result<HashMap<PackId, u64>, StoreError> {
        let mut sinces = HashMap::new();
        loop {
            while let Some(candidate) = self.part.front()
                && candidate.volume <= volume
            {
                if candidate.volume == volume {
                    sinces.insert(candidate.pack, self.since(candidate));
                }
                self.part.pop_front();
            }
            if !self.part.is_empty() || !self.read_next(store).await? {
                return Ok(sinces);
            }
        }
    }

    fn since(&self, candidate: &Candidate) -> u64 {
        if candidate.since_unix_millis == 0 { self.created_millis } else { candidate.since_unix_millis }
    }
}

/// All runs with objects in the store, by name.
async fn runs(store: &Store) -> Result<BTreeMap<String, Run>, StoreError> {
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for object in store.list(Folder::Gc, None).await? {
        let Some(part) = Part::of(&object.key) else { continue };
        let run = runs.entry(part.run.to_owned()).or_default();
        run.created_millis = run.created_millis.max(object.created_unix_millis);
        run.parts = run.parts.max(part.parts);
        run.keys.push((part.number, object.key.clone()));
    }
    for run in runs.values_mut() {
        run.keys.sort_unstable_by_key(|(number, _)| *number);
    }
    Ok(runs)
}

/// The observations in the store of runs that have ended their look. A run that ends well makes those of before vanish.
pub async fn observations(store: &Store) -> Result<Vec<Key>, StoreError> {
    let ended = runs(store).await?.into_values().filter(Run::has_ended);
    Ok(ended.flat_map(Run::into_keys).collect())
}

/// Observations of all earlier runs. Reading fails with [`StoreError::Missing`] when another run has ended meanwhile, and has removed a part.
#[derive(Debug)]
pub(super) struct Observations {
    runs: Vec<Run>,
    /// The earliest time since when a pack has been unused. `None`: no run has seen an unused pack.
    pub oldest_millis: Option<u64>,
    /// Runs without their last part.
    others: Vec<Run>,
}

impl Observations {
    pub async fn read(store: &Store) -> Result<Self, StoreError> {
        let (mut ended, others): (Vec<_>, Vec<_>) =
            runs(store).await?.into_values().partition(Run::has_ended);
        let mut oldest_millis = None;
        for run in &mut ended {
            run.begin_reading();
            while run.read_next(store).await? {
                let oldest = run.part.iter().map(|candidate| run.since(candidate)).min();
                oldest_millis = oldest.into_iter().chain(oldest_millis).min();
            }
            run.begin_reading();
        }
        Ok(Self { runs: ended, oldest_millis, others })
    }

    /// What the runs have seen of `volume`. Volumes are asked for in ascending order.
    pub async fn of(&mut self, store: &Store, volume: VolumeId) -> Result<Sinces, StoreError> {
        let mut sinces = Vec::with_capacity(self.runs.len());
        for run in &mut self.runs {
            sinces.push((run.created_millis, run.of(store, volume).await?));
        }
        Ok(Sinces(sinces))
    }

    /// Removes all parts that a run which began at `begun_millis`, and has its own observation, has no more need of.
    pub async fn remove(self, store: &Store, begun_millis: u64) -> Result<(), StoreError> {
        // A run without its last part may be under way.
        let is_over = |run: &Run| begun_millis.saturating_sub(run.created_millis) > RUN_MILLIS_MAX;
        let others = self.others.into_iter().filter(is_over).flat_map(Run::into_keys);
        // Without their last parts, observations whose removal ends half-way do not count.
        let (last, mut rest): (Vec<_>, Vec<_>) =
            self.runs.into_iter().flat_map(Run::into_keys).partition(is_last);
        rest.extend(others);
        store.delete(&last).await?;
        store.delete(&rest).await
    }
}

/// For each earlier run: its time, and since when each unused pack of a volume had been unused.
pub(super) struct Sinces(Vec<(u64, HashMap<PackId, u64>)>);

impl Sinces {
    /// Since when every run has seen `pack` unused; `None` when a run saw the pack in use, or no run saw the pack unused.
    pub fn unused_since(&self, pack: PackId) -> Option<u64> {
        let since = self.0.iter().filter_map(|(_, unused)| unused.get(&pack).copied()).max()?;
        let used = |(at, unused): &(u64, HashMap<PackId, u64>)| *at >= since && !unused.contains_key(&pack);
        (!self.0.iter().any(used)).then_some(since)
    }
}

/// The observation of a run under way.
#[derive(Debug)]
pub(super) struct Observation {
    run: PackId,
    /// Number of parts in the store.
    parts: usize,
    part: Vec<Candidate>,
    /// When the run began, by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub begun_millis: u64,
}

impl Observation {
    /// Begins an observation, with a part that is empty.
    pub async fn begin(store: &Store) -> Result<Self, StoreError> {
        // The name is random, like the identity of a pack.
        let run = PackId::random(store.entropy());
        let mut begun = Self { run, parts: 0, part: Vec::new(), begun_millis: 0 };
        let key = begun.write(store, false).await?;
        begun.begun_millis = store.head(&key).await?.created_unix_millis;
        Ok(begun)
    }

    /// Adds a pack. Packs are in ascending order of their volumes.
    pub async fn add(&mut self, store: &Store, candidate: Candidate) -> Result<(), StoreError> {
        if self.part.len() == PART_MAX {
            self.write(store, false).await?;
        }
        self.part.push(candidate);
        Ok(())
    }

    /// Writes the last part. An observation without packs stays as well: the last part of a run that ended long ago may still arrive,
    /// and must not be the only one.
    pub async fn end(mut self, store: &Store) -> Result<(), StoreError> {
        self.write(store, true).await.map(drop)
    }

    async fn write(&mut self, store: &Store, is_last: bool) -> Result<Key, StoreError> {
        self.parts += 1;
        let parts = if is_last { self.parts } else { 0 };
        let Ok(name) = format!("{OBSERVATION}{}-{}-{parts}", self.run, self.parts).parse::<StoreName>()
        else {
            unreachable!("letters, digits and dashes")
        };
        let key = Key::Gc(name);
        let candidates = Candidates(std::mem::take(&mut self.part));
        let _: Created = store.create(&key, &[candidates.encode().into()]).await?;
        Ok(key)
    }
}
