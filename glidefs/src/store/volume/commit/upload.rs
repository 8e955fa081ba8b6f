//! How much of a cut is uploaded.
//!
//! Owns which packs of a cut are in the store, over as many tries as the cut takes. Does not own making packs, nor the manifest
//! that lists the packs. Invariants: each pack is remembered with the range of which the pack has all sectors of the cut, and
//! with the sectors whose content was lost before the pack was made. All remembered packs are of one cut with the same extents. A
//! try begins only with packs that the newest manifest keeps, or that are young enough for garbage collection to wait for the
//! manifest of the try.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use super::packing::ContentHash;
use crate::locks::MutexExt;
use crate::store::format::Manifest;
use crate::store::ids::PackId;
use crate::store::volume::limits::UPLOAD_TIME_MAX;
use crate::store::volume::writer::new_packs::{NewPack, NewPacks, is_passed};
use crate::units::SectorRange;

/// Greatest age of a pack that another try uses though no manifest keeps the pack: the try needs time as well.
const REUSE_TIME_MAX: Duration = Duration::from_secs(UPLOAD_TIME_MAX.as_secs() / 2);
/// Time after which a manifest keeps the packs uploaded so far. An upload of hours, through a store that is away for hours,
/// repeats no more than the uploads of this time.
const KEEP_TIME: Duration = Duration::from_mins(15);

/// The upload of one cut: shared by the tries to commit the cut and by those who watch.
#[derive(Debug, Default)]
pub struct Upload(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Fingerprint of the content that the packs are of.
    content: Option<ContentHash>,
    /// Ranges ascend, without overlaps.
    spans: Vec<Span>,
    total_bytes: u64,
    /// Start of the first upload of a pack that no manifest keeps.
    unkept_since: Option<Duration>,
}

/// A range of a cut, and the pack that has all sectors of the cut in that range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct Span {
    pub from: u64,
    /// One past the last sector.
    pub to: u64,
    /// Sectors without content in the pack, because the content was lost.
    pub lost: Vec<SectorRange>,
    /// Bytes of data in the pack, before compression.
    pub data_bytes: u64,
    /// The pack, and when its upload began.
    pub new: NewPack,
}

/// Progress of a cut's upload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadProgress {
    /// Bytes of data in the cut.
    pub total_bytes: u64,
    /// Bytes of data of the cut in the store.
    pub uploaded_bytes: u64,
}

impl Upload {
    /// Progress of the upload so far.
    pub fn progress(&self) -> UploadProgress {
        let inner = self.0.lock_whole();
        let uploaded_bytes = inner.spans.iter().fold(0, |bytes, span| span.data_bytes.saturating_add(bytes));
        UploadProgress { total_bytes: inner.total_bytes, uploaded_bytes }
    }

    /// Forgets the cut: the next commit is of another cut, or there is none.
    pub fn clear(&self) {
        *self.0.lock_whole() = Inner::default();
    }

    /// Forgets packs that lack lost content: the content may be readable again.
    pub(in crate::store::volume) fn forget_lossy(&self) {
        self.0.lock_whole().spans.retain(|span| span.lost.is_empty());
    }

    /// Begins a try at `now`: the upload of `content`, which has `total_bytes` of data, for the manifest after `base`. Returns
    /// the ranges that earlier tries have uploaded and that this try may use.
    pub(in crate::store::volume) fn begin(
        &self,
        content: ContentHash,
        total_bytes: u64,
        now: Duration,
        base: &Manifest,
    ) -> Vec<Span> {
        let mut inner = self.0.lock_whole();
        inner.total_bytes = total_bytes;
        if inner.content != Some(content) {
            inner.content = Some(content);
            inner.spans.clear();
        }
        let kept: HashSet<PackId> = base.sections.uploaded.iter().copied().collect();
        let is_kept = |span: &Span| kept.contains(&span.new.pack.pack);
        let is_young =
            |new: &NewPack| now.saturating_sub(new.begun) <= REUSE_TIME_MAX && !is_passed(base, new.after);
        inner.spans.retain(|span| is_kept(span) || is_young(&span.new));
        let unkept = inner.spans.iter().filter(|span| !is_kept(span));
        inner.unkept_since = unkept.map(|span| span.new.begun).min();
        inner.spans.clone()
    }

    /// Whether a manifest should keep the packs uploaded so far, before the rest is uploaded.
    pub(in crate::store::volume) fn wants_keeping(&self, now: Duration) -> bool {
        self.0.lock_whole().unkept_since.is_some_and(|since| now.saturating_sub(since) >= KEEP_TIME)
    }

    /// Remembers a pack that is in the store.
    pub(in crate::store::volume) fn add(&self, span: Span) {
        let mut inner = self.0.lock_whole();
        inner.unkept_since =
            Some(inner.unkept_since.map_or(span.new.begun, |since| since.min(span.new.begun)));
        let at = inner.spans.partition_point(|other| other.from < span.from);
        inner.spans.insert(at, span);
    }

    /// Whether a pack lacks content lost before the pack was made.
    pub fn has_losses(&self) -> bool {
        self.0.lock_whole().spans.iter().any(|span| !span.lost.is_empty())
    }

    /// Sectors that the packs lack because the content was lost, in no order.
    pub(in crate::store::volume) fn lost(&self) -> Vec<SectorRange> {
        self.0.lock_whole().spans.iter().flat_map(|span| span.lost.iter().copied()).collect()
    }

    /// All packs, for the manifest.
    pub(in crate::store::volume) fn uploads(&self) -> NewPacks {
        // Ranges ascend, so the packs ascend too.
        self.0.lock_whole().spans.iter().map(|span| span.new).collect()
    }
}
