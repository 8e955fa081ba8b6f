//! Leaving content to the store that an earlier life of the daemon brought there, when some of the content is lost here.
//!
//! Owns which content is lost, and the steps of leaving. Does not own how the cut in the store is found (`writeback/unnoted`).
//! Invariant: content leaves only when the catalog bars recovery from taking any of the content out of the log.

use super::Volume;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::cache::volume::layer::Dead;
use crate::cache::volume::store_link::StoreLink;
use crate::units::{SectorRange, Seq};

impl Volume {
    /// Whether the catalog has a note on `cut`, a cut of the volume in the store. Until the catalog has the note, no later manifest
    /// with the cut may be noted. The cut is noted together with the failed writes of the cut, by the task that carries the cut:
    /// otherwise a start would take the record of a failed write for content in the store. And a start looks for a cut without a
    /// note only in manifests above the catalog's.
    pub fn has_noted(&self, cut: Seq) -> bool {
        cut <= self.figures().stored
    }

    /// Whether content up to `mark` is lost here, and readers would get the content if the store had it. A doubt about later
    /// content goes on, whatever the store has.
    pub(in crate::cache) async fn has_lost_up_to(&self, mark: Seq) -> bool {
        match self.doubt() {
            Some((doubt, _)) => doubt <= mark,
            None => self.has_dirty(|extent| extent.seq <= mark && is_lost(extent)).await,
        }
    }

    /// Whether readers get content up to `mark` in sectors of `damaged`, which ascend.
    pub(in crate::cache) async fn has_whole_in(&self, damaged: &[SectorRange], mark: Seq) -> bool {
        if damaged.is_empty() {
            return false;
        }
        let doubt = self.doubt();
        self.has_dirty(|extent| {
            let (from, to) = (extent.range.start(), extent.range.end());
            let first = damaged.partition_point(|lost| lost.end() <= from);
            let is_in_doubt = doubt.is_some_and(|(doubt, end)| extent.seq <= doubt && to <= end);
            damaged.get(first).is_some_and(|lost| lost.start() < to)
                && extent.seq <= mark
                && !is_lost(extent)
                && !is_in_doubt
        })
        .await
    }

    /// Whether some content not in the store satisfies `is`. Hidden content counts: a cut may have the content before the newer one.
    async fn has_dirty(&self, is: impl Fn(&Extent) -> bool) -> bool {
        let mut next = Some(0);
        while let Some(from) = next {
            let (stored, (some, behind)) = {
                let inner = self.lock();
                (inner.layers.stored(), inner.layers.extents_in(|_| true, from, EXTENTS_MAX))
            };
            let is_doubt = |extent: &Extent| matches!(extent.backing, Backing::Doubt { .. });
            if some.iter().any(|extent| extent.seq > stored && !is_doubt(extent) && is(extent)) {
                return true;
            }
            next = behind;
            tokio::task::yield_now().await;
        }
        false
    }

    /// Numbers go on without a gap, unless a cut may have numbers that the log does not have. Call when the store has answered.
    pub(in crate::cache) fn keep_to_numbers(&self, link: &StoreLink) {
        if link.has_all_numbers() {
            self.lock().skipped_seqs = 0;
        }
    }

    /// Takes note that no content is left to the store any more in this life of the daemon.
    pub(in crate::cache) fn never_leaves(&self) {
        self.lock().may_leave = false;
    }

    /// Begins to leave content to the store: clean content goes first.
    pub(in crate::cache) fn begin_leaving(&self) -> Dead {
        let mut inner = self.lock();
        let dead = inner.layers.forget_clean();
        self.note_index(&inner);
        dead
    }

    /// Forgets content up to `mark` from sector `from` on, until about `limit` extents were touched. Returns the sector to go on
    /// from, if any.
    pub(in crate::cache) fn leave_some(
        &self,
        table: &SegmentTable,
        mark: Seq,
        from: u64,
        limit: usize,
    ) -> Option<u64> {
        let mut inner = self.lock();
        let next = inner.layers.leave_from(table, mark, from, limit);
        self.note_index(&inner);
        next
    }

    /// Notes that everything up to `mark` is in the store, and nothing of it here.
    pub(in crate::cache) fn left(&self, mark: Seq) {
        let mut inner = self.lock();
        if inner.removed {
            return;
        }
        let failed = inner.layers.left(mark);
        inner.failed_before = inner.failed_before.max(failed);
        inner.evicted = inner.evicted.max(mark);
        if inner.layers.is_active_empty() {
            inner.active_since = None;
        }
    }

    /// Whether some content is lost here, and the store may have a cut with this content: as far as known before the store is asked.
    pub async fn may_be_mended(&self) -> bool {
        let is_behind = self.store_link().is_some_and(|link| link.remote.may_be_behind());
        is_behind && self.has_lost_up_to(Seq(u64::MAX)).await
    }

    /// Waits until writeback has left to the store the content that is lost here, where an earlier life of the daemon brought the
    /// content there, or has found out that nothing can be left. Without such content there is no wait.
    pub(super) async fn mended(&self, link: &StoreLink) {
        let unnoted = || match link.unnoted() {
            None => link.cut_before(self.figures().stored),
            unnoted => unnoted.filter(|cut| *cut > self.figures().stored),
        };
        let Some(cut) = unnoted() else { return };
        if !self.has_lost_up_to(cut).await {
            return;
        }
        loop {
            let progress = link.progress.notified();
            let Some(cut) = unnoted().filter(|_| self.lost().is_none() && !self.is_removed()) else { return };
            link.queue.ask(self.id, cut);
            progress.await;
        }
    }
}

fn is_lost(extent: &Extent) -> bool {
    matches!(extent.backing, Backing::Damaged { .. })
}
