//! A volume and its counterpart in the store: whose it is, what is at risk, and who waits for the store to have what.
//!
//! Does not own cuts, nor how they get there (`flush`).

use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use crate::cache::volume::durability::{Durability, Pace, Triggers};
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::Extent;
use crate::cache::volume::fetch::OnUnreachable;
use crate::cache::volume::queue::WritebackQueue;
use crate::cache::volume::store_link::StoreLink;
use crate::store::volume::{Crowd, UploadProgress, VolumeError};
use crate::units::{SECTOR_BYTES, Seq};

/// What of a volume is not in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtRisk {
    /// Bytes of data.
    pub bytes: u64,
    /// How long the oldest data has been so.
    pub age: Duration,
    /// What is in the way, as far as that is known.
    pub why: Option<String>,
}

impl Volume {
    /// The store's side, where there is a store.
    pub(in crate::cache) fn store_link(&self) -> Option<&StoreLink> {
        self.store_link.get()
    }

    /// Ties the volume to `remote`, its counterpart in the store, which knows `stored_sectors` of its `size_sectors`. What it
    /// holds already is stored like new data. Call it once: before the first request, or when all of it was written here.
    pub fn link_to_store(
        &self,
        remote: crate::store::volume::VolumeWriter,
        queue: Arc<WritebackQueue>,
        size_sectors: u64,
        stored_sectors: u64,
    ) {
        let tied = self.store_link.set(StoreLink::new(remote, queue, size_sectors, stored_sectors));
        debug_assert!(tied.is_ok(), "tied twice");
        if let Some(link) = self.store_link.get().filter(|link| link.remote().loss().is_some()) {
            link.fence();
            return;
        }
        if let Some(link) = self.store_link.get() {
            link.merge_if_crowded(self.id);
        }
        if self.needs_writeback() {
            if let Some(link) = self.store_link.get() {
                let mut inner = self.lock();
                // A new size alone puts nothing at risk.
                if Seq(inner.last_seq) > inner.layers.stored() {
                    inner.active_since.get_or_insert_with(|| link.now());
                }
                drop(inner);
                if link.has_new_size() {
                    link.ask(self.id);
                }
            }
            self.announce();
        }
    }

    /// How far the cut is that is on its way to the store; `None` where there is none.
    pub fn upload(&self) -> Option<UploadProgress> {
        let progress = self.store_link.get()?.upload().progress();
        (progress.total_bytes > 0).then_some(progress)
    }

    /// The counterpart in the store.
    pub fn remote(&self) -> Option<&crate::store::volume::VolumeWriter> {
        self.store_link.get().map(StoreLink::remote)
    }

    /// Tells the store that the export, of `from_sectors`, is made larger: its new size, sectors.
    pub fn grow(&self, from_sectors: u64, size_sectors: u64) {
        self.lock().layers.grows_from(from_sectors);
        if let Some(link) = self.store_link.get() {
            link.set_size(size_sectors);
            link.ask(self.id);
        }
    }

    /// Notes that the store has another state of the volume, of this size in sectors and so crowded, and that nothing of the volume
    /// is here.
    pub fn replaced(&self, size_sectors: u64, crowd: Crowd) {
        if let Some(link) = self.store_link.get() {
            link.set_size(size_sectors);
            link.stored_size(size_sectors);
            link.crowding().set(crowd);
            link.merge_if_crowded(self.id);
        }
    }

    /// Returns when everything that was acknowledged before is in the store: up to which sequence number. Of what was lost here the
    /// store has that it is damaged.
    ///
    /// # Errors
    /// [`IoError::Fenced`] when another writer has the volume, [`IoError::Diverged`], [`IoError::Removed`], [`IoError::Unreadable`] when a try since the
    /// call could not read what is here, and [`IoError::Store`] where there is no store. A store that is away is waited for.
    pub async fn written_back(&self) -> Result<Seq, IoError> {
        let link = self.store_link.get().ok_or(IoError::Store)?;
        let (target, unreadable) = (self.figures().last_seq, link.unreadable_cuts());
        loop {
            let progress = link.progress().notified();
            if let Some(lost) = link.lost() {
                return Err(lost);
            }
            if self.is_removed() {
                return Err(IoError::Removed(self.id));
            }
            let stored = self.figures().stored;
            if stored >= target && !link.has_new_size() {
                return Ok(stored);
            }
            if link.unreadable_cuts() > unreadable {
                return Err(IoError::Unreadable);
            }
            link.ask(self.id);
            progress.await;
        }
    }

    /// What is not in the store; `None` where all of it is, or there is no store.
    pub fn at_risk(&self) -> Option<AtRisk> {
        let link = self.store_link.get()?;
        let figures = self.figures();
        let is_at_risk = figures.last_seq > figures.stored;
        is_at_risk.then(|| AtRisk {
            bytes: figures.dirty_bytes,
            age: figures.at_risk_for,
            why: link.trouble(),
        })
    }

    /// Asks the store whether the volume still belongs to this host: `false` when it did not answer in time.
    ///
    /// # Errors
    /// When it does not, which is noted: nothing of it is served any more.
    pub async fn confirm(&self, patience: Duration) -> Result<bool, VolumeError> {
        let Some(link) = self.store_link.get() else { return Ok(true) };
        match tokio::time::timeout(patience, link.remote().confirm()).await {
            Ok(Ok(())) => Ok(true),
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

    /// Has everything that was acknowledged stored as soon as possible.
    pub fn ask_writeback(&self) {
        if let Some(link) = self.store_link.get() {
            link.ask(self.id);
        }
    }

    /// Says what a FLUSH is to survive. Without a store that is always the same.
    pub fn set_durability(&self, durability: Durability) {
        if let Some(link) = self.store_link.get() {
            link.set_durability(durability);
        }
    }

    /// Says what a READ does that needs a store that is away.
    pub fn set_on_unreachable(&self, on_unreachable: OnUnreachable) {
        if let Some(link) = self.store_link.get() {
            link.set_on_unreachable(on_unreachable);
        }
    }

    /// Whether FLUSH waits for the store.
    pub(in crate::cache) fn waits_for_store(&self) -> bool {
        self.store_link.get().is_some_and(StoreLink::waits)
    }

    /// When a WRITE of `bytes` may go on without more being at risk than is allowed, and with merging keeping up; 0 for zeroes.
    /// `paused` says that it has paused already. What may go on is promised: call [`Self::settled`] when it has ended.
    pub fn pace(&self, bytes: u64, paused: bool) -> Pace {
        let Some(link) = self.store_link.get().filter(|link| !link.is_fenced()) else { return Pace::Go };
        // What cannot be read here can only be written again.
        let Some(bound) = link.bound().filter(|_| !link.is_unreadable()) else {
            return link.crowding().pace(bytes, || link.now());
        };
        let mut inner = self.lock();
        let promised = inner.promised_bytes.saturating_add(bytes);
        let at_risk = inner.layers.dirty_bytes().saturating_add(promised);
        let pace = match bound.pace(at_risk, inner.at_risk_for(Some(link))) {
            Pace::Pause(pause) if !paused => Pace::Pause(pause),
            Pace::Wait => Pace::Wait,
            Pace::Go | Pace::Pause(_) => link.crowding().pace(bytes, || link.now()),
        };
        if pace == Pace::Go {
            inner.promised_bytes = promised;
        }
        pace
    }

    /// Takes note that a WRITE of `bytes` that [`Self::pace`] let go on has ended.
    pub fn settled(&self, bytes: u64) {
        if self.store_link.get().is_some_and(|link| link.bound().is_some()) {
            let mut inner = self.lock();
            inner.promised_bytes = inner.promised_bytes.saturating_sub(bytes);
        }
    }

    /// When to cut it: `triggers`, or sooner where little may be at risk.
    pub(in crate::cache) fn triggers(&self, triggers: &Triggers) -> Triggers {
        let bound = self.store_link.get().and_then(StoreLink::bound);
        bound.map_or(*triggers, |bound| bound.sooner(triggers))
    }

    /// How many cuts could not be read so far. Those without some of their content count when a FLUSH was told of them.
    pub(in crate::cache) fn unreadable_cuts(&self) -> u64 {
        self.store_link.get().map_or(0, StoreLink::failed_cuts)
    }

    /// Whether the store has everything up to `seq`; an error when it never will, when more than `unreadable` cuts could not be
    /// read, or not all of what they hold, or when nobody may wait for it. Otherwise the volume is asked to be stored.
    pub(in crate::cache) fn is_in_store(&self, seq: Seq, unreadable: u64) -> Result<bool, IoError> {
        let inner = self.lock();
        let (stored, removed) = (inner.layers.stored(), inner.removed);
        drop(inner);
        if stored >= seq {
            let lossy = self.store_link.get().is_some_and(|link| link.reports_loss(unreadable));
            return if lossy { Err(IoError::Unreadable) } else { Ok(true) };
        }
        if removed {
            return Err(IoError::Removed(self.id));
        }
        let link = self.store_link.get().ok_or(IoError::Store)?;
        if let Some(lost) = link.lost() {
            return Err(lost);
        }
        if link.failed_cuts() > unreadable {
            return Err(IoError::Unreadable);
        }
        if self.are_waits_ended() {
            return Err(IoError::Detached);
        }
        link.ask(self.id);
        Ok(false)
    }

    /// Bytes whose content was lost before the store had it, as of the last flush. `None` where there is no store.
    pub fn damaged_bytes(&self) -> Option<u64> {
        Some(self.store_link.get()?.remote().damaged_sectors().saturating_mul(SECTOR_BYTES))
    }

    /// Packs of the store that a read of one sector may have to ask, and packs in all. `None` where there is no store.
    pub fn packs(&self) -> Option<(u64, u64)> {
        self.store_link.get().map(|link| link.crowding().figures())
    }

    /// Why nothing of the volume may be served here any more, if so.
    pub fn lost(&self) -> Option<IoError> {
        self.store_link.get()?.lost()
    }

    /// Whether another writer has the volume, or another history, so that nothing of the volume may be served here.
    pub fn is_fenced(&self) -> bool {
        self.store_link.get().is_some_and(StoreLink::is_fenced)
    }

    /// What is not in the store, and the last sequence number of it.
    pub(in crate::cache) fn dirty(&self) -> (Seq, Vec<Extent>) {
        let inner = self.lock();
        (Seq(inner.last_seq), inner.layers.dirty())
    }

    /// Whether something of it is not in the store.
    pub(in crate::cache) fn needs_writeback(&self) -> bool {
        let figures = self.figures();
        figures.last_seq > figures.stored || self.store_link.get().is_some_and(StoreLink::has_new_size)
    }

    pub(super) fn announce(&self) {
        if let Some(link) = self.store_link.get() {
            link.announce(self.id);
        }
    }
}
