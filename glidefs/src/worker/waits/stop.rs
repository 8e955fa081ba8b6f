//! Where a worker ends the waits of an export's requests.
//!
//! Owns the worker's only look at whether the waits of a volume are ended, and the failure of a request. Does not own the signal:
//! `Volume::end_waits` raises the signal before the device of an export is removed. Each waiting place asks here, so this file
//! has the rule for all waits of a worker: while the waits of a volume are ended, a request which need not wait is served, and a
//! request which would have to wait fails.
//!
//! An export is lost when another writer has the volume, or the store has another history. `cache::Shard` refuses each request
//! of a lost volume when the worker hands the request over, and `Volume::fetch` refuses a READ which waits for the store. The
//! worker ends no other wait because of the loss. The data of an export is removed only after the device, so no request meets a
//! removed volume.

use crate::cache::{IoError, Volume};

/// Why a request whose wait was ended fails.
pub const STOPPED: IoError = IoError::Detached;

/// Whether requests of `volume` may begin to wait.
#[inline]
pub fn may_wait(volume: &Volume) -> bool {
    !volume.are_waits_ended()
}
