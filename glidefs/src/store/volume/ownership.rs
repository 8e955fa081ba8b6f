//! Which host has a volume: opening a volume, taking one over, releasing one.
//!
//! Owns when this host becomes the holder. Does not own what a manifest says of the holder (`host/holder`), how a writer gives up
//! a lost volume (`writer/loss`), nor how a volume ends (`delete`). Invariant: only a deliberate takeover opens a volume that
//! another host has not released.

use std::sync::Arc;
use std::time::Duration;

use super::error::VolumeError;
use super::host::EncodedManifest;
use super::limits::ROUNDS_MAX;
use super::types::Resume;
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::{Manifest, NameRecord};
use crate::store::ids::{StoreName, VolumeId};
use crate::store::key::Key;

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
            if let Some(writer) = self.create_newest(self.host.next_of(newest)).await? {
                return Ok(writer);
            }
        }
        Err(VolumeError::Contended { volume })
    }

    /// Takes a volume with a manifest whose number this host has just read to be free. `None` when the manifest is not the newest:
    /// this process may have stood still since the reading, so that others took the number and higher ones, and garbage
    /// collection freed the number again.
    ///
    /// The writer before may stand still for any time, and its clock as well, and then create the same number. So a fence comes
    /// before the manifest: garbage collection never frees a number with a fence, and that writer finds the manifest.
    ///
    /// # Errors
    /// [`VolumeError::Deleted`] when garbage collection removed the whole volume meanwhile.
    pub(super) async fn create_newest(
        &self,
        manifest: Manifest,
    ) -> Result<Option<VolumeWriter>, VolumeError> {
        let Manifest { volume, number, created_unix_millis, .. } = manifest;
        let (host, begun) = (&self.host, self.now());
        let encoded = EncodedManifest::of(manifest)?;
        let fence = Key::Fence(volume, number);
        let _: Created = host.store.mark(&fence, NameRecord { volume, created_unix_millis }).await?;
        if host.create_noted(&encoded).await? == Created::Existed
            || host.store.newest_manifest(volume, Some(number)).await?.is_some()
        {
            return Ok(None);
        }
        // Other manifests prove nothing: they may have arrived after the end of the volume.
        if host.store.is_buried(volume).await? {
            host.store.delete(&[Key::Manifest(volume, number)]).await?;
            return Err(VolumeError::Deleted { volume });
        }
        Ok(Some(VolumeWriter::new(Arc::clone(host), encoded.manifest, begun)))
    }

    pub(super) fn now(&self) -> Duration {
        self.host.options.clock.since_boot()
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
        Ok(published.map_or_else(|| self.state(), |published| self.state_with(Some(published.bytes))))
    }
}
