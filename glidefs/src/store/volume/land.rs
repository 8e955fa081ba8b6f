//! Who writes a volume, and how its next manifest comes into the store.
//!
//! Owns the race for the next number, and what follows when it is lost. Does not own what a manifest lists, nor where notes are
//! kept (`notes`). Invariant: a writer goes on only from manifests that this host noted before the store was asked to create
//! them. The name of a writer is not enough: a copy of the host has the same.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::commit::blocking;
use super::host::{ROUNDS_MAX, next};
use super::notes::{Divergence, Loss, ManifestHash};
use super::{CutSource, Fence, GRACE_MIN, TRUST_TIME_MAX, UPLOAD_TIME_MAX, Volume, VolumeError};
use crate::store::client::Created;
use crate::store::error::unfit;
use crate::store::format::{Manifest, PackRef};
use crate::store::ids::PackId;
use crate::store::key::{Folder, Key};

/// Why a cut is not stored without sectors that are there after all.
const BACK: &str = "what the disk did not read can be read again";

/// A manifest that came into the store.
pub(super) struct Landed {
    pub manifest: Arc<Manifest>,
    pub encoded: Bytes,
}

/// What a manifest is to list that no manifest may list yet: packs, each with the time at which its upload was begun, or at which
/// the pack was in use.
#[derive(Default)]
pub(super) struct Uploads {
    packs: Vec<(PackRef, Duration)>,
    /// The cut of which the manifest gives up sectors that may be readable again.
    gives_up: Option<Arc<dyn CutSource>>,
}

impl Uploads {
    /// None of `packs` counted as unused before `begun`.
    pub fn since(begun: Duration, packs: impl IntoIterator<Item = PackRef>) -> Self {
        packs.into_iter().map(|pack| (pack, begun)).collect()
    }

    pub fn packs(&self) -> impl ExactSizeIterator<Item = &PackRef> {
        self.packs.iter().map(|(pack, _)| pack)
    }

    /// The same for a manifest that gives up sectors of `cut`.
    pub fn giving_up(self, cut: Arc<dyn CutSource>) -> Self {
        Self { gives_up: Some(cut), ..self }
    }

    /// An error when what the manifest would give up can be read again. Asked with the note on disk: where notes and cuts share a
    /// disk that was away, a note that waited for the disk says that the disk is back.
    async fn look_again(&self) -> Result<(), VolumeError> {
        let Some(cut) = self.gives_up.clone() else { return Ok(()) };
        let look = move || if cut.has_come_back() { Err(VolumeError::cut(BACK.into())) } else { Ok(()) };
        blocking(look).await
    }

    /// An error when a pack, other than those that `base` keeps, is too old for a manifest after `base` to be the first that names
    /// the pack.
    fn check_age(&self, base: &Manifest, now: Duration) -> Result<(), VolumeError> {
        let too_old = |begun: Duration| {
            let elapsed = now.saturating_sub(begun);
            (elapsed > UPLOAD_TIME_MAX).then_some(elapsed)
        };
        if self.packs.iter().all(|(_, begun)| too_old(*begun).is_none()) {
            return Ok(());
        }
        let kept = kept_by(base);
        let others = self.packs.iter().filter(|(pack, _)| !kept.contains(&pack.pack));
        match others.filter_map(|(_, begun)| too_old(*begun)).max() {
            Some(elapsed) => Err(VolumeError::TooSlow { elapsed }),
            None => Ok(()),
        }
    }
}

impl FromIterator<(PackRef, Duration)> for Uploads {
    fn from_iter<T: IntoIterator<Item = (PackRef, Duration)>>(packs: T) -> Self {
        Self { packs: packs.into_iter().collect(), gives_up: None }
    }
}

/// The packs that garbage collection keeps for `manifest` while that is the newest one.
fn kept_by(manifest: &Manifest) -> HashSet<PackId> {
    let listed = manifest.packs.iter().map(|pack| pack.pack);
    listed.chain(manifest.sections.uploaded.iter().copied()).collect()
}

impl Volume {
    /// An error when this writer knows that it is none any more.
    pub(super) fn writable(&self) -> Result<(), VolumeError> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost(loss)))
    }

    fn lost(&self, loss: Loss) -> VolumeError {
        match loss {
            Loss::Fenced(fence) => VolumeError::Fenced(fence),
            Loss::Deleted => VolumeError::Deleted { volume: self.0.id },
            Loss::Diverged(divergence) => VolumeError::Diverged { volume: self.0.id, divergence },
        }
    }

    /// Gives the volume up, which this writer deleted, or of which the store has nothing at all.
    pub(super) fn lose_deleted(&self) {
        self.head().lost = Some(Loss::Deleted);
    }

    /// Gives the volume up for good, and has that noted: a restart must not serve what is here for the newest.
    async fn lose(&self, loss: Loss) -> VolumeError {
        let own = {
            let mut head = self.head();
            head.lost = Some(loss.clone());
            head.own
        };
        tracing::warn!(volume = %self.0.id, %own, loss = ?loss, "a volume is not this writer's any more");
        if let Err(error) = self.0.host.options.notes.lose(self.0.id, own.epoch, &loss).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(volume = %self.0.id, error, "the loss of a volume could not be written down; a restart finds it again");
        }
        self.lost(loss)
    }

    /// Gives the volume up in this process only: the store is behind what this host knows, or has nothing of the volume, so this may
    /// be another store or an older copy of the store. The next process asks again.
    fn stop_until_restart(&self, loss: Loss) -> VolumeError {
        tracing::warn!(volume = %self.0.id, loss = ?loss, "the store is behind what this host knows of a volume");
        self.head().lost = Some(loss.clone());
        self.lost(loss)
    }

    fn now(&self) -> Duration {
        self.0.host.options.clock.since_boot()
    }

    /// Whether the manifest of this writer can have been followed by another one that is gone again.
    fn is_stale(&self) -> bool {
        let known = self.head().known;
        known.is_none_or(|known| self.now().saturating_sub(known) > TRUST_TIME_MAX)
    }

    /// Makes sure that this writer may write: without a request, if it heard from the store lately.
    pub(super) async fn refresh(&self) -> Result<(), VolumeError> {
        self.writable()?;
        if self.is_stale() {
            self.check_newest().await?;
        }
        Ok(())
    }

    /// Asks the store whether the volume is still this writer's: one request.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`] and [`VolumeError::Deleted`] when it is not; others when the store cannot say.
    pub async fn confirm(&self) -> Result<(), VolumeError> {
        self.writable()?;
        self.check_newest().await
    }

    /// Looks whether the manifest of this writer is the newest: one request.
    pub(super) async fn check_newest(&self) -> Result<(), VolumeError> {
        let (id, number, begun) = (self.0.id, self.head().number, self.now());
        let before = (number > 1).then(|| Key::Manifest(id, number - 1));
        let listing = self.0.host.store.list(Folder::Manifests(id), before.as_ref()).await?;
        let newest = listing.objects.last().map(|object| &object.key);
        match newest {
            Some(Key::Manifest(_, newest)) if *newest == number => {
                self.head().known = Some(begun);
                self.0.host.options.notes.is_current(id);
                Ok(())
            }
            Some(Key::Manifest(_, newest)) if *newest > number => {
                Box::pin(self.adopt_or_yield(*newest, number, begun)).await.map(drop)
            }
            // Rare, and large: boxed, so that what waits for a writer stays small.
            _ => Box::pin(self.look_past_listing(number, begun)).await,
        }
    }

    /// As [`Self::check_newest`], where the listing does not show manifest `number` of this writer, nor a newer one. Whether a
    /// volume exists is not decided by a listing: one from before the last creations, or of a server that answers wrongly,
    /// would end an export that is in order.
    async fn look_past_listing(&self, number: u64, begun: Duration) -> Result<(), VolumeError> {
        let store = &self.0.host.store;
        match store.manifest_hashed(self.0.id, number).await {
            Ok((found, hash)) => {
                if self.0.host.options.notes.intended(self.0.id, number, &hash) == Some(false) {
                    return Err(self.lose(self.foreign(&found)).await);
                }
            }
            Err(error) if error.is_missing() => return self.went_back(number, begun).await,
            Err(error) => return Err(error.into()),
        }
        // Older manifests are removed before newer ones, so there is no gap behind one that is there.
        match store.head(&Key::Manifest(self.0.id, next(number))).await {
            Ok(_) => self.adopt_or_yield(next(number), number, begun).await.map(drop),
            Err(error) if error.is_missing() => {
                self.head().known = Some(begun);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What it means that manifest `number` of this writer is gone: garbage collection never removes the newest of a volume that
    /// exists.
    async fn went_back(&self, number: u64, begun: Duration) -> Result<(), VolumeError> {
        let (id, store) = (self.0.id, &self.0.host.store);
        if store.tombstone(id).await?.is_some() {
            return Err(self.lose(Loss::Deleted).await);
        }
        match store.latest_manifest_hashed(id, None).await? {
            Some((manifest, _)) if manifest.number < number => {
                Err(self.stop_until_restart(self.foreign(&manifest)))
            }
            Some((manifest, _)) => self.adopt_or_yield(manifest.number, number, begun).await.map(drop),
            None => Err(self.stop_until_restart(Loss::Deleted)),
        }
    }

    /// Goes on from manifest `number`, which is there though this writer, when the question began, was at manifest `before`: if
    /// this host noted that manifest, so that only the answer was lost. Otherwise the volume is another writer's, or has two
    /// histories.
    ///
    /// Commits may overtake the question, and drop the note. A number is given once: a writer that passed `number` since
    /// `before` created that manifest, or adopted that manifest with its note.
    async fn adopt_or_yield(
        &self,
        number: u64,
        before: u64,
        begun: Duration,
    ) -> Result<Arc<Manifest>, VolumeError> {
        let (manifest, hash) = match self.0.host.store.manifest_hashed(self.0.id, number).await {
            Ok(found) => found,
            Err(error) if error.is_missing() => self.followed(number).await?,
            Err(error) => return Err(error.into()),
        };
        if manifest.sections.deleted.is_some() {
            return Err(self.lose(Loss::Deleted).await);
        }
        let found = Fence { epoch: manifest.epoch, writer: manifest.writer };
        let noted = self.0.host.options.notes.intended(self.0.id, manifest.number, &hash) == Some(true);
        let head = self.head().number;
        let is_passed = manifest.number > before && manifest.number <= head;
        let is_known = noted || is_passed;
        let is_own = found == self.head().own;
        if is_own
            && !is_known
            && let Some(later) = self.noted_above(manifest.number).await?
        {
            return Box::pin(self.adopt_or_yield(later, before, begun)).await;
        }
        if !(is_own && is_known) {
            return Err(self.lose(self.foreign(&manifest)).await);
        }
        let manifest = Arc::new(manifest);
        if manifest.number > self.head().number {
            self.note_adopted(&manifest, hash).await;
        }
        let mut head = self.head();
        if manifest.number > head.number {
            head.follow(&manifest, Some(begun));
            self.0.host.metadata.put_manifest(&manifest);
        }
        Ok(manifest)
    }

    /// The highest number above `number` of which this host noted a manifest and the store has one. A host that noted a number
    /// had all manifests below, and only the notes on the last two numbers are kept.
    async fn noted_above(&self, number: u64) -> Result<Option<u64>, VolumeError> {
        let Some(highest) = self.0.host.options.notes.highest(self.0.id) else { return Ok(None) };
        for later in [highest, highest.saturating_sub(1)].into_iter().filter(|later| *later > number) {
            match self.0.host.store.head(&Key::Manifest(self.0.id, later)).await {
                Ok(_) => return Ok(Some(later)),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Notes `manifest`, which may have counted as noted without a note of its own: that ends with the next note.
    async fn note_adopted(&self, manifest: &Manifest, hash: ManifestHash) {
        let noted = self.0.host.options.notes.intend(manifest.volume, manifest.number, hash).await;
        if let Err(error) = noted {
            // What made the manifest count as noted stays as well.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(volume = %manifest.volume, error, "a manifest that was found could not be noted");
        }
    }

    /// The newest manifest of a volume whose manifest `number` was removed.
    async fn followed(&self, number: u64) -> Result<(Manifest, ManifestHash), VolumeError> {
        match self.0.host.store.latest_manifest_hashed(self.0.id, Some(number)).await? {
            Some(found) => Ok(found),
            None => Err(self.lose(Loss::Deleted).await),
        }
    }

    /// What it means that the store goes on with `found`, which this host did not create.
    fn foreign(&self, found: &Manifest) -> Loss {
        let head = self.head();
        if found.epoch > head.own.epoch {
            return Loss::Fenced(Fence { epoch: found.epoch, writer: found.writer });
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

    /// Gives the volume up, of which the store has another manifest `number` than this host created.
    pub(super) async fn lose_to(&self, number: u64) -> VolumeError {
        match self.0.host.store.manifest_hashed(self.0.id, number).await {
            Ok((found, _)) => self.lose(self.foreign(&found)).await,
            Err(error) => error.into(),
        }
    }

    /// Puts a new state into the store: what `edit` makes of the newest one, which may be newer than the caller knows. The
    /// numbers and the writer are filled in here. `None` from `edit`, or here: it does not fit that state.
    ///
    /// `self.0.change` is held.
    pub(super) async fn land(
        &self,
        uploads: &Uploads,
        edit: impl Fn(&Manifest) -> Option<Manifest> + Send,
    ) -> Result<Option<Landed>, VolumeError> {
        self.refresh().await?;
        for _ in 0..ROUNDS_MAX {
            let base = self.manifest().await?;
            let Some(manifest) = edit(&base) else { return Ok(None) };
            let own = self.head().own;
            let manifest = Manifest {
                number: next(base.number),
                epoch: own.epoch,
                writer: own.writer,
                created_unix_millis: self.0.host.options.clock.unix_millis(),
                ..manifest
            };
            let key = Key::Manifest(manifest.volume, manifest.number);
            let encoded = manifest.encode().map_err(|source| unfit(&key, source))?;
            let encoded = Bytes::from(encoded);
            let begun = self.now();
            uploads.check_age(&base, begun)?;
            self.0.host.note_manifest(&manifest, &encoded).await?;
            uploads.look_again().await?;
            if self.0.host.create_after_note(&manifest, &encoded).await? == Created::Created {
                let manifest = Arc::new(manifest);
                self.landed(&manifest, begun).await?;
                return Ok(Some(Landed { manifest, encoded }));
            }
            let found = Box::pin(self.adopt_or_yield(manifest.number, base.number, begun)).await?;
            if *found == manifest {
                return Ok(Some(Landed { manifest: found, encoded }));
            }
        }
        Err(VolumeError::Contended { volume: self.0.id })
    }

    /// Follows the creation of `manifest`, begun at `begun`.
    async fn landed(&self, manifest: &Arc<Manifest>, begun: Duration) -> Result<(), VolumeError> {
        let now = self.now();
        let in_time = {
            let mut head = self.head();
            // The process may have stood still between the last check and the creation.
            let in_time = head.known.is_some_and(|known| now.saturating_sub(known) < GRACE_MIN / 2);
            head.follow(manifest, in_time.then_some(begun));
            in_time
        };
        self.0.host.metadata.put_manifest(manifest);
        if in_time { Ok(()) } else { self.check_newest().await }
    }
}
