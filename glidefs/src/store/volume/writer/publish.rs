//! How the next manifest of a volume comes into the store.
//!
//! Owns the race for the next number. Does not own what a manifest lists, nor what follows when another manifest has the number
//! (`newest`). Invariant: a manifest is noted before the store is asked to create the manifest.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::VolumeWriter;
use super::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::{Manifest, Sections};
use crate::store::volume::error::VolumeError;
use crate::store::volume::host::encode;
use crate::store::volume::limits::{GRACE_MIN, ROUNDS_MAX};
use crate::store::volume::types::{Resume, next_number};

/// The next manifest, made before all packs of the manifest are in the store.
pub(in crate::store::volume) struct Draft {
    pub manifest: Manifest,
    pub encoded: Bytes,
}

/// A manifest that is in the store, with its bytes.
pub(in crate::store::volume) struct Published {
    pub manifest: Arc<Manifest>,
    pub encoded: Bytes,
}

impl VolumeWriter {
    /// Creates the next manifest: `edit` of the newest one, which may be newer than the caller knows. Number, fence, date and
    /// properties are filled in here. `None` when `edit` returns `None`, because the change does not fit the newest manifest.
    ///
    /// The caller holds `self.shared.change`.
    pub(in crate::store::volume) async fn publish(
        &self,
        uploads: &NewPacks,
        edit: impl Fn(&Manifest) -> Option<Manifest> + Send,
    ) -> Result<Option<Published>, VolumeError> {
        self.publish_from(None, uploads, edit).await
    }

    /// The manifest that [`Self::publish`] would make after `base`.
    pub(in crate::store::volume) fn draft(
        &self,
        base: &Manifest,
        edit: impl Fn(&Manifest) -> Option<Manifest>,
    ) -> Result<Option<Draft>, VolumeError> {
        let Some(manifest) = edit(base) else { return Ok(None) };
        let own = self.head().own;
        let properties = self.properties_after(base);
        let manifest = Manifest {
            number: next_number(base.number),
            epoch: own.epoch,
            writer: own.writer,
            created_unix_millis: self.host.options.clock.unix_millis(),
            sections: Sections { properties, ..manifest.sections },
            ..manifest
        };
        let encoded = encode(&manifest)?;
        Ok(Some(Draft { manifest, encoded }))
    }

    /// As [`Self::publish`], beginning with the manifest `noted`, if any, which the caller has made with the same `edit` and noted
    /// already.
    pub(in crate::store::volume) async fn publish_from(
        &self,
        mut noted: Option<Draft>,
        uploads: &NewPacks,
        edit: impl Fn(&Manifest) -> Option<Manifest> + Send,
    ) -> Result<Option<Published>, VolumeError> {
        self.refresh().await?;
        for _ in 0..ROUNDS_MAX {
            let base = self.manifest().await?;
            let noted = noted.take().filter(|noted| noted.manifest.number == next_number(base.number));
            let is_noted = noted.is_some();
            let draft = if is_noted { noted } else { self.draft(&base, &edit)? };
            let Some(Draft { manifest, encoded }) = draft else { return Ok(None) };
            let begun = self.now();
            uploads.check_age(&base, begun)?;
            if !is_noted {
                self.host.note_manifest(&manifest, &encoded).await?;
            }
            uploads.look_again().await?;
            if self.host.create_after_note(&manifest, &encoded).await? == Created::Created {
                let manifest = Arc::new(manifest);
                self.published(&manifest, begun).await?;
                return Ok(Some(Published { manifest, encoded }));
            }
            let found = Box::pin(self.adopt_or_yield(manifest.number, base.number, begun)).await?;
            if *found == manifest {
                return Ok(Some(Published { manifest: found, encoded }));
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

    pub(in crate::store::volume) fn resume_published(&self, published: &Published) -> Resume {
        self.resume_from(&self.head().clone(), Some(published.encoded.clone()))
    }
}
