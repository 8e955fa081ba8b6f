//! A volume, as its single writer in this process.
//!
//! Owns which manifest is the newest, and how the next one comes into the store. Does not own what a manifest lists. Invariant:
//! the number this writer believes in was the newest when it said so, and nothing is built on another writer's state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::host::{Host, ROUNDS_MAX, next};
use super::view::View;
use super::{
    Fence, GRACE_MIN, LATE_TIME_MAX, ReadExtent, ReadOptions, Resume, TRUST_TIME_MAX, UPLOAD_TIME_MAX,
    VolumeError,
};
use crate::store::client::Created;
use crate::store::error::unfit;
use crate::store::format::{Manifest, PackRef};
use crate::store::ids::VolumeId;
use crate::store::key::{Folder, Key};
use crate::units::{SectorRange, Seq};

/// One volume, as its single writer in this process. Cheap to clone. One that is idle costs no request and a few hundred
/// bytes; its manifest and indexes are kept with those of all others, and fetched again when they were dropped.
#[derive(Clone, Debug)]
pub struct Volume(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub host: Arc<Host>,
    pub id: VolumeId,
    /// Held while the next manifest is made.
    pub change: tokio::sync::Mutex<()>,
    /// Held during a step of compaction.
    pub compaction: tokio::sync::Mutex<()>,
    head: Mutex<Head>,
}

/// What a writer knows of its volume. Its manifest is with the metadata of all volumes.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// This writer, in this epoch.
    pub own: Fence,
    pub number: u64,
    pub size_sectors: u64,
    pub cut: Seq,
    /// When the manifest of that number was the newest for sure. `None`: in an earlier life of this process.
    known: Option<Duration>,
    /// Why the volume cannot be written any more.
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug)]
enum Lost {
    Fenced(Fence),
    Deleted,
}

/// A manifest that came into the store.
pub(super) struct Landed {
    pub manifest: Arc<Manifest>,
    pub encoded: Bytes,
}

/// What is uploaded and not yet in any manifest.
#[derive(Debug)]
pub(super) struct Uploads {
    /// Before the first of them.
    pub begun: Duration,
    pub packs: Vec<PackRef>,
}

impl Head {
    /// Goes on with `manifest`.
    fn follow(&mut self, manifest: &Manifest, known: Option<Duration>) {
        self.number = manifest.number;
        self.size_sectors = manifest.size_sectors;
        self.cut = manifest.cut;
        self.known = known;
    }
}

impl Volume {
    /// A volume whose newest manifest is `manifest`, which this writer created after `begun`.
    pub(super) fn new(host: Arc<Host>, manifest: Arc<Manifest>, begun: Duration) -> Self {
        host.metadata.put_manifest(&manifest);
        let head = Head {
            own: Fence { epoch: manifest.epoch, writer: manifest.writer },
            number: manifest.number,
            size_sectors: manifest.size_sectors,
            cut: manifest.cut,
            known: Some(begun),
            lost: None,
        };
        Self::with(host, manifest.volume, head)
    }

    pub(super) fn resume(host: Arc<Host>, resume: &Resume) -> Self {
        let manifest = resume.manifest.as_ref().and_then(|bytes| Manifest::decode(bytes).ok());
        if let Some(manifest) = manifest
            && (manifest.volume, manifest.number) == (resume.volume, resume.number)
        {
            host.metadata.put_manifest(&Arc::new(manifest));
        }
        let head = Head {
            own: Fence { epoch: resume.epoch, writer: resume.writer },
            number: resume.number,
            size_sectors: resume.size_sectors,
            cut: resume.cut,
            known: None,
            lost: None,
        };
        Self::with(host, resume.volume, head)
    }

    fn with(host: Arc<Host>, id: VolumeId, head: Head) -> Self {
        let inner = Inner {
            host,
            id,
            change: tokio::sync::Mutex::default(),
            compaction: tokio::sync::Mutex::default(),
            head: Mutex::new(head),
        };
        Self(Arc::new(inner))
    }

    /// Which volume.
    pub fn id(&self) -> VolumeId {
        self.0.id
    }

    /// Size in the store, sectors.
    pub fn size_sectors(&self) -> u64 {
        self.head().size_sectors
    }

    /// Everything up to here is in the store.
    pub fn cut(&self) -> Seq {
        self.head().cut
    }

    /// This writer, and its epoch.
    pub fn writer(&self) -> Fence {
        self.head().own
    }

    /// Who took the volume over, if somebody did and this writer has noticed.
    pub fn fenced(&self) -> Option<Fence> {
        match self.head().lost {
            Some(Lost::Fenced(fence)) => Some(fence),
            _ => None,
        }
    }

    /// What to remember so that [`super::Volumes::resume`] can go on from here.
    pub fn state(&self) -> Resume {
        let head = self.head().clone();
        let manifest = self.0.host.metadata.manifest_here(self.0.id, head.number);
        let manifest = manifest.and_then(|manifest| manifest.encode().ok()).map(Bytes::from);
        self.resume_from(&head, manifest)
    }

    fn resume_from(&self, head: &Head, manifest: Option<Bytes>) -> Resume {
        Resume {
            volume: self.0.id,
            writer: head.own.writer,
            epoch: head.own.epoch,
            number: head.number,
            size_sectors: head.size_sectors,
            cut: head.cut,
            manifest,
        }
    }

    pub(super) fn resume_landed(&self, landed: &Landed) -> Resume {
        self.resume_from(&self.head().clone(), Some(landed.encoded.clone()))
    }

    /// Whether any pack may have something of `range`; if not, it is zero. Asks nobody: with a manifest that is not in memory
    /// the answer is yes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.view_here().is_none_or(|view| view.covers(range))
    }

    /// As [`View::fan_out`]; `None` when the manifest is not in memory.
    pub fn fan_out(&self) -> Option<usize> {
        self.view_here().map(|view| view.fan_out())
    }

    /// The state it has now. Fetches the manifest if it is not in memory.
    pub async fn view(&self) -> Result<View, VolumeError> {
        self.looking(|view: View| async { Ok(view) }).await
    }

    /// See [`View::read`].
    pub async fn read(&self, range: SectorRange, base_sectors: u64) -> Result<Bytes, VolumeError> {
        self.looking(|view: View| async move { view.read(range, base_sectors).await }).await
    }

    /// See [`View::read_extents`].
    pub async fn read_extents(
        &self,
        range: SectorRange,
        options: ReadOptions,
    ) -> Result<Vec<ReadExtent>, VolumeError> {
        self.looking(|view: View| async move { view.read_extents(range, options).await }).await
    }

    /// See [`View::mapped`].
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.looking(|view: View| async move { view.mapped(range).await }).await
    }

    /// What `look` finds in the state it has now. An object that is missing may have been made superfluous by another writer, or
    /// by a manifest of this one of which the answer was lost.
    async fn looking<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let number = self.head().number;
        let error = match self.look(&look).await {
            Err(error) if error.is_missing() => error,
            result => return result,
        };
        self.writable()?;
        match self.check_newest().await {
            Err(lost) if lost.is_fatal() => Err(lost),
            Ok(()) if self.head().number != number => self.look(&look).await,
            _ => Err(error),
        }
    }

    async fn look<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let manifest = self.manifest().await?;
        look(View { host: self.0.host.clone(), manifest }).await
    }

    fn view_here(&self) -> Option<View> {
        let number = self.head().number;
        let manifest = self.0.host.metadata.manifest_here(self.0.id, number)?;
        Some(View { host: self.0.host.clone(), manifest })
    }

    /// The manifest this writer believes in.
    pub(super) async fn manifest(&self) -> Result<Arc<Manifest>, VolumeError> {
        let (id, number) = (self.0.id, self.head().number);
        let store = &self.0.host.store;
        let load = || {
            let store = store.clone();
            async move { store.manifest(id, number).await }
        };
        Ok(self.0.host.metadata.manifest(id, number, load).await?)
    }

    pub(super) fn head(&self) -> MutexGuard<'_, Head> {
        self.0.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error when this writer knows that it is none any more.
    pub(super) fn writable(&self) -> Result<(), VolumeError> {
        match self.head().lost {
            None => Ok(()),
            Some(Lost::Fenced(fence)) => Err(VolumeError::Fenced(fence)),
            Some(Lost::Deleted) => Err(self.deleted()),
        }
    }

    fn deleted(&self) -> VolumeError {
        VolumeError::Deleted { volume: self.0.id }
    }

    pub(super) fn lose_deleted(&self) {
        self.head().lost = Some(Lost::Deleted);
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
        if self.is_stale() { self.check_newest().await } else { Ok(()) }
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
                Ok(())
            }
            Some(Key::Manifest(_, newest)) if *newest > number => {
                self.adopt_or_yield(*newest, begun).await.map(drop)
            }
            // Of a volume that exists, the newest manifest is never removed.
            _ => {
                self.lose_deleted();
                Err(self.deleted())
            }
        }
    }

    /// Goes on from manifest `number`, which is there though this writer did not know: if it is its own, of which the answer
    /// was lost. Otherwise the volume is another's.
    async fn adopt_or_yield(&self, number: u64, begun: Duration) -> Result<Arc<Manifest>, VolumeError> {
        let manifest = match self.0.host.store.manifest(self.0.id, number).await {
            Ok(manifest) => Arc::new(manifest),
            Err(error) if error.is_missing() => self.followed(number).await?,
            Err(error) => return Err(error.into()),
        };
        let found = Fence { epoch: manifest.epoch, writer: manifest.writer };
        let mut head = self.head();
        if found != head.own {
            tracing::warn!(volume = %self.0.id, own = %head.own, %found, "another writer took a volume over");
            head.lost = Some(Lost::Fenced(found));
            return Err(VolumeError::Fenced(found));
        }
        if manifest.number > head.number {
            head.follow(&manifest, Some(begun));
            self.0.host.metadata.put_manifest(&manifest);
        }
        Ok(manifest)
    }

    /// The newest manifest of a volume whose manifest `number` was removed.
    async fn followed(&self, number: u64) -> Result<Arc<Manifest>, VolumeError> {
        match self.0.host.store.latest_manifest(self.0.id, Some(number)).await? {
            Some(manifest) => Ok(Arc::new(manifest)),
            None => {
                self.lose_deleted();
                Err(self.deleted())
            }
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
            check_age(uploads, begun, UPLOAD_TIME_MAX)?;
            if self.0.host.store.create(&key, std::slice::from_ref(&encoded)).await? == Created::Created {
                let manifest = Arc::new(manifest);
                self.landed(&manifest, &base, uploads, begun).await?;
                return Ok(Some(Landed { manifest, encoded }));
            }
            let found = self.adopt_or_yield(manifest.number, begun).await?;
            if *found == manifest {
                return Ok(Some(Landed { manifest: found, encoded }));
            }
        }
        Err(VolumeError::Contended { volume: self.0.id })
    }

    /// What follows the creation of `manifest` after `base`, begun at `begun`.
    async fn landed(
        &self,
        manifest: &Arc<Manifest>,
        base: &Manifest,
        uploads: &Uploads,
        begun: Duration,
    ) -> Result<(), VolumeError> {
        let now = self.now();
        let in_time = {
            let mut head = self.head();
            // The process may have stood still between the last check and the creation.
            let in_time = head.known.is_some_and(|known| now.saturating_sub(known) < GRACE_MIN / 2);
            head.follow(manifest, in_time.then_some(begun));
            in_time
        };
        self.0.host.metadata.put_manifest(manifest);
        if !in_time {
            self.check_newest().await?;
        }
        if check_age(uploads, now, LATE_TIME_MAX).is_err() {
            self.undo_if_incomplete(manifest, base, uploads, now).await?;
        }
        Ok(())
    }

    /// Goes back to `base` if garbage collection has taken one of the packs that were uploaded so long ago.
    async fn undo_if_incomplete(
        &self,
        manifest: &Manifest,
        base: &Manifest,
        uploads: &Uploads,
        now: Duration,
    ) -> Result<(), VolumeError> {
        let mut complete = true;
        for pack in &uploads.packs {
            match self.0.host.store.head(&Key::Pack(pack.volume, pack.pack)).await {
                Err(error) if error.is_missing() => complete = false,
                result => drop(result?),
            }
        }
        if complete {
            return Ok(());
        }
        let undone =
            Manifest { number: next(manifest.number), generation: manifest.generation, ..base.clone() };
        if self.0.host.store.create_manifest(&undone).await? == Created::Created {
            let undone = Arc::new(undone);
            self.head().follow(&undone, Some(now));
            self.0.host.metadata.put_manifest(&undone);
        }
        Err(VolumeError::TooSlow { elapsed: now.saturating_sub(uploads.begun) })
    }
}

/// Whether garbage collection still waits for `uploads`.
fn check_age(uploads: &Uploads, now: Duration, max: Duration) -> Result<(), VolumeError> {
    let elapsed = now.saturating_sub(uploads.begun);
    if uploads.packs.is_empty() || elapsed <= max { Ok(()) } else { Err(VolumeError::TooSlow { elapsed }) }
}
