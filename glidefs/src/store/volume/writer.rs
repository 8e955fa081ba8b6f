//! The handle of a volume's one writer in this process.
//!
//! Owns how all handles of a volume share one state. Does not own which manifest is the newest (`newest`), how the next one is
//! made (`publish`), nor what a manifest lists. Invariant: a process has at most one writer state of a volume in an epoch. So
//! work that goes on for an export which another export has replaced, a merge for example, shares its state with the other
//! export.

pub(super) mod new_packs;
mod newest;
pub(super) mod publish;
mod read;
pub(super) mod state;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;

use self::state::{Head, NextProperties, WriterState};
use super::error::VolumeError;
use super::host::Host;
use super::notes::Loss;
use super::types::{Fence, Resume};
use crate::locks::MutexExt;
use crate::observe::memory::heap_bytes;
use crate::properties::Properties;
use crate::store::format::Manifest;
use crate::store::ids::VolumeId;
use crate::units::{SectorRange, Seq};

/// The single writer of one volume in this process. Cheap to clone. An idle writer costs no request and a few hundred bytes:
/// manifest and indexes are in the cache of all volumes, and are fetched again if dropped there.
#[derive(Clone, Debug)]
pub struct VolumeWriter {
    pub(super) host: Arc<Host>,
    /// Shared by all handles of the volume.
    pub(super) shared: Arc<WriterState>,
}

impl VolumeWriter {
    /// A writer of the volume whose newest manifest is `manifest`. This writer created the manifest after `begun`.
    pub(super) fn new(host: Arc<Host>, manifest: Arc<Manifest>, begun: Duration) -> Self {
        host.reader.metadata.put_manifest(&manifest);
        let head = Head { known: Some(begun), ..Head::of(&Resume::of(&manifest)) };
        Self::with(host, manifest.volume, head)
    }

    /// Why the store does not answer this host at present, if there is trouble.
    pub fn store_trouble(&self) -> Option<String> {
        self.host.store.stats().health.of_writeback()
    }

    pub(super) fn resume(host: Arc<Host>, resume: &Resume) -> Self {
        let manifest = resume.manifest.as_ref().and_then(|bytes| Manifest::decode(bytes).ok());
        if let Some(manifest) = manifest
            && (manifest.volume, manifest.number) == (resume.volume, resume.number)
        {
            host.reader.metadata.put_manifest(&Arc::new(manifest));
        }
        let head = Head { lost: host.noted_loss(resume), ..Head::of(resume) };
        Self::with(host, resume.volume, head)
    }

    /// A handle of volume `id`. Shares the state of the writer that this process has, if that writer can go on from `head`;
    /// otherwise begins a state with `head`.
    fn with(host: Arc<Host>, id: VolumeId, head: Head) -> Self {
        let mut writers = host.writers.lock_whole();
        if let Some(shared) = writers.get(&id).and_then(Weak::upgrade) {
            let writer = Self { host: Arc::clone(&host), shared };
            if writer.takes_up(&head) {
                return writer;
            }
        }
        if writers.len() == writers.capacity() {
            writers.retain(|_, writer| writer.strong_count() > 0);
        }
        let shared = Arc::new(WriterState::new(id, head));
        writers.insert(id, Arc::downgrade(&shared));
        drop(writers);
        Self { host, shared }
    }

    /// Whether this writer is in the epoch of `other` and neither has lost the volume. If so, the writer takes over the newer
    /// manifest of the two.
    fn takes_up(&self, other: &Head) -> bool {
        let mut head = self.head();
        let is_same = head.own == other.own && head.lost.is_none() && other.lost.is_none();
        if is_same && other.number > head.number {
            *head = other.clone();
        }
        is_same
    }

    /// Memory of a volume's writer on the heap, bytes.
    pub const HEAP_BYTES: usize = heap_bytes(size_of::<WriterState>());

    /// Identity of the volume in the store.
    pub fn id(&self) -> VolumeId {
        self.shared.id
    }

    /// Size in the newest manifest, sectors.
    pub fn size_sectors(&self) -> u64 {
        self.head().size_sectors
    }

    /// The store has every write up to this sequence number.
    pub fn cut(&self) -> Seq {
        self.head().cut
    }

    /// Epoch and identity of this writer.
    pub fn writer(&self) -> Fence {
        self.head().own
    }

    /// Why this writer cannot write the volume any more, if so.
    pub fn loss(&self) -> Option<Loss> {
        self.head().lost.clone()
    }

    /// Returns when the daemon stops.
    pub(crate) async fn stopped(&self) {
        self.host.store.stopped().await;
    }

    /// The state to remember, with which [`super::VolumeStore::resume`] goes on from here.
    pub fn state(&self) -> Resume {
        let state = self.state_with(None);
        let manifest = self.host.reader.metadata.manifest_here(state.volume, state.number);
        let manifest = manifest.and_then(|loaded| loaded.manifest.encode().ok()).map(Bytes::from);
        Resume { manifest, ..state }
    }

    /// As [`Self::state`], with the bytes of the newest manifest.
    pub(super) fn state_with(&self, manifest: Option<Bytes>) -> Resume {
        let head = self.head();
        Resume {
            volume: self.shared.id,
            writer: head.own.writer,
            epoch: head.own.epoch,
            number: head.number,
            size_sectors: head.size_sectors,
            cut: head.cut,
            damaged_sectors: head.damaged_sectors,
            manifest,
        }
    }

    /// Number of damaged sectors in the newest manifest.
    pub fn damaged_sectors(&self) -> u64 {
        self.head().damaged_sectors
    }

    /// Whether the newest manifest lists no content, nor content lost: the volume reads as zeroes. `false` also while the manifest is
    /// not in memory, where the first read brings it, for a volume that this writer has lost, and while the store may have a newer
    /// manifest of this host.
    pub fn is_blank(&self) -> bool {
        let is_lost = self.head().lost.is_some();
        if is_lost || self.may_be_behind() {
            return false;
        }
        self.loaded_here().is_some_and(|loaded| {
            let Manifest { cut, origin, packs, sections, .. } = &*loaded.manifest;
            *cut == Seq(0) && origin.is_none() && packs.is_empty() && sections.damaged.is_empty()
        })
    }

    /// Whether the store may have a manifest of this host above the newest that this writer knows: this host noted such a manifest.
    pub fn may_be_behind(&self) -> bool {
        let (id, number, notes) = (self.shared.id, self.head().number, &self.host.options.notes);
        notes.highest(id).is_some_and(|noted| noted > number)
    }

    /// Damaged sectors in the newest manifest, ascending. Fetches the manifest if the manifest is not in memory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn damaged(&self) -> Result<Vec<SectorRange>, VolumeError> {
        if self.damaged_sectors() == 0 {
            return Ok(Vec::new());
        }
        Ok(self.manifest().await?.sections.damaged.clone())
    }

    /// Sets the share of the volume among others for requests which begin from now on.
    pub fn set_weight(&self, weight: u16) {
        self.shared.weight.store(weight, Ordering::Relaxed);
    }

    /// Sets the properties for all manifests from now on. True if they replace others.
    pub fn set_properties(&self, properties: Properties) -> bool {
        let next = NextProperties::of(properties);
        let before = std::mem::replace(&mut *self.shared.properties.lock_whole(), next);
        before.get().is_some_and(|before| before != properties)
    }

    /// The properties in the newest manifest. Fetches the manifest if the manifest is not in memory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn properties(&self) -> Result<Properties, VolumeError> {
        Ok(self.manifest().await?.sections.properties)
    }

    /// The properties for the manifest after `base`.
    pub(super) fn properties_after(&self, base: &Manifest) -> Properties {
        self.shared.properties.lock_whole().get().unwrap_or(base.sections.properties)
    }

    pub(super) fn weight(&self) -> u16 {
        self.shared.weight.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> Duration {
        self.host.options.clock.since_boot()
    }

    pub(super) fn head(&self) -> MutexGuard<'_, Head> {
        self.shared.head.lock_whole()
    }
}
