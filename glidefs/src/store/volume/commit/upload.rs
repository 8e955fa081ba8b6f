//! How far the upload of one cut is.
//!
//! Owns which packs of a cut are in the store, over as many tries as the cut takes. Does not own the making of packs, nor the manifest
//! that lists them. Invariants: a pack is kept with the sectors of the cut that the pack has all of, and with those among them whose
//! content was lost when the pack was made; every pack that is kept is of one cut, of the same extents, and a try begins only with
//! packs that the newest manifest keeps, or young enough for garbage collection to wait for the manifest of the try.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::content::ContentHash;
use crate::store::format::{DAMAGED_RANGES_MAX, Manifest, PackRef};
use crate::store::ids::PackId;
use crate::store::volume::limits::UPLOAD_TIME_MAX;
use crate::store::volume::writer::new_packs::NewPacks;
use crate::units::SectorRange;

/// Up to what age a pack that no manifest keeps is used by another try: that one needs time as well.
const REUSE_TIME_MAX: Duration = Duration::from_secs(UPLOAD_TIME_MAX.as_secs() / 2);
/// How long packs are on their way before a manifest keeps them. An upload of hours, through a store that is away for hours in
/// between, repeats no more than this.
const KEEP_TIME: Duration = Duration::from_mins(15);

/// Sectors that are remembered as lost, at most: twice as many ranges as make a manifest impossible.
const SUSPECTS_MAX: usize = 2 * DAMAGED_RANGES_MAX;

/// The upload of one cut, for those who try to store it and those who watch.
#[derive(Debug, Default)]
pub struct Upload {
    cut: Mutex<Inner>,
    /// Sectors that were found lost when the last cut turned out to have more of them than a manifest lists.
    suspects: Mutex<Vec<SectorRange>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// What the packs are of.
    content: Option<ContentHash>,
    /// Ascending, without overlaps.
    spans: Vec<Span>,
    total_bytes: u64,
    /// When the first upload was begun of those that no manifest keeps.
    unkept_since: Option<Duration>,
}

/// Sectors of a cut that a pack has all of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct Span {
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// Those of which the pack has no content, because that was lost.
    pub lost: Vec<SectorRange>,
    /// Data in it, bytes.
    pub data_bytes: u64,
    pub pack: PackRef,
    /// When its upload was begun.
    pub begun: Duration,
}

/// How far an upload is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadProgress {
    /// Data in the cut, bytes.
    pub total_bytes: u64,
    /// Data of the cut that is in the store, bytes.
    pub uploaded_bytes: u64,
}

impl Upload {
    /// How far it is.
    pub fn progress(&self) -> UploadProgress {
        let inner = self.lock();
        let uploaded_bytes = inner.spans.iter().fold(0, |bytes, span| span.data_bytes.saturating_add(bytes));
        UploadProgress { total_bytes: inner.total_bytes, uploaded_bytes }
    }

    /// Forgets the cut: another one is to be stored, or none.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Forgets the packs that were made without some of their content: that may be back.
    pub(in crate::store::volume) fn forget_lossy(&self) {
        self.lock().spans.retain(|span| span.lost.is_empty());
    }

    /// Begins a try, at `now`, to upload `content` with `total_bytes` of data behind `base`, the newest manifest: what earlier ones
    /// have left.
    pub(in crate::store::volume) fn begin(
        &self,
        content: ContentHash,
        total_bytes: u64,
        now: Duration,
        base: &Manifest,
    ) -> Vec<Span> {
        let mut inner = self.lock();
        inner.total_bytes = total_bytes;
        if inner.content != Some(content) {
            inner.content = Some(content);
            inner.spans.clear();
        }
        let kept: HashSet<PackId> = base.sections.uploaded.iter().copied().collect();
        let is_kept = |span: &Span| kept.contains(&span.pack.pack);
        inner.spans.retain(|span| is_kept(span) || now.saturating_sub(span.begun) <= REUSE_TIME_MAX);
        let unkept = inner.spans.iter().filter(|span| !is_kept(span));
        inner.unkept_since = unkept.map(|span| span.begun).min();
        inner.spans.clone()
    }

    /// Whether a manifest should keep what is uploaded, before the rest is.
    pub(in crate::store::volume) fn wants_keeping(&self, now: Duration) -> bool {
        self.lock().unkept_since.is_some_and(|since| now.saturating_sub(since) >= KEEP_TIME)
    }

    /// Takes note of a pack that is in the store.
    pub(in crate::store::volume) fn add(&self, span: Span) {
        let mut inner = self.lock();
        inner.unkept_since = Some(inner.unkept_since.map_or(span.begun, |since| since.min(span.begun)));
        let at = inner.spans.partition_point(|other| other.from < span.from);
        inner.spans.insert(at, span);
    }

    /// Whether content of its packs was lost before they were made.
    pub fn has_losses(&self) -> bool {
        self.lock().spans.iter().any(|span| !span.lost.is_empty())
    }

    /// The sectors of its packs whose content was lost, in no order.
    pub(in crate::store::volume) fn lost(&self) -> Vec<SectorRange> {
        self.lock().spans.iter().flat_map(|span| span.lost.iter().copied()).collect()
    }

    /// All of its packs, for a manifest.
    pub(in crate::store::volume) fn uploads(&self) -> NewPacks {
        // Spans ascend, and so do their packs.
        self.lock().spans.iter().map(|span| (span.pack, span.begun)).collect()
    }

    /// Remembers `lost`, in any order, for the next cut: those sectors are read before anything is uploaded.
    pub(in crate::store::volume) fn suspect(&self, mut lost: Vec<SectorRange>) {
        lost.truncate(SUSPECTS_MAX);
        // A list is whole between its own assignments.
        *self.suspects.lock().unwrap_or_else(PoisonError::into_inner) = lost;
    }

    /// What [`Self::suspect`] remembers.
    pub(in crate::store::volume) fn suspects(&self) -> Vec<SectorRange> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock half-way through a change.
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
