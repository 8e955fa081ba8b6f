//! Observations of garbage collection: since when each pack has been unused.
//!
//! Owns the objects `gc/candidates-…`. Does not own which packs are in use. Invariant: a pack counts as unused since a run only if the
//! run and every later one saw the pack unused.
//!
//! An observation of more than [`PART_MAX`] packs has several objects, `gc/candidates-RUN-PART-PARTS`. A run whose parts are not all
//! there counts as one that saw every pack in use: a deletion of the parts that ends half-way begins all grace periods anew.

use std::collections::{BTreeMap, HashMap};

use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{CANDIDATES_MAX, Candidate, Candidates};
use crate::store::ids::{PackId, StoreName};
use crate::store::key::{Folder, Key};

/// Number of times the observations are read anew, because another run removed one of the objects.
const ROUNDS_MAX: usize = 16;
const OBSERVATION: &str = "candidates-";
/// Most packs in an object.
const PART_MAX: usize = if cfg!(test) { 16 } else { CANDIDATES_MAX };

/// Observations of all earlier runs.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub keys: Vec<Key>,
    /// For each run: its time, and since when each unused pack had been unused.
    runs: Vec<(u64, HashMap<PackId, u64>)>,
}

/// What a run saw.
#[derive(Debug, Default)]
struct Run {
    /// By the clock of the store, milliseconds since 1970-01-01 UTC: when its last object was created.
    created_millis: u64,
    /// Parts that are there and can be read, and all that were made.
    parts: (usize, usize),
    candidates: Vec<Candidate>,
}

/// The observations in the store. A run that ends well makes those of before vanish.
pub async fn observations(store: &Store) -> Result<Vec<Key>, StoreError> {
    let objects = store.list(Folder::Gc, None).await?.into_iter().map(|object| object.key);
    Ok(objects.filter(|key| run_of(key).is_some()).collect())
}

/// The run that made the observation `key`, and the number of its parts. `None`: `key` is no observation.
fn run_of(key: &Key) -> Option<(&str, usize)> {
    let Key::Gc(name) = key else { return None };
    let name = name.as_str().strip_prefix(OBSERVATION)?;
    let Some((run, part)) = name.split_once('-') else { return Some((name, 1)) };
    let parts = part.split_once('-').and_then(|(_, parts)| parts.parse().ok());
    // A name that this version does not make is a run that is never whole.
    Some((run, parts.unwrap_or(usize::MAX)))
}

impl Observations {
    pub async fn read(store: &Store) -> Result<Self, StoreError> {
        let mut round = 0;
        'anew: loop {
            round += 1;
            let mut keys = Vec::new();
            let mut runs: BTreeMap<String, Run> = BTreeMap::new();
            for object in store.list(Folder::Gc, None).await? {
                let Some((run, parts)) = run_of(&object.key) else { continue };
                let run = runs.entry(run.to_owned()).or_default();
                run.created_millis = run.created_millis.max(object.created_unix_millis);
                run.parts.1 = parts;
                match store.candidates(&object.key).await {
                    Ok(Candidates(candidates)) => {
                        run.parts.0 += 1;
                        run.candidates.extend(candidates);
                    }
                    Err(StoreError::Damaged { .. }) => {}
                    // Another run has read the object, and has said the same in another object by now.
                    Err(error) if error.is_missing() && round < ROUNDS_MAX => continue 'anew,
                    Err(error) => return Err(error),
                }
                keys.push(object.key);
            }
            let runs = runs.into_values().map(Run::unused).collect();
            return Ok(Self { keys, runs });
        }
    }

    /// Since when every run has seen `pack` unused; `None` when a run saw the pack in use, or no run saw the pack unused.
    pub fn unused_since(&self, pack: PackId) -> Option<u64> {
        let since = self.runs.iter().filter_map(|(_, unused)| unused.get(&pack).copied()).max()?;
        let used = |(at, unused): &(u64, HashMap<PackId, u64>)| *at >= since && !unused.contains_key(&pack);
        (!self.runs.iter().any(used)).then_some(since)
    }

    /// Creates an observation of `candidates`, to take the place of those read. Returns the time by the clock of the store.
    pub async fn create(store: &Store, candidates: Vec<Candidate>) -> Result<u64, StoreError> {
        // The name is random, like the identity of a pack.
        let run = PackId::random(store.entropy());
        // The new object stays even without candidates: the object of a run that ended long ago may still arrive, and must not be
        // the only one.
        let parts = candidates.len().div_ceil(PART_MAX).max(1);
        let mut now_millis = 0;
        let mut left = candidates;
        for part in 1..=parts {
            let rest = left.split_off(left.len().min(PART_MAX));
            let name = if parts == 1 {
                format!("{OBSERVATION}{run}")
            } else {
                format!("{OBSERVATION}{run}-{part}-{parts}")
            };
            let Ok(name) = name.parse::<StoreName>() else { unreachable!("letters, digits and dashes") };
            let key = Key::Gc(name);
            let _: Created = store.create(&key, &[Candidates(left).encode().into()]).await?;
            now_millis = store.head(&key).await?.created_unix_millis.max(now_millis);
            left = rest;
        }
        Ok(now_millis)
    }
}

impl Run {
    /// The time of the run, and since when it says each pack was unused.
    fn unused(self) -> (u64, HashMap<PackId, u64>) {
        let Self { created_millis, parts: (found, made), candidates } = self;
        let since = |candidate: Candidate| match candidate.since_unix_millis {
            0 => (candidate.pack, created_millis),
            since => (candidate.pack, since),
        };
        let is_whole = found == made;
        (created_millis, candidates.into_iter().filter(|_| is_whole).map(since).collect())
    }
}
