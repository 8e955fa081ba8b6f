//! Which host has a volume: opening a volume, taking one over, and releasing one.
//!
//! Owns when this host becomes the holder. Does not own what a manifest says of the holder (`host/holder`), what a host that lost a
//! volume does (`writer/loss`), nor how a volume ends (`delete`). Invariant: a volume that a host has not released is opened by another
//! host only on purpose.

use std::sync::Arc;

use super::error::VolumeError;
use super::limits::ROUNDS_MAX;
use super::types::Resume;
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::Manifest;
use crate::store::ids::{StoreName, VolumeId};

impl VolumeStore {
    /// Opens the volume of a name, which no other host has: the host that had it has released it, or was this one.
    ///
    /// # Errors
    /// [`VolumeError::Held`] when another host has not released it.
    pub async fn open(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, false).await
    }

    /// Takes over the volume of a name: whoever has it is fenced, and loses what was not committed.
    pub async fn take_over(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, true).await
    }

    /// Takes over `wanted`, which has to be the volume that `name` means: whoever has it is fenced.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the name means another volume, which is left alone.
    pub async fn take_over_known(
        &self,
        name: &StoreName,
        wanted: VolumeId,
    ) -> Result<VolumeWriter, VolumeError> {
        let found = self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })?;
        if found != wanted {
            return Err(VolumeError::OtherVolume { name: name.clone(), found, wanted });
        }
        // What has become of the name since does not matter: a deleted volume is refused.
        self.acquire(wanted, true).await
    }

    async fn named(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })
    }

    pub(in crate::store) async fn acquire(
        &self,
        volume: VolumeId,
        takes_over: bool,
    ) -> Result<VolumeWriter, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let newest = self.host.store.latest_manifest(volume, None).await?;
            let newest = newest.ok_or(VolumeError::NoSuchVolume { volume })?;
            self.host.check_not_deleted(&newest).await?;
            if !takes_over {
                self.host.check_not_held(&newest)?;
            }
            let begun = self.host.options.clock.since_boot();
            let manifest = self.host.next_of(newest);
            if self.host.create_manifest(&manifest).await? == Created::Created {
                return Ok(VolumeWriter::new(self.host.clone(), Arc::new(manifest), begun));
            }
        }
        Err(VolumeError::Contended { volume })
    }
}

impl VolumeWriter {
    /// Gives the volume up, so that another host may open it: two requests. The next commit takes it back, unless another host
    /// has opened it.
    pub async fn release(&self) -> Result<Resume, VolumeError> {
        self.hold_as(true).await
    }

    /// Takes back a volume that this host may have released: two requests. There is a new manifest in any case: a release that is
    /// still on its way has the number of that one, and comes too late.
    pub async fn hold(&self) -> Result<Resume, VolumeError> {
        self.hold_as(false).await
    }

    async fn hold_as(&self, released: bool) -> Result<Resume, VolumeError> {
        let _change = self.shared.change.lock().await;
        self.writable()?;
        self.check_newest().await?;
        let host = &self.host;
        let edit = |base: &Manifest| {
            let sections = host.held_as(&base.sections, released);
            (!(released && base.is_released())).then(|| Manifest { sections, ..base.clone() })
        };
        let published = self.publish(&NewPacks::default(), edit).await?;
        Ok(published.map_or_else(|| self.state(), |published| self.resume_published(&published)))
    }
}
