//! The right to sync the file of a segment.
//!
//! Owns the beginning and the end of the right. Invariants: a segment file is synced, prepared, sealed or freed only by the
//! holder of the right, one holder at a time, as the kernel reports a failed sync to one caller only; whatever happens to the
//! holder, everybody waiting for the file is told when the hold ends.

use std::borrow::Borrow;

use super::log::table::SegmentInfo;
use super::shared::Shared;

/// The hold on the file of one segment. Dropping the hold ends the hold without a sync.
#[must_use = "the file is given back when this is dropped"]
pub(super) struct SyncHold<S: Borrow<Shared>> {
    shared: S,
    number: u32,
}

impl<S: Borrow<Shared>> SyncHold<S> {
    /// Holds the file of segment `number`; `None` while somebody else does.
    pub fn begin(shared: S, number: u32) -> Option<Self> {
        let is_free = shared.borrow().table.get(number).hold_file();
        is_free.then_some(Self { shared, number })
    }

    pub fn info(&self) -> &SegmentInfo {
        self.shared.borrow().table.get(self.number)
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Ends the hold after a sync that began when `covers` frames had been appended.
    pub fn end(self, covers: u32, is_stable: bool) {
        self.info().note_sync(covers, is_stable);
    }
}

impl<S: Borrow<Shared>> Drop for SyncHold<S> {
    fn drop(&mut self) {
        self.info().let_file_go();
        self.shared.borrow().sync_ended();
    }
}

impl<S: Borrow<Shared>> std::fmt::Debug for SyncHold<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncHold").field("number", &self.number).finish_non_exhaustive()
    }
}
