//! A volume and the volume's counterpart in the store: the owner, the data at risk, the waits for writeback, and leaving content to the
//! store that an earlier life of the daemon brought there, when some of it is lost here.
//!
//! Does not own cuts (`cuts`), how cuts get to the store (`writeback`), nor how a cut of an earlier life is found (`writeback/unnoted`).
//! Invariant: content leaves only when the catalog bars recovery from taking any of it out of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Volume;
use super::appends::SEQS_SKIPPED;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::durability::{Pace, Triggers};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::cache::volume::layer::Dead;
use crate::cache::volume::queue::WritebackQueue;
use crate::cache::volume::store_link::StoreLink;
use crate::properties::Properties;
use crate::store::volume::{Crowd, UploadProgress, VolumeError};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// Data that is not in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AtRisk {
    /// Bytes of data at risk.
    pub bytes: u64,
    /// Age of the oldest data at risk, seconds.
    pub seconds: u64,
    /// Why the data is not in the store yet, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

impl Volume {
    /// The link to the store, where there is a store.
    pub(in crate::cache) fn store_link(&self) -> Option<&StoreLink> {
        self.store_link.get().map(|link| &**link)
    }

    /// Links the volume to `remote`, the counterpart in the store, which knows `stored_sectors` of the volume's `size_sectors`.
    /// Data here already is written back like new data. Call once: before the first request, or when all data was written here.
    ///
    /// If the store may have a cut without a note in the catalog, the cut may have numbers of failed writes that the log does not
    /// have: numbers go on behind all of these.
    pub fn link_to_store(
        &self,
        remote: crate::store::volume::VolumeWriter,
        queue: Arc<WritebackQueue>,
        size_sectors: u64,
        stored_sectors: u64,
    ) {
        let found = remote.may_be_behind().then(|| {
            let mut inner = self.lock();
            inner.skipped_seqs = SEQS_SKIPPED;
            inner.may_leave = true;
            Seq(inner.last_seq)
        });
        let linked = self.store_link.set(Box::new(StoreLink::new(
            remote,
            queue,
            Arc::clone(&self.gate),
            (size_sectors, stored_sectors),
            found,
        )));
        debug_assert!(linked.is_ok(), "a volume is linked to the store once");
        self.weigh_link();
        if let Some(link) = self.store_link().filter(|link| link.remote.loss().is_some()) {
            link.fence();
            return;
        }
        if let Some(link) = self.store_link() {
            link.merge_if_crowded(self.id);
        }
        if self.needs_writeback() {
            if let Some(link) = self.store_link() {
                let mut inner = self.lock();
                // A new size alone puts nothing at risk.
                if Seq(inner.last_seq) > inner.layers.stored() {
                    inner.active_since.get_or_insert_with(|| link.queue.clock.now());
                }
                drop(inner);
                if link.has_news() {
                    link.queue.ask(self.id, Seq(0));
                }
            }
            self.announce();
        }
    }

    /// Progress of the cut on its way to the store; `None` without one.
    pub fn upload(&self) -> Option<UploadProgress> {
        let progress = self.store_link()?.upload.progress();
        (progress.total_bytes > 0).then_some(progress)
    }

    /// The counterpart in the store.
    pub fn remote(&self) -> Option<&crate::store::volume::VolumeWriter> {
        self.store_link().map(|link| &link.remote)
    }

    /// Tells the store the new size of the export in sectors. The export of `from_sectors` is made larger.
    pub fn grow(&self, from_sectors: u64, size_sectors: u64) {
        let mut inner = self.lock();
        let stored = inner.layers.stored();
        inner.layers.doubts.grows_from(from_sectors, stored);
        drop(inner);
        if let Some(link) = self.store_link() {
            link.set_size(size_sectors);
            link.queue.ask(self.id, Seq(0));
        }
    }

    /// Notes that the store has another state of the volume, of this size in sectors and so crowded, and that no data of the
    /// volume is here.
    pub fn replaced(&self, size_sectors: u64, crowd: Crowd) {
        if let Some(link) = self.store_link() {
            link.set_size(size_sectors);
            link.stored_size(size_sectors);
            link.crowding.set(crowd);
            link.merge_if_crowded(self.id);
        }
    }

    /// Waits until all writes acknowledged before the call are in the store. Returns the last sequence number in the store. Data
    /// lost here is damaged in the store.
    ///
    /// # Errors
    /// [`IoError::Fenced`] when another writer has the volume, [`IoError::Diverged`], [`IoError::Removed`],
    /// [`IoError::Unreadable`] when a try since the call could not read data here, and [`IoError::Store`] where there is no
    /// store. A store which is away is waited for.
    pub async fn written_back(&self) -> Result<Seq, IoError> {
        let link = self.store_link().ok_or(IoError::Store)?;
        let (target, unreadable) = (self.figures().last_seq, link.unreadable_cuts());
        loop {
            let progress = link.progress.notified();
            if let Some(lost) = self.lost() {
                return Err(lost);
            }
            if self.is_removed() {
                return Err(IoError::Removed(self.id));
            }
            let stored = self.figures().stored;
            if stored >= target && !link.has_news() {
                return Ok(stored);
            }
            if link.unreadable_cuts() > unreadable {
                return Err(IoError::Unreadable);
            }
            // With 0 only a new size is asked for, which a volume that is held back leaves for later.
            link.queue.ask(self.id, target.max(Seq(1)));
            progress.await;
        }
    }

    /// The data not in the store; `None` when all data is in the store, or there is no store.
    pub fn at_risk(&self) -> Option<AtRisk> {
        let link = self.store_link()?;
        let figures = self.figures();
        let is_at_risk = figures.last_seq > figures.stored;
        is_at_risk.then(|| AtRisk {
            bytes: figures.dirty_bytes,
            seconds: figures.at_risk_for.as_secs(),
            reason: link.trouble(),
        })
    }

    /// Asks the store whether the volume still belongs to this host, and waits until content lost here is left to the store, where
    /// the store has the content. Returns `false` when the store did not answer in time.
    ///
    /// # Errors
    /// When the volume does not belong to this host: then the volume is fenced, and no data of the volume is served any more.
    pub async fn confirm(&self, patience: Duration) -> Result<bool, VolumeError> {
        let Some(link) = self.store_link() else { return Ok(true) };
        match tokio::time::timeout(patience, link.remote.confirm()).await {
            Ok(Ok(())) => {
                self.keep_to_numbers(link);
                // Without an end in time the volume is served with the damage, and mended later.
                let _ = tokio::time::timeout(patience, self.mended(link)).await;
                Ok(true)
            }
            Ok(Err(error)) if error.is_fatal() => {
                link.fence();
                Err(error)
            }
            Ok(Err(error)) => {
                if let Some(suppressed) = self.silence.pass() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        export = self.id.0,
                        error,
                        suppressed,
                        "the store cannot be asked whose the export is"
                    );
                }
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    /// Has everything acknowledged so far written back as soon as possible.
    pub fn ask_writeback(&self) {
        if let Some(link) = self.store_link() {
            // The lock of the index ends before that of the queue begins.
            let last_seq = Seq(self.lock().last_seq);
            link.queue.ask(self.id, last_seq);
        }
    }

    /// Has all writes up to `seq` written back as soon as possible, unless the store has them.
    pub(in crate::cache) fn ask_writeback_to(&self, seq: Seq) {
        if let Some(link) = self.store_link().filter(|link| link.committed() < seq) {
            link.queue.ask(self.id, seq);
        }
    }

    /// Whether writes wait when too much data, or data for too long, is at risk.
    pub fn is_bounded(&self) -> bool {
        self.store_link().is_some_and(|link| link.bound().is_some())
    }

    /// Serves requests by `properties` from now on, and writes them into the next manifest. Asks for one at once if the properties
    /// changed, or the store is to name them `anew`. Without a store the setting has no effect.
    pub fn set_properties(&self, properties: &Properties, anew: bool) {
        if let Some(link) = self.store_link()
            && link.set_properties(properties, anew)
        {
            link.queue.ask(self.id, Seq(0));
        }
    }

    /// As [`Self::set_properties`], with other properties as usual.
    #[cfg(test)]
    pub fn set_durability(&self, durability: crate::properties::Durability) {
        self.set_properties(&Properties { durability, ..Properties::default() }, false);
    }

    /// Whether FLUSH waits for the store.
    pub(in crate::cache) fn waits_for_store(&self) -> bool {
        self.store_link().is_some_and(StoreLink::waits)
    }

    /// When a WRITE of `bytes` may go on without more data at risk than allowed, and with merging keeping up; 0 bytes for zeroes.
    /// `paused` says that the WRITE has paused already. True if the bytes are promised: call [`Self::settled`] when the WRITE
    /// has ended.
    pub fn pace(&self, bytes: u64, paused: bool) -> (Pace, bool) {
        let Some(link) = self.store_link().filter(|link| !link.is_lost()) else { return (Pace::Go, false) };
        let crowding = || link.crowding.pace(bytes, || link.queue.clock.now());
        let Some(bound) = link.bound() else { return (crowding(), false) };
        let mut inner = self.lock();
        let promised = inner.promised_bytes.saturating_add(bytes);
        let at_risk = inner.layers.dirty_bytes().saturating_add(promised);
        let pace = match bound.pace(at_risk, inner.at_risk_for(Some(link))) {
            // Data unreadable here can only be written again, so the bound must not stop writes.
            _ if link.is_unreadable() => crowding(),
            Pace::Pause(pause) if !paused => Pace::Pause(pause),
            pace @ (Pace::Wait | Pace::Full) => pace,
            Pace::Go | Pace::Pause(_) => crowding(),
        };
        if pace == Pace::Go {
            inner.promised_bytes = promised;
        }
        (pace, pace == Pace::Go)
    }

    /// Takes note that a WRITE of `bytes`, which [`Self::pace`] promised, has ended.
    pub fn settled(&self, bytes: u64) {
        let mut inner = self.lock();
        inner.promised_bytes = inner.promised_bytes.saturating_sub(bytes);
    }

    /// The thresholds for a cut: `triggers`, or lower ones where little data may be at risk.
    pub(in crate::cache) fn triggers(&self, triggers: &Triggers) -> Triggers {
        let bound = self.store_link().and_then(StoreLink::bound);
        bound.map_or(*triggers, |bound| bound.sooner(triggers))
    }

    /// How many cuts could not be read so far. Cuts that lost some content count as well, once a FLUSH was told of the loss.
    pub(in crate::cache) fn unreadable_cuts(&self) -> u64 {
        self.store_link().map_or(0, StoreLink::failed_cuts)
    }

    /// Whether the store has everything up to `seq`. An error when the store never will, when more than `unreadable` cuts could
    /// not be read, when some content of the cuts was lost, or when requests may not wait. Otherwise writeback is asked for.
    pub(in crate::cache) fn is_in_store(&self, seq: Seq, unreadable: u64) -> Result<bool, IoError> {
        let inner = self.lock();
        let (stored, removed) = (inner.layers.stored(), inner.removed);
        drop(inner);
        // A cut in the store counts although the catalog does not know of the cut yet: the note on the manifest lets the next start
        // go on from the manifest.
        if self.store_link().map_or(stored, |link| link.committed().max(stored)) >= seq {
            let lossy = self.store_link().is_some_and(|link| link.reports_loss(unreadable));
            return if lossy { Err(IoError::Unreadable) } else { Ok(true) };
        }
        if removed {
            return Err(IoError::Removed(self.id));
        }
        let link = self.store_link().ok_or(IoError::Store)?;
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        if link.failed_cuts() > unreadable {
            return Err(IoError::Unreadable);
        }
        if self.are_waits_ended() {
            return Err(IoError::Detached);
        }
        link.queue.ask(self.id, seq);
        Ok(false)
    }

    /// Bytes of content lost before the store had the content, as of the last commit. `None` where there is no store.
    pub fn damaged_bytes(&self) -> Option<u64> {
        Some(self.store_link()?.remote.damaged_sectors().saturating_mul(SECTOR_BYTES))
    }

    /// Packs in the store that a READ of one sector may have to ask, and packs in all. `None` where there is no store.
    pub fn packs(&self) -> Option<(u64, u64)> {
        self.store_link().map(|link| link.crowding.figures())
    }

    /// Whether writes are slowed until packs were merged.
    pub fn is_crowded(&self) -> bool {
        self.store_link().is_some_and(|link| link.crowding.is_slow())
    }

    /// The data not in the store, and the last sequence number given out. The volume may not be written to any more.
    pub(in crate::cache) fn dirty(&self) -> (Seq, Vec<Extent>) {
        let found = self.extents(|inner, from| inner.layers.dirty_from(from, EXTENTS_MAX));
        debug_assert!(
            found.is_sorted_by(|extent, next| extent.range.end() <= next.range.start()),
            "each sector has one newest content"
        );
        (Seq(self.lock().last_seq), found)
    }

    /// Whether the store does not know the size or the properties of the export.
    pub(in crate::cache) fn has_news(&self) -> bool {
        self.store_link().is_some_and(StoreLink::has_news)
    }

    /// Whether some data, a new size or new properties are not in the store.
    pub(in crate::cache) fn needs_writeback(&self) -> bool {
        let figures = self.figures();
        figures.last_seq > figures.stored || self.store_link().is_some_and(StoreLink::has_news)
    }

    /// Whether the volume is written back and merged only when asked for.
    pub(in crate::cache) fn is_held_back(&self) -> bool {
        self.store_link().is_some_and(|link| link.is_held_back.load(Ordering::Relaxed))
    }

    /// Has the volume written back and merged only when asked for, or as usual again.
    pub fn hold_back(&self, is_held_back: bool) {
        let Some(link) = self.store_link() else { return };
        if link.is_held_back.swap(is_held_back, Ordering::Relaxed) && !is_held_back {
            link.merge_if_crowded(self.id);
            self.announce();
        }
    }

    pub(super) fn announce(&self) {
        if let Some(link) = self.store_link() {
            link.queue.announce(self.id);
        }
    }

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
    async fn mended(&self, link: &StoreLink) {
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
