//! Who is told of the progress of a volume: shards with requests which wait for the store.
//!
//! Owns the list. Does not own the requests, nor what counts as progress. Invariant: a shard which has entered itself, and then found
//! that a request has to wait, is told once of the first progress behind the look, so nobody has to look again and again.

use std::sync::{Arc, Mutex};

use crate::locks::MutexExt;
use crate::units::ExportId;

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

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
}
