//! Removal records: the packs that runs of garbage collection may be removing at the moment.
//!
//! Owns the objects `gc/removal-…`, and the question whether packs stay. Does not own which packs are removed (`gc`). Invariant: a
//! record is in the store before its run looks for the last time whether the packs are in use, and until the packs are gone or the
//! run sends no further deletion.
//!
//! Whoever lists packs that were perhaps unused for a time creates the object with the list first, and asks [`Store::will_stay`]
//! then. A run that has not seen the object made its record before: so the record is in the store, or the run has ended and its
//! packs are gone. The question reads the records first and looks for the packs then; the other order would miss a run that ends
//! between the two. A pack in a record may stay all the same, and a pack is gone only when a look has shown so. A run may stand
//! still for any time between its last look and its deletions, so no time limit can take the place of the record.

use std::collections::HashSet;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::client::{Created, ObjectInfo, Store};
use super::error::StoreError;
use super::format::{Candidate, Candidates, PackRef};
use super::ids::{PackId, StoreName};
use super::key::{Folder, Key};

const REMOVAL: &str = "removal-";
/// Packs whose existence is checked at once.
const HEADS_MAX: usize = 16;

/// Whether packs stay in the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// No run removes the packs as long as an object lists the packs.
    Stays,
    /// A look has shown that a pack is missing.
    Gone,
    /// All packs are in the store, and the record of this key may have one of them.
    Unsure(Key),
}

/// A record of packs that a run is removing.
#[derive(Debug)]
pub(super) struct Removal {
    pub key: Key,
    /// By the clock of the store. `None`: the record was created by this run.
    pub created_unix_millis: Option<u64>,
    /// `None`: the record is damaged, or of another version.
    packs: Option<HashSet<PackId>>,
}

impl Removal {
    pub fn is_unreadable(&self) -> bool {
        self.packs.is_none()
    }

    /// Whether the record may have `pack`.
    pub fn has(&self, pack: PackId) -> bool {
        self.packs.as_ref().is_none_or(|packs| packs.contains(&pack))
    }

    /// Whether `exists` is true of no pack of the record. An unreadable record may have any pack.
    pub fn is_over(&self, exists: impl Fn(PackId) -> bool) -> bool {
        self.packs.as_ref().is_some_and(|packs| !packs.iter().any(|pack| exists(*pack)))
    }
}

impl Store {
    /// Records that a run is about to remove `packs`.
    pub(super) async fn create_removal(&self, packs: Candidates) -> Result<Removal, StoreError> {
        // The name is random, like the identity of a pack.
        let name = format!("{REMOVAL}{}", PackId::random(self.entropy()));
        let Ok(name) = name.parse::<StoreName>() else { unreachable!("letters, digits and a dash") };
        let key = Key::Gc(name);
        let _: Created = self.create(&key, &[packs.encode().into()]).await?;
        Ok(Removal { key, created_unix_millis: None, packs: Some(ids(&packs)) })
    }

    /// The records of all runs that have not ended.
    pub(super) async fn removals(&self) -> Result<Vec<Removal>, StoreError> {
        let mut removals = Vec::new();
        for object in self.list(Folder::Gc, None).await? {
            removals.extend(self.removal(object).await?);
        }
        Ok(removals)
    }

    /// The record that `object` is; `None` for another object, and for the record of a run that has ended meanwhile.
    async fn removal(&self, object: ObjectInfo) -> Result<Option<Removal>, StoreError> {
        if !matches!(&object.key, Key::Gc(name) if name.as_str().starts_with(REMOVAL)) {
            return Ok(None);
        }
        let packs = match self.candidates(&object.key).await {
            Ok(packs) => Some(ids(&packs)),
            Err(StoreError::Damaged { .. } | StoreError::OtherVersion { .. }) => None,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Removal { key: object.key, created_unix_millis: Some(object.created_unix_millis), packs }))
    }

    /// Whether garbage collection leaves `packs` in the store, which are listed by an object that is in the store already. One
    /// listing, one request for each record up to the first with a pack, and one for each pack.
    pub(super) async fn will_stay(&self, packs: Vec<PackRef>) -> Result<Stay, StoreError> {
        if packs.is_empty() {
            return Ok(Stay::Stays);
        }
        let mut unsure = None;
        for object in self.list(Folder::Gc, None).await? {
            let removal = self.removal(object).await?;
            let has_any = |removal: &Removal| packs.iter().any(|pack| removal.has(pack.pack));
            unsure = removal.filter(has_any).map(|removal| removal.key);
            if unsure.is_some() {
                break;
            }
        }
        let store = self.clone();
        let heads = stream::iter(packs).map(move |pack| {
            let (store, key) = (store.clone(), Key::Pack(pack.volume, pack.pack));
            async move { store.insist(StoreError::is_missing, || store.head(&key)).await.map(drop) }
        });
        match heads.buffer_unordered(HEADS_MAX).boxed().try_collect::<()>().await {
            Err(error) if error.is_missing() => Ok(Stay::Gone),
            found => found.map(|()| unsure.map_or(Stay::Stays, Stay::Unsure)),
        }
    }
}

fn ids(candidates: &Candidates) -> HashSet<PackId> {
    candidates.0.iter().map(|candidate: &Candidate| candidate.pack).collect()
}
