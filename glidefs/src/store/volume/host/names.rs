//! Names of volumes: objects that lead from a name to a volume.
//!
//! Owns giving a name and taking a name away. Does not own when a volume is created or deleted. Invariants: a name comes into the
//! store before the volume of that name, so there is never a volume that nobody can name; of this process, one at a time looks
//! whether a name still means a deleted volume, and removes the name.

use super::Host;
use crate::store::client::Created;
use crate::store::error::StoreError;
use crate::store::format::NameRecord;
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::Key;
use crate::store::volume::error::VolumeError;
use crate::store::volume::limits::ROUNDS_MAX;

impl Host {
    /// Gives `name` to a volume without a manifest, or with the first manifest only: the caller tells a creation whose answer was
    /// lost from the creation of somebody else.
    pub async fn claim(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let volume = VolumeId::random(self.store.entropy());
            let created_unix_millis = self.options.clock.unix_millis();
            let record = NameRecord { volume, created_unix_millis };
            if self.store.create_name(name, &record).await? == Created::Created {
                return Ok(volume);
            }
            // The name was in use a moment ago, and may be free now.
            let Some(record) = self.store.name(name).await? else { continue };
            let Some(newest) = self.store.latest_manifest(record.volume, None).await? else {
                if self.store.is_buried(record.volume).await? {
                    self.remove_name(name, record.volume).await?;
                    continue;
                }
                return Ok(record.volume);
            };
            match self.check_not_deleted(&newest).await {
                Ok(()) if newest.number == 1 => return Ok(record.volume),
                Ok(()) => return Err(self.name_taken(name, record.volume).await),
                // The deletion of the volume stopped before the name was removed.
                Err(VolumeError::Deleted { .. }) => self.remove_name(name, record.volume).await?,
                Err(error) => return Err(error),
            }
        }
        Err(VolumeError::NameTaken { name: name.clone(), held: None })
    }

    /// Creates the object below `deleted/` that leads from the name of a volume to the volume. Called before the volume is
    /// deleted.
    pub async fn note_deleted(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        let record = NameRecord { volume, created_unix_millis: self.options.clock.unix_millis() };
        let _: Created = self.store.mark(&Key::Deleted(name.clone(), volume), record).await?;
        Ok(())
    }

    /// Removes `name` if `name` means `volume`. One after the other within this process. Not atomic between hosts: when two hosts
    /// remove the name at once, and somebody gives the name to another volume between the two removals, that volume loses the
    /// name.
    pub async fn remove_name(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        let lock = self.store.name_removal(name);
        let _lock = lock.lock().await;
        if self.has_name(name, volume).await? {
            self.store.delete(&[Key::Name(name.clone())]).await?;
        }
        Ok(())
    }

    /// As [`Self::remove_name`], for a deleted `volume`. The name stays if the volume was had back under the same name meanwhile.
    pub async fn remove_name_of_deleted(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        let lock = self.store.name_removal(name);
        let _lock = lock.lock().await;
        if !self.has_name(name, volume).await? {
            return Ok(());
        }
        let newest = self.store.latest_manifest(volume, None).await?;
        if newest.is_none_or(|newest| newest.sections.deleted.is_some()) {
            self.store.delete(&[Key::Name(name.clone())]).await?;
        }
        Ok(())
    }

    async fn has_name(&self, name: &StoreName, volume: VolumeId) -> Result<bool, StoreError> {
        Ok(self.store.name(name).await?.is_some_and(|record| record.volume == volume))
    }
}
