//! Deletions: made final after their grace period, and finished where they stopped half-way.
//!
//! Owns the manifest of a final deletion, graves, names that a deletion left, and names that live volumes have lost. Does not own
//! removing the objects of a deleted volume. Invariant: a volume has its grave before anything of the volume is removed.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::in_use::{AT_ONCE, ListedVolume, Standing};
use super::{Deadline, GcReport};
use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{Deletion, Manifest, NameRecord, Sections};
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::{Folder, Key};

/// What became of the last name of a volume that is gone.
enum LastName {
    /// The name meant the volume, and was removed.
    Removed,
    /// The record of the name is damaged, and stays: the name may be another volume's by now.
    Damaged(Key),
}

/// Takes the deletions of `volumes` further, and reports what became of last names.
pub(super) async fn carry_on_all(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
    report: &mut GcReport,
) -> Result<(), StoreError> {
    let deletions: Vec<_> = volumes.iter().map(|volume| carry_on(store, volume, deadline)).collect();
    let mut names = stream::iter(deletions).buffered(AT_ONCE);
    while let Some(name) = names.try_next().await? {
        match name {
            Some(LastName::Removed) => report.objects_removed += 1,
            Some(LastName::Damaged(key)) => report.damaged.push(key.to_string()),
            None => {}
        }
    }
    Ok(())
}

/// Takes the deletion of `volume` further, if the volume is deleted.
async fn carry_on(
    store: &Store,
    volume: &ListedVolume,
    deadline: Deadline,
) -> Result<Option<LastName>, StoreError> {
    make_final(store, volume, deadline).await?;
    if !volume.is_kept() {
        let record = NameRecord { volume: volume.id, created_unix_millis: deadline.now_millis };
        let _: Created = store.mark(&Key::Grave(volume.id), record).await?;
    }
    let Some(name) = last_name(store, volume).await? else { return Ok(None) };
    remove_name(store, name, volume.id).await
}

/// Removes `name` if it means `volume`, which is deleted.
async fn remove_name(
    store: &Store,
    name: StoreName,
    volume: VolumeId,
) -> Result<Option<LastName>, StoreError> {
    // One after the other within this process. Between hosts the look and the removal are not one.
    let lock = store.name_removal(&name);
    let _lock = lock.lock().await;
    // The deletion, or the undoing of the deletion, may have stopped half-way.
    match store.name(&name).await {
        Ok(Some(record)) if record.volume == volume => {
            store.delete(&[Key::Name(name)]).await?;
            Ok(Some(LastName::Removed))
        }
        Ok(_) => Ok(None),
        Err(StoreError::Damaged { .. } | StoreError::Archived { .. }) => {
            Ok(Some(LastName::Damaged(Key::Name(name))))
        }
        Err(error) => Err(error),
    }
}

/// Gives those of `volumes` their names back whose names have no record: two hosts at once may have removed the name of a deleted
/// volume, or the removal arrived late, when the name was another volume's already.
pub(super) async fn restore_names(
    store: &Store,
    volumes: &HashMap<VolumeId, StoreName>,
    deadline: Deadline,
) -> Result<(), StoreError> {
    let listed = store.list(Folder::Names, None).await?;
    let listed: HashSet<Key> = listed.into_iter().map(|object| object.key).collect();
    for (volume, name) in volumes {
        let record = NameRecord { volume: *volume, created_unix_millis: deadline.now_millis };
        if listed.contains(&Key::Name(name.clone()))
            || store.create_name(name, &record).await? == Created::Existed
        {
            continue;
        }
        // The volume may have been deleted since the scan, and its name removed.
        match store.latest_manifest(*volume, None).await? {
            Some(newest) if newest.sections.deleted.is_some() => {
                remove_name(store, name.clone(), *volume).await?;
            }
            _ => tracing::warn!(%volume, %name, "a volume had lost its name in the store, and has it back"),
        }
    }
    Ok(())
}

/// Makes the deletion of `volume` final, if the grace period is over.
async fn make_final(store: &Store, volume: &ListedVolume, deadline: Deadline) -> Result<(), StoreError> {
    let Standing::Deleted { number } = volume.standing else { return Ok(()) };
    if !volume.can_end(deadline) {
        return Ok(());
    }
    let deleted = match store.manifest(volume.id, number).await {
        // The deletion was undone a moment ago; or the next run finds the volume damaged.
        Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => return Ok(()),
        deleted => deleted?,
    };
    let last = Manifest {
        number: number.saturating_add(1),
        packs: Vec::new(),
        sections: Sections { deleted: Some(Deletion::ForGood), ..deleted.sections.clone() },
        ..deleted
    };
    // If the number exists, the deletion was undone, or another run has made the deletion final.
    let _: Created = store.create_manifest(&last).await?;
    Ok(())
}

/// The last name of a volume that is gone.
async fn last_name(store: &Store, volume: &ListedVolume) -> Result<Option<StoreName>, StoreError> {
    if volume.is_kept() {
        return Ok(None);
    }
    let Some(newest) = volume.newest else { return Ok(None) };
    match store.manifest(volume.id, newest.id).await {
        Ok(manifest) => Ok(Some(manifest.name)),
        // A missing or damaged manifest does not tell a name. The volume goes in any case.
        Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
