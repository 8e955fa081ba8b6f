//! Manifests that came into the store after garbage collection had taken packs they name.
//!
//! Owns the look whether what a manifest names is there, and the way back. Does not own when a manifest counts as late (`land`).
//! Invariant: this writer goes on from no manifest that it finds in the store before everything is there that the manifest was
//! the first to name. What stands still for hours between a note and the answer of the store may be a process, a host or a
//! network, and the next process does not know for how long.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::host::{Host, next};
use super::land::kept_by;
use super::{Volume, VolumeError};
use crate::store::client::Created;
use crate::store::format::Manifest;
use crate::store::ids::{PackId, VolumeId};
use crate::store::key::Key;

/// Packs that are asked for at once.
const HEADS_MAX: usize = 16;

impl Host {
    /// Whether all of `packs` are in the store: one request each, up to the first that is not.
    pub async fn are_there(
        &self,
        packs: impl IntoIterator<Item = (VolumeId, PackId)>,
    ) -> Result<bool, VolumeError> {
        let keys: Vec<Key> = packs.into_iter().map(|(volume, pack)| Key::Pack(volume, pack)).collect();
        let store = self.store.clone();
        let heads = stream::iter(keys).map(move |key| {
            let store = store.clone();
            async move { store.head(&key).await.map(drop) }
        });
        // Boxed, so that the future can move between threads.
        let found: Result<(), _> = heads.buffer_unordered(HEADS_MAX).boxed().try_collect().await;
        match found {
            Ok(()) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Volume {
    /// Where `found`, the newest manifest, which this writer is about to go on from, names a pack that is not there: goes back to the
    /// content of the manifest before, in a manifest that follows `found`, and returns that one. One request for each pack that
    /// is new in `found`, and at most one for the manifest before; on the way back, one for each pack of that.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when the manifest before, or a pack of it, is gone as well.
    pub(super) async fn undo_incomplete(
        &self,
        found: &Manifest,
    ) -> Result<Option<Arc<Manifest>>, VolumeError> {
        let host = &self.0.host;
        let begun = self.now();
        let base = self.before(found).await?;
        let known = base.as_deref().map(kept_by).unwrap_or_default();
        let listed = found.packs.iter().map(|pack| (pack.volume, pack.pack));
        let uploaded = found.sections.uploaded.iter().map(|pack| (self.id(), *pack));
        let new = listed.chain(uploaded).filter(|(_, pack)| !known.contains(pack));
        if host.are_there(new).await? {
            return Ok(None);
        }
        let gone = || VolumeError::Gone { volume: self.id() };
        let base = base.ok_or_else(gone)?;
        if !host.are_there(base.packs.iter().map(|pack| (pack.volume, pack.pack))).await? {
            return Err(gone());
        }
        let undone = Manifest {
            number: next(found.number),
            epoch: found.epoch,
            writer: found.writer,
            generation: found.generation,
            created_unix_millis: host.options.clock.unix_millis(),
            sections: host.held_as(&base.sections, false),
            ..(*base).clone()
        };
        tracing::warn!(volume = %self.id(), number = found.number, "a manifest came so late that its packs are gone, and is undone");
        if host.create_manifest(&undone).await? == Created::Created {
            let undone = Arc::new(undone);
            self.follow(&undone, begun);
            return Ok(Some(undone));
        }
        // Another writer, or an earlier try of this one.
        Box::pin(self.adopt_or_yield(undone.number, found.number, begun)).await.map(Some)
    }

    /// The manifest before `found`, if it is still there.
    async fn before(&self, found: &Manifest) -> Result<Option<Arc<Manifest>>, VolumeError> {
        let number = found.number.saturating_sub(1);
        if self.head().number == number {
            return match self.manifest().await {
                Err(error) if error.is_missing() => Ok(None),
                base => base.map(Some),
            };
        }
        match self.0.host.store.manifest_hashed(self.id(), number).await {
            Ok((base, _)) => Ok(Some(Arc::new(base))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
