//! Observations of garbage collection: since when each pack has been unused.
//!
//! Owns the objects below `gc/`. Does not own which packs are in use. Invariant: a pack counts as unused since a run only if the
//! run and every later one saw the pack unused.

use std::collections::HashMap;

use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{Candidate, Candidates};
use crate::store::ids::{PackId, StoreName};
use crate::store::key::{Folder, Key};

/// Number of times the observations are read anew, because another run removed one of the objects.
const ROUNDS_MAX: usize = 16;
const OBSERVATION: &str = "candidates-";

/// Observations of all earlier runs.
#[derive(Debug, Default)]
pub(super) struct Observations {
    keys: Vec<Key>,
    /// For each run: its time, and since when each unused pack had been unused.
    runs: Vec<(u64, HashMap<PackId, u64>)>,
}

impl Observations {
    pub async fn read(store: &Store) -> Result<Self, StoreError> {
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
                    // An unreadable object counts as if the run had seen every pack in use: no pack goes too early.
                    Err(StoreError::Damaged { .. }) => seen.runs.push((created, HashMap::new())),
                    // Another run has read the object, and has said the same in another object by now.
                    Err(error) if error.is_missing() && round < ROUNDS_MAX => continue 'anew,
                    Err(error) => return Err(error),
                }
                seen.keys.push(object.key);
            }
            return Ok(seen);
        }
    }

    /// Since when every run has seen `pack` unused; `None` when a run saw the pack in use, or no run saw the pack unused.
    pub fn unused_since(&self, pack: PackId) -> Option<u64> {
        let since = self.runs.iter().filter_map(|(_, unused)| unused.get(&pack).copied()).max()?;
        let used = |(at, unused): &(u64, HashMap<PackId, u64>)| *at >= since && !unused.contains_key(&pack);
        (!self.runs.iter().any(used)).then_some(since)
    }

    /// Replaces all objects read by one with `candidates`. Returns the time by the clock of the store.
    pub async fn replace(&self, store: &Store, candidates: &Candidates) -> Result<u64, StoreError> {
        // The name is random, like the identity of a pack.
        let name = format!("{OBSERVATION}{}", PackId::random(store.entropy()));
        let Ok(name) = name.parse::<StoreName>() else { unreachable!("letters, digits and a dash") };
        let key = Key::Gc(name);
        let _: Created = store.create(&key, &[candidates.encode().into()]).await?;
        let now_millis = store.head(&key).await?.created_unix_millis;
        // The new object stays even without candidates: the object of a run that ended long ago may still arrive, and must not be
        // the only one.
        store.delete(&self.keys).await?;
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
