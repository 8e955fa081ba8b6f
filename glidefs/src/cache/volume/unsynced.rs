//! The places of a volume's appends which are not known to be stable.
//!
//! Owns the list. Does not own the sync (`shard/sync`). Invariants: a place is on the list before the request of the append is
//! acknowledged, and until a sync has made the place stable; the list has one place for each use of a segment file.

use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable, Stability};
use crate::cache::volume::error::IoError;

impl Volume {
    /// Takes note that data of the volume ends at `place`, which is not stable.
    pub(in crate::cache) fn must_sync(&self, table: &SegmentTable, place: Place) {
        self.lock().remember(table, place);
    }

    /// Adds to `needs` every place which must become stable before a cut may leave the host; fails when one of the places never
    /// will.
    pub(in crate::cache) fn unsynced(
        &self,
        table: &SegmentTable,
        needs: &mut Vec<Place>,
    ) -> Result<(), IoError> {
        self.lock().unsynced(table, needs)
    }
}

impl Inner {
    pub(super) fn unsynced(&mut self, table: &SegmentTable, needs: &mut Vec<Place>) -> Result<(), IoError> {
        let mut outcome = Ok(());
        self.unsynced.retain(|place| match place.stability(table) {
            Stability::Stable => false,
            Stability::Unsynced => {
                needs.push(*place);
                true
            }
            Stability::Lost => {
                outcome = Err(IoError::Sync);
                true
            }
        });
        outcome
    }

    pub(super) fn remember(&mut self, table: &SegmentTable, place: Place) {
        let is_same = |known: &Place| known.number == place.number && known.segment_id == place.segment_id;
        if let Some(known) = self.unsynced.iter_mut().find(|known| is_same(known)) {
            known.end = known.end.max(place.end);
            return;
        }
        self.unsynced.retain(|known| known.stability(table) != Stability::Stable);
        debug_assert!(
            self.unsynced.iter().all(|known| !is_same(known)),
            "one place for each use of a segment file"
        );
        self.unsynced.push(place);
    }
}
