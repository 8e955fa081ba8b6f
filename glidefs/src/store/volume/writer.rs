//! A volume, as its single writer in this process.
//!
//! Owns which manifest is the newest, and how the next one comes into the store. Does not own what a manifest lists. Invariants:
//! the number this writer believes in was the newest when it said so, and nothing is built on another writer's state; a volume
//! has one writer at a time in a process, so that what still works for an export that another one has followed, a merge for
//! example, shares what it knows with that one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;

use super::ahead::Streams;
use super::host::Host;
use super::land::Landed;
use super::metadata::Listing;
use super::notes::Loss;
use super::view::View;
use super::{Crowd, Fence, ReadExtent, Resume, VolumeError, damage};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::Manifest;
use crate::store::ids::VolumeId;
use crate::store::key::Key;
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
    /// Held during a step of compaction. How much data of the oldest packs was discarded, as far as steps have met it, bytes.
    pub compaction: tokio::sync::Mutex<u64>,
    /// Who reads it one sector after the other.
    pub streams: Mutex<Streams>,
    head: Mutex<Head>,
    /// The newest manifest, for as long as it is in memory.
    here: Mutex<Weak<Listing>>,
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
    pub known: Option<Duration>,
    /// Why the volume cannot be written any more.
    pub lost: Option<Loss>,
    /// How many sectors of the volume are damaged.
    pub damaged_sectors: u64,
}

impl Head {
    /// Goes on with `manifest`.
    pub fn follow(&mut self, manifest: &Manifest, known: Option<Duration>) {
        self.number = manifest.number;
        self.size_sectors = manifest.size_sectors;
        self.cut = manifest.cut;
        self.known = known;
        self.damaged_sectors = damage::sectors(&manifest.sections.damaged);
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
            damaged_sectors: damage::sectors(&manifest.sections.damaged),
        };
        Self::with(host, manifest.volume, head)
    }

    /// What keeps the store from answering this host at present, if something does.
    pub fn store_trouble(&self) -> Option<String> {
        self.0.host.store.stats().trouble()
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
            lost: host.options.notes.loss(resume.volume, resume.epoch),
            damaged_sectors: resume.damaged_sectors,
        };
        Self::with(host, resume.volume, head)
    }

    /// The writer of volume `id`: the one that this process has, if that one can go on as well as one that begins with `head`.
    fn with(host: Arc<Host>, id: VolumeId, head: Head) -> Self {
        let mut writers = host.writers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writers.get(&id).and_then(Weak::upgrade).map(Self)
            && writer.takes_up(&head)
        {
            return writer;
        }
        if writers.len() == writers.capacity() {
            writers.retain(|_, writer| writer.strong_count() > 0);
        }
        let inner = Arc::new(Inner {
            host: Arc::clone(&host),
            id,
            change: tokio::sync::Mutex::default(),
            compaction: tokio::sync::Mutex::default(),
            streams: Mutex::default(),
            head: Mutex::new(head),
            here: Mutex::default(),
        });
        writers.insert(id, Arc::downgrade(&inner));
        Self(inner)
    }

    /// Whether this writer is in the epoch of `other` and has not lost the volume. It knows all that `other` knows then.
    fn takes_up(&self, other: &Head) -> bool {
        let mut head = self.head();
        let is_same = head.own == other.own && head.lost.is_none() && other.lost.is_none();
        if is_same && other.number > head.number {
            *head = other.clone();
        }
        is_same
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
            Some(Loss::Fenced(fence)) => Some(fence),
            _ => None,
        }
    }

    /// Why the volume cannot be written by this writer any more, if so.
    pub fn loss(&self) -> Option<Loss> {
        self.head().lost.clone()
    }

    /// Returns when the daemon stops.
    pub(crate) async fn stopped(&self) {
        self.0.host.store.stopped().await;
    }

    /// What to remember so that [`super::Volumes::resume`] can go on from here.
    pub fn state(&self) -> Resume {
        let head = self.head().clone();
        let manifest = self.0.host.metadata.manifest_here(self.0.id, head.number);
        let manifest = manifest.and_then(|listing| listing.manifest.encode().ok()).map(Bytes::from);
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
            damaged_sectors: head.damaged_sectors,
            manifest,
        }
    }

    pub(super) fn resume_landed(&self, landed: &Landed) -> Resume {
        self.resume_from(&self.head().clone(), Some(landed.encoded.clone()))
    }

    /// Whether any pack may have something of `range`, or some of it is damaged; if not, it is zero. Asks nobody: with a manifest that is not in memory
    /// the answer is yes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.listing_here().is_none_or(|listing| listing.covers(range))
    }

    /// As [`View::crowd`]; `None` when the manifest is not in memory.
    pub fn crowd(&self) -> Option<Crowd> {
        self.listing_here().map(|listing| listing.rows.crowd())
    }

    /// How many sectors are damaged, as of the newest manifest.
    pub fn damaged_sectors(&self) -> u64 {
        self.head().damaged_sectors
    }

    /// The state it has now. Fetches the manifest if it is not in memory.
    pub async fn view(&self) -> Result<View, VolumeError> {
        self.looking(|view: View| async { Ok(view) }).await
    }

    /// See [`View::read`]. What a sequential reader wants next is fetched meanwhile, if there is a clean cache.
    pub async fn read(&self, range: SectorRange) -> Result<Bytes, VolumeError> {
        self.follow_reader(range).await;
        self.looking(|view: View| async move { view.read(range).await }).await
    }

    /// As [`View::read_parts`]. While the store cannot be reached, or refuses this host, the call waits, for as long as it takes.
    pub async fn read_waiting(
        &self,
        range: SectorRange,
        parts: &[SectorRange],
    ) -> Result<Bytes, VolumeError> {
        let mut waiting = self.0.host.store.outage().begin();
        loop {
            self.follow_reader(range).await;
            match self.looking(|view: View| async move { view.read_parts(range, parts).await }).await {
                Err(error) if error.is_unreachable() => waiting.failed(&error).await,
                answer => return answer,
            }
        }
    }

    /// See [`View::read_extents`].
    pub async fn read_extents(&self, range: SectorRange) -> Result<Vec<ReadExtent>, VolumeError> {
        self.looking(|view: View| async move { view.read_extents(range).await }).await
    }

    /// See [`View::mapped`].
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.looking(|view: View| async move { view.mapped(range).await }).await
    }

    /// What `look` finds in the state it has now. An object that is missing may have been made superfluous by another writer, or
    /// by a manifest of this one of which the answer was lost.
    pub(super) async fn looking<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
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
            // Who cannot ask does not know that the object is gone for good.
            Err(lost) if lost.is_fatal() || lost.is_unreachable() => Err(lost),
            Ok(()) if self.head().number != number => self.look(&look).await,
            _ => Err(error),
        }
    }

    async fn look<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let listing = self.listing_from(&self.0.host.store.for_readers(self.0.id)).await?;
        look(View::of(self.0.host.clone(), listing)).await
    }

    /// The newest manifest, if it is in memory. The metadata of all volumes are locked only after a change.
    fn listing_here(&self) -> Option<Arc<Listing>> {
        let number = self.head().number;
        let mut here = self.0.here.lock().unwrap_or_else(PoisonError::into_inner);
        let known = here.upgrade().filter(|listing| listing.manifest.number == number);
        known.or_else(|| {
            let listing = self.0.host.metadata.manifest_here(self.0.id, number)?;
            *here = Arc::downgrade(&listing);
            Some(listing)
        })
    }

    /// The manifest this writer believes in.
    pub(super) async fn manifest(&self) -> Result<Arc<Manifest>, VolumeError> {
        Ok(self.listing_from(&self.0.host.store).await?.manifest.clone())
    }

    async fn listing_from(&self, store: &Store) -> Result<Arc<Listing>, VolumeError> {
        let (id, number) = (self.0.id, self.head().number);
        let load = || {
            let (store, notes) = (store.clone(), Arc::clone(&self.0.host.options.notes));
            async move {
                let (manifest, hash) = store.manifest_hashed(id, number).await?;
                match notes.intended(id, number, &hash) {
                    Some(false) => Err(StoreError::NotNoted { key: Key::Manifest(id, number).to_string() }),
                    _ => Ok(manifest),
                }
            }
        };
        match self.0.host.metadata.manifest(id, number, load).await {
            Err(error) if matches!(*error, StoreError::NotNoted { .. }) => {
                Err(Box::pin(self.lose_to(number)).await)
            }
            manifest => Ok(manifest?),
        }
    }

    pub(super) fn head(&self) -> MutexGuard<'_, Head> {
        self.0.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
