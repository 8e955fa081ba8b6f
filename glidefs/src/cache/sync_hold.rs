//! The right to sync the file of a segment.
//!
//! Owns the beginning and the end of the right. Invariants: a segment file is synced, prepared, sealed or freed only by the
//! holder of the right, one holder at a time, as the kernel reports a failed sync to one caller only; whatever happens to the
//! holder, everybody waiting for the file is told when the hold ends.

use std::borrow::Borrow;

use super::log::info::SegmentInfo;
use super::shared::Shared;

/// The hold on the file of one segment. Dropping the hold ends the hold without a sync.
#[must_use = "the file is given back when this is dropped"]
pub(super) struct SyncHold<S: Borrow<Shared>> {
    shared: S,
    pub number: u32,
}

impl<S: Borrow<Shared>> SyncHold<S> {
    /// Holds the file of segment `number`; `None` while somebody else does.
    pub fn begin(shared: S, number: u32) -> Option<Self> {
        // A hold that is made ends another one's when it is dropped: none is made while the file is held.
        let is_free = shared.borrow().table.get(number).hold_file();
        is_free.then(|| Self { shared, number })
    }

    pub fn info(&self) -> &SegmentInfo {
        self.shared.borrow().table.get(self.number)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::{Budgets, Cache, Directory, Known, MonotonicClock, OnFull, Options};

    #[test]
    fn a_hold_ends_when_it_is_dropped_and_a_refused_one_ends_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(Directory::new(directory.path()));
        let options = Options {
            size_bytes: 8 << 20,
            segment_bytes: 1 << 20,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 1 << 20,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        };
        let clock = Arc::new(MonotonicClock::default());
        let (cache, _) = Cache::open(disk, clock, options, Known::local(&[])).unwrap();
        let shared = &*cache.shared;
        let hold = SyncHold::begin(shared, 0).expect("nobody has the file");
        assert!(SyncHold::begin(shared, 0).is_none());
        assert!(SyncHold::begin(shared, 0).is_none(), "the refused hold ended the other one");
        drop(hold);
        assert!(SyncHold::begin(shared, 0).is_some());
    }
}
