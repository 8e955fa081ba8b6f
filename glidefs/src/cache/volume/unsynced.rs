//! The places that a volume appended to and that are not known to be stable.
//!
//! Owns the list. Does not own the sync (`shard/sync`). Invariant: a place is on the list before the request that appended there is
//! acknowledged, and until a sync has made the place stable.

use super::{Inner, Volume};
use crate::cache::log::table::{Place, SegmentTable, Stability};
use crate::cache::volume::error::IoError;

impl Volume {
    /// Takes note that data of it ends at `place`, which is not stable.
    pub(in crate::cache) fn must_sync(&self, table: &SegmentTable, place: Place) {
        self.lock().remember(table, place);
    }

    /// Adds to `needs` every place that must become stable before the cut may leave the host.
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
        let same = |known: &&mut Place| known.number == place.number && known.segment_id == place.segment_id;
        if let Some(known) = self.unsynced.iter_mut().find(same) {
            known.end = known.end.max(place.end);
            return;
        }
        self.unsynced.retain(|known| known.stability(table) != Stability::Stable);
        self.unsynced.push(place);
    }
}
