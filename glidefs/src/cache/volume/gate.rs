//! The gate of a volume: whether requests are served, and whether a request may wait.
//!
//! Owns the one answer for an export that is fenced, has two histories or was removed, and the signal of an attachment. Does not own
//! the waits: each wait asks the gate or is told by the gate. Invariants: a volume is lost once, and for good; from
//! [`Volume::end_waits`] until [`Volume::allow_waits`] no request of the volume begins to wait for log space, for the bound on data at
//! risk, or for the store; a shard that has entered itself among the [`Waiters`], and then found that a request has to wait, is told
//! once of the first progress after the look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use super::Volume;
use super::error::IoError;
use crate::locks::MutexExt;
use crate::units::ExportId;

/// The gate. Fetches that outlive a look at the volume share it.
#[derive(Debug, Default)]
pub(in crate::cache) struct Gate {
    /// Why no data is served any more: another writer, or another history, has the volume.
    lost: OnceLock<IoError>,
    /// Why no fetch goes on: the volume is lost, or was removed.
    closed: OnceLock<IoError>,
    /// Told when `closed` is set.
    closes: Notify,
    /// No request may wait: the device of the export is being removed.
    are_waits_ended: AtomicBool,
    waits_ended: Arc<Notify>,
    /// Told of every change here which may end a wait for the store, and of each cut that has come into the store or will not.
    pub waiters: Waiters,
}

impl Gate {
    /// Fails every request of the volume from now on, for `reason`.
    pub fn lose(&self, reason: IoError) {
        let reason = *self.lost.get_or_init(|| reason);
        self.close(reason);
    }

    /// Why no data is served any more, if so.
    pub fn lost(&self) -> Option<IoError> {
        self.lost.get().copied()
    }

    /// Ends all fetches, later ones as well. The first reason stays.
    pub fn close(&self, reason: IoError) {
        if self.closed.set(reason).is_ok() {
            self.closes.notify_waiters();
        }
        self.waiters.tell();
    }

    /// Returns when fetches have to end, with the reason.
    pub async fn closed(&self) -> IoError {
        loop {
            // Begun before the look, so no telling after the look is missed.
            let told = self.closes.notified();
            if let Some(reason) = self.closed.get() {
                return *reason;
            }
            told.await;
        }
    }
}

/// Tells a shard, from any thread, that the volume of the export has made progress. Must not block.
pub(in crate::cache) type Teller = Arc<dyn Fn(ExportId) + Send + Sync>;

/// Each shard to be told, with the export in question.
#[derive(Default)]
pub(in crate::cache) struct Waiters(Mutex<Vec<(ExportId, Teller)>>);

crate::units::debug_by_name!(Waiters);

impl Waiters {
    /// Has `teller` called at the next progress.
    pub fn enter(&self, export: ExportId, teller: &Teller) {
        // A list is whole between the list's own calls.
        let mut list = self.0.lock_whole();
        if !list.iter().any(|(_, known)| Arc::ptr_eq(known, teller)) {
            list.push((export, Arc::clone(teller)));
        }
    }

    /// Tells everybody on the list, and empties the list.
    pub fn tell(&self) {
        for (export, teller) in std::mem::take(&mut *self.0.lock_whole()) {
            teller(export);
        }
    }
}

impl Volume {
    /// Why no data of the volume may be served here any more, if so: every request fails with it.
    pub fn lost(&self) -> Option<IoError> {
        self.gate.lost()
    }

    /// Ends every wait of this volume's requests, because the device of the export is being removed. Waiting requests fail with
    /// [`IoError::Detached`]; waits in a list of a worker or a shard end when the worker is told
    /// as well. Requests without a need to wait are served as before.
    pub fn end_waits(&self) {
        self.gate.are_waits_ended.store(true, Ordering::Release);
        self.gate.waits_ended.notify_waiters();
        self.gate.waiters.tell();
    }

    /// Lets requests wait again: the export is about to have a device.
    pub fn allow_waits(&self) {
        self.gate.are_waits_ended.store(false, Ordering::Release);
    }

    /// Whether no request of this volume may wait at present.
    pub fn are_waits_ended(&self) -> bool {
        self.gate.are_waits_ended.load(Ordering::Acquire)
    }

    /// Has `teller` called at the next progress of the volume: with writeback, to another owner, or to the end of all waits.
    pub(in crate::cache) fn tell_of_progress(&self, teller: &Teller) {
        self.gate.waiters.enter(self.id, teller);
    }

    /// Returns when no request of this volume may wait: at once if waits are ended already.
    pub async fn waits_ended(&self) {
        loop {
            // Made before the look, so an end between the two is not missed.
            let told = self.gate.waits_ended.notified();
            if self.are_waits_ended() {
                return;
            }
            told.await;
        }
    }

    /// Returns at the next call of [`Self::end_waits`] after this one, whenever the future is polled first: for short waits,
    /// which other requests end soon and which may begin while waits are ended.
    pub fn next_end_of_waits(&self) -> impl Future<Output = ()> + use<> {
        Arc::clone(&self.gate.waits_ended).notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_has_entered_is_told_once_however_often_it_has_entered() {
        let (waiters, told) = (Waiters::default(), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&told);
        let teller: Teller = Arc::new(move |export| {
            assert_eq!(export, ExportId(7));
            count.fetch_add(1, Ordering::SeqCst);
        });
        waiters.tell();
        waiters.enter(ExportId(7), &teller);
        waiters.enter(ExportId(7), &teller);
        waiters.tell();
        waiters.tell();
        assert_eq!(told.load(Ordering::SeqCst), 1);
        waiters.enter(ExportId(7), &teller);
        waiters.tell();
        assert_eq!(told.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn who_waits_is_told_when_waits_end_and_who_comes_later_does_not_wait() {
        let volume = Volume::new(ExportId(1));
        let mut early = Box::pin(volume.waits_ended());
        let mut next = Box::pin(volume.next_end_of_waits());
        let unpolled = volume.next_end_of_waits();
        assert!((&mut early).now_or_never().is_none() && (&mut next).now_or_never().is_none());
        volume.end_waits();
        assert!(early.now_or_never().is_some() && next.now_or_never().is_some());
        assert!(unpolled.now_or_never().is_some(), "the end came before the first poll");
        assert!(volume.are_waits_ended() && volume.waits_ended().now_or_never().is_some());
        assert!(volume.next_end_of_waits().now_or_never().is_none(), "the next end has not come");
        volume.allow_waits();
        assert!(!volume.are_waits_ended() && volume.waits_ended().now_or_never().is_none());
    }
}
