//! Where a worker stops the requests of an export.
//!
//! Owns the worker's only look at the stop signal of a volume, and the failure of a stopped request. Does not own the signal:
//! `Volume::end_waits` raises the signal before the device of an export is removed. Each waiting place asks here, so this file
//! has the rule for all waits of a worker: while a volume is stopped, a request which need not wait is served, and a request
//! which would have to wait fails.
//!
//! An export is lost when another writer has the volume, or the store has another history. `cache::Shard` refuses each request
//! of a lost volume when the worker hands the request over, and `Volume::fetch` refuses a READ which waits for the store. The
//! worker ends no other wait because of the loss. The data of an export is removed only after the device, so no request meets a
//! removed volume.

use std::sync::Arc;

use crate::cache::{IoError, Volume};

/// Why a stopped request fails.
pub const STOPPED: IoError = IoError::Detached;

/// Whether requests of `volume` may begin to wait.
#[inline]
pub fn may_wait(volume: &Volume) -> bool {
    !volume.are_waits_ended()
}

/// Returns when requests of `volume` are stopped, at once when they are stopped already.
pub async fn stopped(volume: &Volume) -> IoError {
    volume.waits_ended().await;
    STOPPED
}

/// Returns when requests of `volume` are stopped the next time after this call, whenever the future is polled first. Such a wait
/// may begin while the volume is stopped: for waits which other requests end soon.
pub fn next_stop(volume: &Arc<Volume>) -> impl Future<Output = ()> + use<> {
    volume.next_end_of_waits()
}
