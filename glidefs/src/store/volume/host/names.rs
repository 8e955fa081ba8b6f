//! Names of volumes: objects that lead from a name to a volume.
//!
//! Owns giving a name and taking a name away. Does not own when a volume is created or deleted. Invariant: a name comes into the
//! store before the volume of that name, so there is never a volume that nobody can name.

use super::Host;
use crate::store::client::Created;
use crate::store::error::StoreError;
use crate::store::format::NameRecord;
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::Key;
use crate::store::volume::error::VolumeError;
use crate::store::volume::limits::ROUNDS_MAX;

impl Host {
    /// Gives `name` to a volume that has no manifest, or no other than its first.
    pub async fn claim(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let volume = VolumeId::random(self.store.entropy());
            let created_unix_millis = self.options.clock.unix_millis();
            let record = NameRecord { volume, created_unix_millis };
            if self.store.create_name(name, &record).await? == Created::Created {
                return Ok(volume);
            }
            // It may have gone away in the meantime.
            let Some(record) = self.store.name(name).await? else { continue };
            let Some(newest) = self.store.latest_manifest(record.volume, None).await? else {
                return Ok(record.volume);
            };
            match self.check_not_deleted(&newest).await {
                Ok(()) if newest.number == 1 => return Ok(record.volume),
                Ok(()) => break,
                // The deletion was not finished.
                Err(VolumeError::Deleted { .. }) => self.remove_name(name, record.volume).await?,
                Err(error) => return Err(error),
            }
        }
        Err(VolumeError::NameTaken { name: name.clone() })
    }

    /// Leads from the name of a volume that is about to be deleted to the volume.
    pub async fn note_deleted(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        let record = NameRecord { volume, created_unix_millis: self.options.clock.unix_millis() };
        let key = Key::Deleted(name.clone(), volume);
        let _: Created = self.store.create(&key, &[record.encode().into()]).await?;
        Ok(())
    }

    /// Takes `name` from `volume`, if it has it. Two that do so at once, and a third that gives the name to another volume
    /// between the two, could take it from that one.
    pub async fn remove_name(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
        if self.has_name(name, volume).await? {
            self.store.delete(&[Key::Name(name.clone())]).await?;
        }
        Ok(())
    }

    /// As [`Self::remove_name`], where `volume` was deleted. Who had it back under its name meanwhile keeps the name.
    pub async fn remove_name_of_deleted(&self, name: &StoreName, volume: VolumeId) -> Result<(), StoreError> {
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
