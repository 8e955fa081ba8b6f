//! How the next manifest of a volume comes into the store.
//!
//! Owns the race for the next number, and the manifest that releases a volume or takes it back. Does not own what a manifest lists
//! otherwise, nor what follows when another manifest has the number (`newest`). Invariant: a manifest is noted before the store is
//! asked to create the manifest.

use std::sync::Arc;
use std::time::Duration;

use super::VolumeWriter;
use super::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::{Manifest, Sections};
use crate::store::volume::error::VolumeError;
use crate::store::volume::host::EncodedManifest;
use crate::store::volume::limits::{GRACE_MIN, ROUNDS_MAX};
use crate::store::volume::types::{Resume, next_number};

impl VolumeWriter {
    /// Creates the next manifest: `edit` of the newest one, which may be newer than the caller knows. Number, fence, date and
    /// properties are filled in here. `None` when `edit` returns `None`, because the change does not fit the newest manifest.
    ///
    /// The caller holds `self.shared.change`.
    pub(in crate::store::volume) async fn publish(
        &self,
        uploads: &NewPacks,
        edit: impl Fn(&Manifest) -> Option<Manifest> + Send,
    ) -> Result<Option<EncodedManifest>, VolumeError> {
        self.publish_from(None, uploads, edit).await
    }

    /// The manifest that [`Self::publish`] would make after `base`.
    pub(in crate::store::volume) fn draft(
        &self,
        base: &Manifest,
        edit: impl Fn(&Manifest) -> Option<Manifest>,
    ) -> Result<Option<EncodedManifest>, VolumeError> {
        let Some(manifest) = edit(base) else { return Ok(None) };
        let own = self.head().own;
        let properties = self.properties_after(base);
        let draft = Manifest {
            number: next_number(base.number),
            epoch: own.epoch,
            writer: own.writer,
            created_unix_millis: self.host.options.clock.unix_millis(),
            sections: Sections { properties, ..manifest.sections },
            ..manifest
        };
        EncodedManifest::of(draft).map(Some)
    }

    /// As [`Self::publish`], beginning with the manifest `noted`, if any, which the caller has made with the same `edit` and noted
    /// already.
    pub(in crate::store::volume) async fn publish_from(
        &self,
        mut noted: Option<EncodedManifest>,
        uploads: &NewPacks,
        edit: impl Fn(&Manifest) -> Option<Manifest> + Send,
    ) -> Result<Option<EncodedManifest>, VolumeError> {
        self.refresh().await?;
        for _ in 0..ROUNDS_MAX {
            let base = self.manifest().await?;
            let noted = noted.take().filter(|noted| noted.manifest.number == next_number(base.number));
            let is_noted = noted.is_some();
            let draft = if is_noted { noted } else { self.draft(&base, &edit)? };
            let Some(draft) = draft else { return Ok(None) };
            let begun = self.now();
            uploads.check_age(&base, begun)?;
            if !is_noted {
                self.host.note_manifest(&draft).await?;
            }
            uploads.look_again().await?;
            if self.host.create_after_note(&draft).await? == Created::Created {
                self.published(&draft.manifest, begun).await?;
                return Ok(Some(draft));
            }
            let found = Box::pin(self.adopt_or_yield(draft.manifest.number, base.number, begun)).await?;
            if found == draft.manifest {
                return Ok(Some(draft));
            }
        }
        Err(VolumeError::Contended { volume: self.shared.id })
    }

    /// Goes on from `manifest`, whose creation began at `begun`. Asks the store if the creation took so long that another writer
    /// may have come and gone.
    async fn published(&self, manifest: &Arc<Manifest>, begun: Duration) -> Result<(), VolumeError> {
        let now = self.now();
        let in_time = {
            let mut head = self.head();
            // The process may have stood still between the last check and the creation.
            let in_time = head.known.is_some_and(|known| now.saturating_sub(known) < GRACE_MIN / 2);
            head.follow(manifest, in_time.then_some(begun));
            in_time
        };
        self.host.reader.metadata.put_manifest(manifest);
        if in_time { Ok(()) } else { self.check_newest().await }
    }

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
