//! Whether requests of a volume may wait: the signal of one attachment.
//!
//! Owns the signal. Does not own the waits: each wait looks at the signal or is told by the signal. Invariant: from
//! [`Volume::end_waits`] until [`Volume::allow_waits`] no request of the volume begins to wait for log space, for the bound on
//! data at risk, or for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::Volume;

/// The signal: set while the device of an export is being removed.
#[derive(Debug, Default)]
pub(super) struct Waits {
    ended: AtomicBool,
    told: Arc<Notify>,
}

impl Volume {
    /// Ends every wait of this volume's requests, because the device of the export is being removed. Waiting requests fail with
    /// [`IoError::Detached`](crate::cache::IoError::Detached); waits in a list of a worker or a shard end when the worker is told
    /// as well. Requests without a need to wait are served as before.
    pub fn end_waits(&self) {
        self.waits.ended.store(true, Ordering::Release);
        self.waits.told.notify_waiters();
    }

    /// Lets requests wait again: the export is about to have a device.
    pub fn allow_waits(&self) {
        self.waits.ended.store(false, Ordering::Release);
    }

    /// Whether no request of this volume may wait at present.
    pub fn are_waits_ended(&self) -> bool {
        self.waits.ended.load(Ordering::Acquire)
    }

    /// Returns when no request of this volume may wait: at once if waits are ended already.
    pub async fn waits_ended(&self) {
        loop {
            // Made before the look, so an end between the two is not missed.
            let told = self.waits.told.notified();
            if self.are_waits_ended() {
                return;
            }
            told.await;
        }
    }

    /// Returns at the next call of [`Self::end_waits`] after this one, whenever the future is polled first: for short waits,
    /// which other requests end soon and which may begin while waits are ended.
    pub fn next_end_of_waits(&self) -> impl Future<Output = ()> + use<> {
        Arc::clone(&self.waits.told).notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::units::ExportId;

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
