//! Which host has a volume: opening a volume, taking one over, releasing one.
//!
//! Owns when this host becomes the holder. Does not own what a manifest says of the holder (`host/holder`), how a writer gives up
//! a lost volume (`writer/loss`), nor how a volume ends (`delete`). Invariant: only a deliberate takeover opens a volume that
//! another host has not released.

use std::sync::Arc;

use super::error::VolumeError;
use super::limits::ROUNDS_MAX;
use super::types::Resume;
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use crate::store::format::Manifest;
use crate::store::ids::{StoreName, VolumeId};

impl VolumeStore {
    /// Opens the volume of a name. The host that had the volume has released the volume, or is this host.
    ///
    /// # Errors
    /// [`VolumeError::Held`] when another host has the volume and has not released the volume.
    pub async fn open(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, false).await
    }

    /// Takes over the volume of a name. The writer that had the volume is fenced, and loses everything not committed.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when the volume is a fork that nobody has written to, and packs of the fork are gone.
    pub async fn take_over(&self, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        self.acquire(self.named(name).await?, true).await
    }

    /// As [`Self::take_over`], for a caller that knows which volume `name` has to mean.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the name means another volume. That volume is left alone.
    pub async fn take_over_known(
        &self,
        name: &StoreName,
        wanted: VolumeId,
    ) -> Result<VolumeWriter, VolumeError> {
        let found = self.named(name).await?;
        if found != wanted {
            return Err(VolumeError::OtherVolume { name: name.clone(), found, wanted });
        }
        // From here on the name does not matter: if the volume was deleted meanwhile, the takeover is refused.
        self.acquire(wanted, true).await
    }

    /// The newest manifest of the volume of a name, whichever host has the volume: four requests.
    pub async fn newest_of(&self, name: &StoreName) -> Result<Manifest, VolumeError> {
        Ok(self.newest(self.named(name).await?).await?.0)
    }

    /// The newest manifest, and its hash.
    async fn newest(&self, volume: VolumeId) -> Result<(Manifest, [u8; 32]), VolumeError> {
        let newest = self.host.store.latest_manifest_hashed(volume, None).await?;
        let Some((newest, hash)) = newest else { return Err(self.host.without_state(volume).await) };
        self.host.check_not_deleted(&newest).await?;
        Ok((newest, hash))
    }

    /// The volume of a name.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchName`] when there is none.
    pub async fn named(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })
    }

    /// Makes this host the holder of `volume`: seven requests, however many manifests there are. Of a fork that nobody has written to,
    /// one listing more, and one request for each pack.
    pub(in crate::store) async fn acquire(
        &self,
        volume: VolumeId,
        takes_over: bool,
    ) -> Result<VolumeWriter, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let (newest, hash) = self.newest(volume).await?;
            if !takes_over {
                self.host.check_not_held(&newest, &hash)?;
            }
            if newest.number == 1 && newest.origin.is_some() {
                // The host of the fork may have ended before the host found out that the fork came too late.
                self.host.will_stay(volume, newest.packs.clone()).await?;
            }
            let begun = self.host.options.clock.since_boot();
            let manifest = self.host.next_of(newest);
            if self.host.create_newest(&manifest).await? {
                return Ok(VolumeWriter::new(self.host.clone(), Arc::new(manifest), begun));
            }
        }
        Err(VolumeError::Contended { volume })
    }
}

impl VolumeWriter {
    /// Releases the volume to any other host: two requests. The next commit of this writer takes the volume back, unless another
    /// host has opened the volume.
    pub async fn release(&self) -> Result<Resume, VolumeError> {
        self.hold_as(true).await
    }

    /// Takes back a volume that this host may have released: two requests. Always creates a manifest: a release that is still on
    /// its way has the number of that manifest, and comes too late.
    pub async fn hold(&self) -> Result<Resume, VolumeError> {
        self.hold_as(false).await
    }

    async fn hold_as(&self, released: bool) -> Result<Resume, VolumeError> {
        let _change = self.shared.change.lock().await;
        self.confirm().await?;
        let host = &self.host;
        let edit = |base: &Manifest| {
            let sections = host.held_as(&base.sections, released);
            let is_done =
                released && base.is_released() && self.properties_after(base) == base.sections.properties;
            (!is_done).then(|| Manifest { sections, ..base.clone() })
        };
        let published = self.publish(&NewPacks::default(), edit).await?;
        Ok(published.map_or_else(|| self.state(), |published| self.resume_published(&published)))
    }
}
