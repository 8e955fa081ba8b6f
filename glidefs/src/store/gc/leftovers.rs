//! Objects other than packs that nobody needs any more.
//!
//! Owns which objects these are. Does not own their removal.

use std::collections::{HashMap, HashSet};

use futures_util::future::try_join_all;

use super::in_use::{AT_ONCE, FIRST_MANIFEST, ListedVolume, Standing};
use super::{Deadline, GcReport};
use crate::store::client::{ObjectInfo, Store};
use crate::store::error::StoreError;
use crate::store::key::{Folder, Key};

/// Removes all such objects, which are counted in `report`; in a dry run they are only named.
pub(super) async fn remove_leftovers(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
    report: &mut GcReport,
) -> Result<(), StoreError> {
    for volumes in volumes.chunks(AT_ONCE) {
        let superfluous = volumes.iter().map(|volume| superfluous(store, volume, deadline));
        for (keys, is_unfinished) in try_join_all(superfluous).await? {
            report.is_unfinished |= is_unfinished;
            report.remove(store, &keys).await?;
        }
    }
    let dangling = dangling(store, volumes, deadline).await?;
    report.remove(store, &dangling).await
}

/// The objects of `volume`, other than packs, of no use to readers, writers and later runs; and whether the volume has manifests
/// that a later run will add.
async fn superfluous(
    store: &Store,
    volume: &ListedVolume,
    deadline: Deadline,
) -> Result<(Vec<Key>, bool), StoreError> {
    if !volume.is_kept() {
        // Whatever a writer unaware of the deletion may add goes again.
        let objects = store.list(Folder::Volume(volume.id), None).await?;
        let keys = objects.into_iter().map(|object| object.key);
        let is_other = |key: &Key| matches!(key, Key::Manifest(..) | Key::Snapshot(..) | Key::Fence(..));
        return Ok((keys.filter(is_other).collect(), false));
    }
    // The first manifest stays: everybody can ask for its key, without a listing, to learn whether the volume exists.
    let (Standing::Live | Standing::Released, Some(newest), true) =
        (volume.standing, volume.newest, volume.has_between)
    else {
        return Ok((Vec::new(), false));
    };
    let first = Key::Manifest(volume.id, FIRST_MANIFEST);
    let objects = store.list(Folder::Manifests(volume.id), Some(&first)).await?;
    // A fence is created before its manifest, so a listing of fences after that of the manifests has it.
    let fences = store.list(Folder::Fences(volume.id), None).await?;
    let fences: HashSet<Key> = fences.into_iter().map(|object| object.key).collect();
    let can_go = |object: &ObjectInfo| match &object.key {
        Key::Manifest(_, number) => *number < newest.id && !fences.contains(&Key::Fence(volume.id, *number)),
        _ => false,
    };
    let older = objects.into_iter().filter(can_go);
    let (over, later): (Vec<_>, Vec<_>) =
        older.partition(|object| deadline.is_over(object.created_unix_millis));
    Ok((over.into_iter().map(|object| object.key).collect(), !later.is_empty()))
}

/// Objects below `deleted/` leading to live volumes, or to volumes deleted for good.
async fn dangling(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
) -> Result<Vec<Key>, StoreError> {
    let objects = store.list(Folder::Deleted, None).await?;
    let standings: HashMap<_, _> = volumes.iter().map(|volume| (volume.id, volume.standing)).collect();
    let leads_nowhere = |object: &ObjectInfo| match &object.key {
        Key::Deleted(_, volume) => match standings.get(volume) {
            Some(Standing::Deleted { .. } | Standing::Damaged) => false,
            // The object is created before the deletion, which may be under way. The volume may also be younger than the scan.
            Some(Standing::Live | Standing::Released) | None => deadline.is_over(object.created_unix_millis),
            Some(Standing::Gone) => true,
        },
        _ => false,
    };
    Ok(objects.into_iter().filter(leads_nowhere).map(|object| object.key).collect())
}
