//! Deleting a volume, and undoing the deletion.
//!
//! Owns deletion, its undoing, and how deleted volumes are found. Does not own when a deletion becomes final (`gc`). Invariant: a
//! deletion is the next manifest of its volume. Of a deletion and an opening at the same time one comes first, and the other one
//! finds the first: a deletion never removes data of a host whose opening the deletion did not know of.
//!
//! A name is free as soon as its volume is deleted. An object below `deleted/` leads from the name to the volume; the newest
//! manifest of the volume says whether the volume is deleted.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::VolumeError;
use super::limits::ROUNDS_MAX;
use super::notes::{Loss, Past};
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use super::writer::state::Head;
use crate::store::client::Created;
use crate::store::format::{Deletion, Manifest, NameRecord, Sections};
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::{Folder, Key};

/// Deleted volumes whose manifests are read at once.
const AT_ONCE: usize = 16;

/// A deleted volume whose deletion can be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedVolume {
    /// Name of the volume before the deletion.
    pub name: StoreName,
    /// Identity of the deleted volume.
    pub volume: VolumeId,
    /// Size of the volume, sectors.
    pub size_sectors: u64,
    /// Time of the deletion by the clock of the deleting host, milliseconds since 1970-01-01 UTC.
    pub deleted_unix_millis: u64,
}

impl VolumeStore {
    /// Deleted volumes whose deletion can be undone; only those that had `name`, if a name is given.
    pub async fn deleted(&self, name: Option<&StoreName>) -> Result<Vec<DeletedVolume>, VolumeError> {
        let listing = self.host.store.list(Folder::Deleted, None).await?;
        let of_name = |key: Key| match key {
            Key::Deleted(found, volume) if name.is_none_or(|name| *name == found) => Some((found, volume)),
            _ => None,
        };
        let found = listing.into_iter().filter_map(|object| of_name(object.key));
        let look = |(name, volume)| async move {
            let newest = self.host.store.latest_manifest(volume, None).await?;
            let newest = newest.filter(|newest| newest.sections.deleted == Some(Deletion::CanBeUndone));
            Ok::<_, VolumeError>(newest.map(|newest| DeletedVolume {
                name,
                volume,
                size_sectors: newest.size_sectors,
                deleted_unix_millis: newest.created_unix_millis,
            }))
        };
        let deleted = stream::iter(found.map(look)).buffered(AT_ONCE);
        deleted.try_filter_map(|deleted| std::future::ready(Ok(deleted))).try_collect().await
    }

    /// Undoes the last deletion of a volume that had `name`, and gives the volume the name `new`. This host has the volume then.
    pub async fn undelete(&self, name: &StoreName, new: &StoreName) -> Result<VolumeWriter, VolumeError> {
        let deleted = self.deleted(Some(name)).await?;
        let last = deleted.into_iter().max_by_key(|deleted| deleted.deleted_unix_millis);
        let volume = last.ok_or_else(|| VolumeError::NotDeleted { name: name.clone() })?.volume;
        let created_unix_millis = self.host.options.clock.unix_millis();
        let record = NameRecord { volume, created_unix_millis };
        if self.host.store.create_name(new, &record).await? == Created::Existed {
            let found = self.find(new).await?;
            if found != Some(volume) {
                return Err(self.host.name_taken(new, found.unwrap_or(volume)).await);
            }
        }
        for _ in 0..ROUNDS_MAX {
            let newest = self.host.store.latest_manifest(volume, None).await?;
            let Some(newest) = newest.filter(|newest| !newest.is_gone()) else {
                self.host.remove_name(new, volume, false).await?;
                return Err(VolumeError::NotDeleted { name: name.clone() });
            };
            if newest.sections.deleted.is_none() {
                if newest.name != *new {
                    // Another undoing was faster, and the volume has the name given there.
                    self.host.remove_name(new, volume, false).await?;
                }
                return Err(VolumeError::NotDeleted { name: name.clone() });
            }
            let next = self.host.next_of(newest);
            let sections = Sections { deleted: None, ..next.sections };
            let manifest = Manifest { name: new.clone(), sections, ..next };
            if let Some(writer) = self.create_newest(manifest).await? {
                if name != new {
                    // A half-finished deletion leaves the name.
                    self.host.remove_name(name, volume, false).await?;
                }
                self.host.store.delete(&[Key::Deleted(name.clone(), volume)]).await?;
                return Ok(writer);
            }
        }
        Err(VolumeError::Contended { volume })
    }
}

impl VolumeWriter {
    /// Deletes the volume. The name is free at once. After the grace period garbage collection removes the volume and its
    /// snapshots, except packs that forks use; until then [`VolumeStore::undelete`] undoes the deletion, as of the last commit.
    /// After an error the call can be repeated.
    pub async fn delete(&self) -> Result<(), VolumeError> {
        let _change = self.shared.change.lock().await;
        let host = &self.host;
        // The store is always asked, even if this writer trusts the manifest at hand, or believes the volume to be deleted: if
        // another host has taken the volume over, this writer must not delete the volume.
        let checked = match self.writable() {
            Ok(()) | Err(VolumeError::Deleted { .. }) => {
                host.store.insist(VolumeError::is_missing, || self.check_newest()).await
            }
            lost => lost,
        };
        let manifest = match checked {
            Ok(()) => self.manifest().await?,
            Err(VolumeError::Deleted { .. }) => return self.finish_deletion().await,
            // Collected, or somebody has emptied the store: there is nothing to delete.
            Err(error)
                if error.is_missing() && host.store.latest_manifest(self.id(), None).await?.is_none() =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if manifest.sections.deleted.is_some() {
            return self.finish_deletion().await;
        }
        let name = manifest.name.clone();
        host.note_deleted(&name, self.id()).await?;
        let edit = |base: &Manifest| {
            let deleted = Some(Deletion::CanBeUndone);
            let sections = Sections { deleted, uploaded: Vec::new(), ..base.sections.clone() };
            Some(Manifest { sections, ..base.clone() })
        };
        match self.publish(&NewPacks::default(), edit).await {
            // The deletion of an earlier try has arrived meanwhile.
            Err(VolumeError::Deleted { .. }) => return self.finish_deletion().await,
            published => published?,
        };
        self.stop_until_restart(Loss::Deleted);
        // While the manifest was on its way, garbage collection may have removed the object as one that leads to a living volume.
        host.note_deleted(&name, self.id()).await?;
        let Head { own, number, .. } = self.head().clone();
        // The manifest itself says that the volume is deleted, so the notes are not needed.
        host.options.notes.forget(Past { volume: self.id(), number, epoch: own.epoch });
        Ok(host.remove_name(&name, self.id(), true).await?)
    }

    /// Finishes a deletion that had stopped half-way.
    async fn finish_deletion(&self) -> Result<(), VolumeError> {
        let newest = self.host.store.latest_manifest(self.id(), None).await?;
        let Some(newest) = newest.filter(|newest| newest.sections.deleted.is_some()) else { return Ok(()) };
        if !newest.is_gone() {
            self.host.note_deleted(&newest.name, self.id()).await?;
        }
        Ok(self.host.remove_name(&newest.name, self.id(), true).await?)
    }
}
