//! Objects other than packs that nobody needs any more.
//!
//! Owns which objects these are. Does not own their removal.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::in_use::{AT_ONCE, FIRST_MANIFEST, InUse, ListedObject, ListedVolume, Standing};
use super::{Deadline, GcReport};
use crate::store::client::{ObjectInfo, Store};
use crate::store::error::StoreError;
use crate::store::key::{Folder, Key};

/// All such objects, which are counted in `report`.
pub(super) async fn leftovers(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
    report: &mut GcReport,
) -> Result<Vec<Key>, StoreError> {
    let of_volumes: Vec<_> = volumes.iter().map(|volume| superfluous(store, volume, deadline)).collect();
    let mut of_volumes = stream::iter(of_volumes).buffered(AT_ONCE);
    let mut keys = Vec::new();
    while let Some((superfluous, is_unfinished)) = of_volumes.try_next().await? {
        keys.extend(superfluous);
        report.is_unfinished |= is_unfinished;
    }
    keys.extend(dangling(store, volumes, deadline).await?);
    report.objects_removed += keys.len() as u64;
    Ok(keys)
}

/// The objects of `volume`, other than packs, of no use to readers, writers and later runs; and whether the volume has manifests
/// that a later run will add.
async fn superfluous(
    store: &Store,
    volume: &ListedVolume,
    deadline: Deadline,
) -> Result<(Vec<Key>, bool), StoreError> {
    let key = |number: u64| Key::Manifest(volume.id, number);
    if volume.is_over(deadline) {
        // Whatever a writer unaware of the deletion may add goes again.
        let mut keys: Vec<_> = volume.manifests.iter().map(|found| key(found.id)).collect();
        keys.extend(volume.snapshots.iter().map(|found| Key::Snapshot(volume.id, found.id.clone())));
        keys.extend(volume.fences.iter().map(|number| Key::Fence(volume.id, *number)));
        if volume.standing == Standing::Tombstoned
            && volume.manifests.is_empty()
            && volume.snapshots.is_empty()
            && volume.packs.is_empty()
        {
            keys.push(Key::Tombstone(volume.id));
        }
        return Ok((keys, false));
    }
    if !matches!(volume.standing, Standing::Live | Standing::Released) {
        return Ok((Vec::new(), false));
    }
    let (_, older) = volume.manifests.split_last().unzip();
    // The first manifest stays: everybody can ask for its key, without a listing, to learn whether the volume exists.
    let older = older.unwrap_or_default().iter().filter(|found| found.id > FIRST_MANIFEST);
    let older = older.filter(|found| !volume.fences.contains(&found.id));
    let (over, later): (Vec<&ListedObject<u64>>, Vec<_>) =
        older.partition(|found| deadline.is_over(found.created_millis));
    let mut keys = Vec::new();
    if !over.is_empty() {
        // A fence is created before its manifest, so a listing of fences after that of the manifests has it.
        let fences = store.list(Folder::Fences(volume.id), None).await?;
        let fences: HashSet<Key> = fences.into_iter().map(|object| object.key).collect();
        let is_fenced = |number: u64| fences.contains(&Key::Fence(volume.id, number));
        keys.extend(over.iter().filter(|found| !is_fenced(found.id)).map(|found| key(found.id)));
    }
    Ok((keys, !later.is_empty()))
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
            Some(Standing::Gone | Standing::Tombstoned) => true,
        },
        _ => false,
    };
    Ok(objects.into_iter().filter(leads_nowhere).map(|object| object.key).collect())
}

/// Whether a later run can remove more of `volume`, which is deleted, without any change by others.
pub(super) fn can_go(volume: &ListedVolume, in_use: &InUse, deadline: Deadline) -> bool {
    let is_unused = || volume.packs.iter().all(|pack| !in_use.uses(pack));
    !volume.is_live() && (!volume.is_over(deadline) || is_unused())
}
