//! Which manifest is the newest of a volume, and whether this writer may go on from that manifest.
//!
//! Owns the questions to the store, what follows when the store has another manifest than this writer expects, and how a writer gives
//! its volume up. Does not own where notes are kept (`notes`). Invariants: the number this writer believes in was the newest when the
//! store said so; a writer goes on only from manifests that this host noted before the store was asked to create them; a writer that
//! lost its volume never writes the volume again in the same epoch of the same process. The writer's identity in a manifest proves
//! nothing: a copy of this host has the same identity.

use std::sync::Arc;
use std::time::Duration;

use super::VolumeWriter;
use crate::locks::MutexExt;
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::Manifest;
use crate::store::key::{Folder, Key};
use crate::store::volume::error::VolumeError;
use crate::store::volume::limits::TRUST_TIME_MAX;
use crate::store::volume::notes::{Divergence, Loss};
use crate::store::volume::types::{Fence, Taker, next_number};
use crate::store::volume::view::rows::LoadedManifest;

impl VolumeWriter {
    /// Whether another writer may have created the next number and garbage collection may have removed that manifest since: then
    /// creating the number again would succeed and hide the other writer.
    fn is_stale(&self) -> bool {
        let known = self.head().known;
        known.is_none_or(|known| self.now().saturating_sub(known) > TRUST_TIME_MAX)
    }

    /// Makes sure that this writer may write. Makes no request if the store answered lately.
    ///
    /// # Errors
    /// As [`Self::confirm`].
    pub async fn refresh(&self) -> Result<(), VolumeError> {
        self.writable()?;
        if self.is_stale() {
            self.check_newest().await?;
        }
        Ok(())
    }

    /// Asks the store whether the volume still belongs to this writer: one request.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`] and [`VolumeError::Deleted`] when the volume does not; other errors when the store cannot say.
    pub async fn confirm(&self) -> Result<(), VolumeError> {
        self.writable()?;
        self.check_newest().await
    }

    /// Asks the store whether the manifest of this writer is the newest: one request.
    pub(in crate::store::volume) async fn check_newest(&self) -> Result<(), VolumeError> {
        let (id, number, begun) = (self.shared.id, self.head().number, self.now());
        let before = (number > 1).then(|| Key::Manifest(id, number - 1));
        let listing = self.host.store.list(Folder::Manifests(id), before.as_ref()).await?;
        let newest = listing.last().map(|object| &object.key);
        match newest {
            Some(Key::Manifest(_, newest)) if *newest == number => {
                self.head().found(begun);
                Ok(())
            }
            Some(Key::Manifest(_, newest)) if *newest > number => {
                Box::pin(self.adopt_or_yield(*newest, number, begun)).await.map(drop)
            }
            // Rare, with a large future: boxed, so that futures which wait for a writer stay small.
            _ => Box::pin(self.look_past_listing(number, begun)).await,
        }
    }

    /// As [`Self::check_newest`], when the listing shows neither manifest `number` of this writer nor a newer one. A listing does
    /// not decide whether a volume exists: an old listing, or one of a server that answers wrongly, would end a healthy export.
    async fn look_past_listing(&self, number: u64, begun: Duration) -> Result<(), VolumeError> {
        let (id, store) = (self.shared.id, &self.host.store);
        let (found, hash) = match store.manifest_or_newer(id, number).await {
            Err(error) if error.is_missing() => return Err(self.judge_missing(number, begun, error).await),
            found => found?,
        };
        if found.number > number {
            return self.adopt_or_yield(found.number, number, begun).await.map(drop);
        }
        if self.host.options.notes.intended(id, number, &hash) == Some(false) {
            return Err(self.lose(self.foreign(&found)).await);
        }
        // The manifest with which another writer takes the volume has a fence, and stays.
        match store.head(&Key::Manifest(id, next_number(number))).await {
            Ok(_) => self.adopt_or_yield(next_number(number), number, begun).await.map(drop),
            Err(error) if error.is_missing() => {
                self.head().found(begun);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What it means that manifest `number` of this writer is `missing`, although garbage collection never removes the newest
    /// manifest of an existing volume. Only an object that says so ends the export: a grave at once; an older manifest,
    /// which a store that went back has, after a time. A store in which nothing is found proves nothing.
    async fn judge_missing(&self, number: u64, begun: Duration, missing: StoreError) -> VolumeError {
        let (id, store) = (self.shared.id, &self.host.store);
        match store.is_buried(id).await {
            Ok(true) => return self.stop_until_restart(Loss::Deleted),
            Ok(false) => {}
            Err(error) => return error.into(),
        }
        if !self.believes_missing(number, begun) {
            return missing.into();
        }
        match store.latest_manifest_hashed(id, None).await {
            Ok(Some((older, _))) if older.number < number => self.stop_until_restart(self.foreign(&older)),
            Ok(_) => missing.into(),
            Err(error) => error.into(),
        }
    }

    /// Whether the store is believed that a manifest is missing which it must have: it has said so for
    /// [`crate::store::retry::RetryPolicy::missing_time`]. `number`: the newest manifest when the question began, at `begun`.
    fn believes_missing(&self, number: u64, begun: Duration) -> bool {
        let mut head = self.head();
        if head.number != number {
            return false;
        }
        let since = *head.missing_since.get_or_insert(begun);
        begun.saturating_sub(since) >= self.host.store.inner.options.retry.missing_time
    }

    /// Decides about manifest `number`, which the store has, although this writer was at manifest `before` when the question
    /// began. If this host noted the manifest, only the answer to its creation was lost, and the writer goes on from the
    /// manifest. Otherwise the volume belongs to another writer, or has two histories.
    ///
    /// Commits may overtake the question and drop the note. No number is given twice: a writer that passed `number` since
    /// `before` has created that manifest, or adopted that manifest by its note.
    pub(super) async fn adopt_or_yield(
        &self,
        number: u64,
        before: u64,
        begun: Duration,
    ) -> Result<Arc<Manifest>, VolumeError> {
        let found = self.host.store.manifest_or_newer(self.shared.id, number).await;
        // The store contradicts itself, or is away: the next change asks anew.
        let (manifest, hash) = found.inspect_err(|_| self.head().known = None)?;
        if manifest.sections.deleted.is_some() {
            // Garbage collection will remove all that says so; that another writer took the volume over before stays true.
            if manifest.epoch > self.head().own.epoch {
                self.note_loss(&self.foreign(&manifest)).await;
            }
            return Err(self.stop_until_restart(Loss::Deleted));
        }
        let found = Fence { epoch: manifest.epoch, writer: manifest.writer };
        let noted = self.host.options.notes.intended(self.shared.id, manifest.number, &hash) == Some(true);
        let head = self.head().number;
        let is_passed = manifest.number > before && manifest.number <= head;
        let is_known = noted || is_passed;
        let is_own = found == self.head().own;
        if is_own
            && !is_known
            && let Some(later) = self.noted_above(manifest.number, before, begun).await?
        {
            return Box::pin(self.adopt_or_yield(later, before, begun)).await;
        }
        if !(is_own && is_known) {
            return Err(self.lose(self.foreign(&manifest)).await);
        }
        let manifest = Arc::new(manifest);
        let mut head = self.head();
        if manifest.number > head.number {
            head.follow(&manifest, Some(begun));
            self.host.reader.metadata.put_manifest(&manifest);
        }
        Ok(manifest)
    }

    /// The highest number above `number` that this host has noted and the store has. Used when the note on `number` is gone:
    /// notes on only the last two numbers are kept, and a host that noted a number had all manifests below.
    async fn noted_above(
        &self,
        number: u64,
        before: u64,
        begun: Duration,
    ) -> Result<Option<u64>, VolumeError> {
        let Some(highest) = self.host.options.notes.highest(self.shared.id) else { return Ok(None) };
        for later in [highest, highest.saturating_sub(1)].into_iter().filter(|later| *later > number) {
            match self.host.store.head(&Key::Manifest(self.shared.id, later)).await {
                Ok(_) => return Ok(Some(later)),
                // The store need not have the highest one, but the one below.
                Err(error) if error.is_missing() => {
                    if later < highest && !self.believes_missing(before, begun) {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The newest manifest, if the manifest is in memory. Locks the cache, which all volumes share, only after a change.
    pub(super) fn loaded_here(&self) -> Option<Arc<LoadedManifest>> {
        let number = self.head().number;
        let mut here = self.shared.here.lock_whole();
        let known = here.upgrade().filter(|loaded| loaded.manifest.number == number);
        known.or_else(|| {
            let loaded = self.host.reader.metadata.manifest_here(self.shared.id, number)?;
            *here = Arc::downgrade(&loaded);
            Some(loaded)
        })
    }

    /// The manifest that this writer believes to be the newest.
    pub(in crate::store::volume) async fn manifest(&self) -> Result<Arc<Manifest>, VolumeError> {
        Ok(self.load_from(&self.host.store).await?.manifest.clone())
    }

    pub(super) async fn load_from(&self, store: &Store) -> Result<Arc<LoadedManifest>, VolumeError> {
        let (id, number) = (self.shared.id, self.head().number);
        let load = || {
            let (store, notes) = (store.clone(), Arc::clone(&self.host.options.notes));
            async move {
                let (manifest, hash) = store.manifest_hashed(id, number).await?;
                match notes.intended(id, number, &hash) {
                    Some(false) => Err(StoreError::NotNoted { key: Key::Manifest(id, number).to_string() }),
                    _ => Ok(manifest),
                }
            }
        };
        match self.host.reader.metadata.manifest(id, number, load).await {
            Err(error) if matches!(*error, StoreError::NotNoted { .. }) => {
                // The store has another manifest of this number than this host created.
                let (found, _) = Box::pin(self.host.store.manifest_hashed(id, number)).await?;
                Err(self.lose(self.foreign(&found)).await)
            }
            manifest => Ok(manifest?),
        }
    }

    /// An error when this writer knows that the volume is lost.
    pub(in crate::store::volume) fn writable(&self) -> Result<(), VolumeError> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost(loss)))
    }

    fn lost(&self, loss: Loss) -> VolumeError {
        match loss {
            Loss::Fenced(taker) => VolumeError::Fenced(taker),
            Loss::Deleted => VolumeError::Deleted { volume: self.shared.id },
            Loss::Diverged(divergence) => VolumeError::Diverged { volume: self.shared.id, divergence },
        }
    }

    /// Gives the volume up for good and notes the loss: after a restart, this host must not take its local data for the newest.
    pub(super) async fn lose(&self, loss: Loss) -> VolumeError {
        self.head().lost = Some(loss.clone());
        tracing::warn!(volume = %self.shared.id, own = %self.head().own, loss = ?loss, "a volume is not this writer's any more");
        self.note_loss(&loss).await;
        self.lost(loss)
    }

    /// Notes a loss for the next process.
    pub(super) async fn note_loss(&self, loss: &Loss) {
        let epoch = self.head().own.epoch;
        if let Err(error) = self.host.options.notes.lose(self.shared.id, epoch, loss).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(volume = %self.shared.id, error, "the loss of a volume could not be noted; the next start finds the loss again");
        }
    }

    /// Gives the volume up in this process only. The volume is deleted, which may be undone, or the store is behind this host's
    /// knowledge: this may be another store, or an old copy of the store. The next process asks again.
    pub(in crate::store::volume) fn stop_until_restart(&self, loss: Loss) -> VolumeError {
        tracing::warn!(volume = %self.shared.id, loss = ?loss, "a volume is deleted from the store, or the store is behind what this host knows");
        self.head().lost = Some(loss.clone());
        self.lost(loss)
    }

    /// The loss that `found` proves: a manifest in the store that this host did not create.
    pub(super) fn foreign(&self, found: &Manifest) -> Loss {
        let head = self.head();
        if found.epoch > head.own.epoch {
            return Loss::Fenced(Taker::of(found));
        }
        Loss::Diverged(Box::new(Divergence {
            number: head.number,
            cut: head.cut,
            found_number: found.number,
            found_cut: found.cut,
            found_unix_millis: found.created_unix_millis,
            found: Fence { epoch: found.epoch, writer: found.writer },
        }))
    }
}
