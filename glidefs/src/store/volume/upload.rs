//! How far the upload of one cut is.
//!
//! Owns which packs of a cut are in the store, over as many tries as the cut takes. Does not own the making of packs, nor the manifest
//! that lists them. Invariants: a pack is kept with the sectors of the cut that the pack has all of, and with those among them whose
//! content was lost when the pack was made; every pack that is kept is of one cut, of the same extents, and a try begins only with
//! packs young enough for garbage collection to wait for its manifest.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::UPLOAD_TIME_MAX;
use super::land::Uploads;
use super::packing::ContentHash;
use crate::store::format::PackRef;
use crate::units::SectorRange;

/// Up to what age a pack is used by another try: that one needs time as well.
const REUSE_TIME_MAX: Duration = Duration::from_secs(UPLOAD_TIME_MAX.as_secs() / 2);

/// The upload of one cut, for those who try to store it and those who watch.
#[derive(Debug, Default)]
pub struct Upload(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// What the packs are of.
    content: Option<ContentHash>,
    /// Ascending, without overlaps.
    spans: Vec<Span>,
    total_bytes: u64,
}

/// Sectors of a cut that a pack has all of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
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

    /// Forgets everything: another cut is to be stored, or none.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Begins a try, at `now`, to upload `content` with `total_bytes` of data: what earlier ones have left.
    pub(super) fn begin(&self, content: ContentHash, total_bytes: u64, now: Duration) -> Vec<Span> {
        let mut inner = self.lock();
        inner.total_bytes = total_bytes;
        if inner.content != Some(content) {
            inner.content = Some(content);
            inner.spans.clear();
        }
        inner.spans.retain(|span| now.saturating_sub(span.begun) <= REUSE_TIME_MAX);
        inner.spans.clone()
    }

    /// Takes note of a pack that is in the store.
    pub(super) fn add(&self, span: Span) {
        let mut inner = self.lock();
        let at = inner.spans.partition_point(|other| other.from < span.from);
        inner.spans.insert(at, span);
    }

    /// Whether content of its packs was lost before they were made.
    pub fn has_losses(&self) -> bool {
        self.lock().spans.iter().any(|span| !span.lost.is_empty())
    }

    /// The sectors of its packs whose content was lost, in no order.
    pub(super) fn lost(&self) -> Vec<SectorRange> {
        self.lock().spans.iter().flat_map(|span| span.lost.iter().copied()).collect()
    }

    /// All of its packs, for a manifest.
    pub(super) fn uploads(&self, now: Duration) -> Uploads {
        let inner = self.lock();
        let mut packs: Vec<PackRef> = inner.spans.iter().map(|span| span.pack).collect();
        packs.sort_unstable_by_key(|pack| pack.lowest_sector);
        Uploads { begun: inner.spans.iter().map(|span| span.begun).min().unwrap_or(now), packs }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs under the lock half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
