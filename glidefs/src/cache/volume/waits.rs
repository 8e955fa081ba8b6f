//! The questions of requests to the gate of a volume, and the signal of an attachment.
//!
//! Does not own the state (`gate`), nor the waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Volume;
use super::waiters::Teller;
use crate::cache::volume::error::IoError;

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
