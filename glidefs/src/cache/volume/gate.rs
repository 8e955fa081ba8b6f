//! The gate of a volume: whether requests are served, and whether a request may wait.
//!
//! Owns the one answer for an export that is fenced, has two histories or was removed, and the signal of an attachment. Does not own
//! the waits: each wait asks the gate or is told by the gate. Invariants: a volume is lost once, and for good; from
//! `Volume::end_waits` until `Volume::allow_waits` (`waits`) no request of the volume begins to wait for log space, for the bound on
//! data at risk, or for the store.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use super::error::IoError;
use super::waiters::Waiters;

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
    pub are_waits_ended: AtomicBool,
    pub waits_ended: Arc<Notify>,
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
