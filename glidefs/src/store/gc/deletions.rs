//! Deletions: made final after their grace period, and finished where they stopped half-way.
//!
//! Owns the manifest of a final deletion, and names that a deletion left. Does not own removing the objects of a deleted volume.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::Deadline;
use super::in_use::{AT_ONCE, ListedVolume, Standing};
use crate::store::client::{Created, Store};
use crate::store::error::StoreError;
use crate::store::format::{Deletion, Manifest, Sections};
use crate::store::ids::StoreName;
use crate::store::key::Key;

/// What became of the last name of a volume that is gone.
#[derive(Clone, Debug)]
pub(super) enum LastName {
    /// The name meant the volume, and was removed.
    Removed,
    /// The record of the name is damaged, and stays: the name may be another volume's by now.
    Damaged(Key),
}

/// Takes the deletions of `volumes` further. Returns what became of last names.
pub(super) async fn carry_on_all(
    store: &Store,
    volumes: &[ListedVolume],
    deadline: Deadline,
) -> Result<Vec<LastName>, StoreError> {
    let deletions: Vec<_> = volumes.iter().map(|volume| carry_on(store, volume, deadline)).collect();
    let names: Vec<_> = stream::iter(deletions).buffered(AT_ONCE).try_collect().await?;
    Ok(names.into_iter().flatten().collect())
}

/// Takes the deletion of `volume` further, if the volume is deleted.
async fn carry_on(
    store: &Store,
    volume: &ListedVolume,
    deadline: Deadline,
) -> Result<Option<LastName>, StoreError> {
    make_final(store, volume, deadline).await?;
    let Some(name) = last_name(store, volume).await? else { return Ok(None) };
    // One after the other within this process. Between hosts the look and the removal are not one.
    let lock = store.name_removal(&name);
    let _lock = lock.lock().await;
    // The deletion, or the undoing of the deletion, may have stopped half-way.
    match store.name(&name).await {
        Ok(Some(record)) if record.volume == volume.id => {
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

/// Makes the deletion of `volume` final, if the grace period is over.
async fn make_final(store: &Store, volume: &ListedVolume, deadline: Deadline) -> Result<(), StoreError> {
    let Standing::Deleted { number } = volume.standing else { return Ok(()) };
    if !volume.created_millis(number).is_some_and(|created| deadline.is_over(created)) {
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
    let Some(newest) = volume.manifests.last() else { return Ok(None) };
    match store.manifest(volume.id, newest.id).await {
        Ok(manifest) => Ok(Some(manifest.name)),
        // A missing or damaged manifest does not tell a name. The volume goes in any case.
        Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
