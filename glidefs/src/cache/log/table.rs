//! The table of segments: the places, the extents and the stability of all segments of the cache.
//!
//! Does not own one segment's state (`info`), when a segment moves on (`keeper`) or the meaning of a segment's bytes. Invariant: a
//! segment becomes free only when no extent refers to the segment and no read is pinned to the segment.

use std::sync::atomic::{AtomicU32, Ordering};

pub(in crate::cache) use super::format::Place;
use super::format::{SegmentHeader, SegmentKey};
use super::info::SegmentInfo;
use super::life::State;
use crate::units::{FRAME_BYTES, FRAME_SECTORS};

/// How stable a place in a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Stability {
    /// The place survives a power cut; or the segment's file was used again, which happens only when nobody needs the contents.
    Stable,
    /// A sync of the segment is needed.
    Unsynced,
    /// A sync of the segment failed.
    Lost,
}

/// A change in the extents that refer to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refs {
    /// The segment's number.
    pub number: u32,
    /// Change in the number of extents that refer to the segment.
    pub extents: i32,
    /// Change in the number of sectors of data that those extents refer to.
    pub sectors: i64,
}

impl Refs {
    /// Sectors of data that extents no longer refer to.
    pub fn sectors_gone(self) -> u64 {
        self.sectors.min(0).unsigned_abs()
    }
}

impl Place {
    pub(in crate::cache) fn stability(&self, table: &SegmentTable) -> Stability {
        table.stability(self.number, self.segment_id, self.end)
    }
}

/// Every segment of the cache, and what all segments have in common.
#[derive(Debug)]
pub(in crate::cache) struct SegmentTable {
    segments: Box<[SegmentInfo]>,
    /// Segments from this number on are not used any more.
    limit: u32,
    cache_id: [u8; 16],
    segment_frames: u32,
}

impl SegmentTable {
    /// A table of `count` segments of `segment_frames` frames each. The first `limit` segments may be used.
    pub fn new(count: u32, limit: u32, cache_id: [u8; 16], segment_frames: u32) -> Self {
        let segments = (0..count).map(|_| SegmentInfo::default()).collect();
        Self { segments, limit, cache_id, segment_frames }
    }

    /// Number of segments that may be used; the segment numbers begin at 0.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Number of segments in the table, those behind the limit included.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    pub fn segment_frames(&self) -> u32 {
        self.segment_frames
    }

    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_frames) * FRAME_BYTES as u64
    }

    pub fn cache_id(&self) -> [u8; 16] {
        self.cache_id
    }

    /// The key of the segment with id `segment_id`.
    pub fn key(&self, segment_id: u64) -> SegmentKey {
        SegmentKey { cache_id: self.cache_id, segment_id }
    }

    /// The header of the segment with id `segment_id`, which `shard` fills.
    pub fn header(&self, segment_id: u64, shard: u32) -> SegmentHeader {
        SegmentHeader { cache_id: self.cache_id, segment_id, shard, segment_bytes: self.segment_bytes() }
    }

    /// The segment with number `number`. Numbers come from this table or were checked by recovery.
    pub fn get(&self, number: u32) -> &SegmentInfo {
        &self.segments[number as usize]
    }

    /// The segments that may be used, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &SegmentInfo)> {
        (0..self.limit).zip(&self.segments)
    }

    /// Number of segments in `state`.
    pub fn count(&self, state: State) -> u32 {
        // The count is at most `limit`.
        u32::try_from(self.iter().filter(|(_, info)| info.state() == state).count()).unwrap_or(u32::MAX)
    }

    /// Counts a change in the extents of one index that refer to a segment.
    pub fn count_refs(&self, refs: Refs) {
        let info = self.get(refs.number);
        info.live_sectors.fetch_add(refs.sectors, Ordering::Relaxed);
        count(&info.extents, refs.extents);
    }

    /// Counts a change in the extents whose data is in the store, besides [`Self::count_refs`].
    pub fn count_clean(&self, refs: Refs) {
        let info = self.get(refs.number);
        info.clean_sectors.fetch_add(refs.sectors, Ordering::Relaxed);
        count(&info.clean_extents, refs.extents);
    }

    /// Stability of the frames before `end` of the segment with id `segment_id`, which had the number `number`.
    pub fn stability(&self, number: u32, segment_id: u64, end: u32) -> Stability {
        let found = self.get(number);
        if found.segment_id.load(Ordering::SeqCst) != segment_id || found.synced.load(Ordering::SeqCst) >= end
        {
            return Stability::Stable;
        }
        let lost = found.is_poisoned();
        // The segment may have been taken into use again between the loads.
        match (found.segment_id.load(Ordering::SeqCst) == segment_id, lost) {
            (false, _) => Stability::Stable,
            (true, true) => Stability::Lost,
            (true, false) => Stability::Unsynced,
        }
    }
}

fn count(extents: &AtomicU32, change: i32) {
    if change > 0 {
        extents.fetch_add(change.unsigned_abs(), Ordering::AcqRel);
    } else if change < 0 {
        extents.fetch_sub(change.unsigned_abs(), Ordering::AcqRel);
    }
}

/// The frames that hold `sectors` sectors from sector `first` of a segment on, as the first frame and the number of frames.
pub(in crate::cache) fn frames_of(first: u32, sectors: u64) -> (u32, u32) {
    let start = u64::from(first) / FRAME_SECTORS;
    let end = (u64::from(first) + sectors).div_ceil(FRAME_SECTORS);
    // A segment has fewer than 2^32 frames.
    (u32::try_from(start).unwrap_or(u32::MAX), u32::try_from(end - start).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_an_earlier_use_of_a_segment_counts_as_stable() {
        let table = SegmentTable::new(1, 1, [0; 16], 64);
        table.get(0).begin_use(5, 1);
        table.get(0).set_appended(10);
        assert_eq!(table.stability(0, 5, 1), Stability::Stable);
        assert_eq!(table.stability(0, 5, 10), Stability::Unsynced);
        table.get(0).poison();
        assert_eq!(table.stability(0, 5, 10), Stability::Lost);
        table.get(0).begin_use(6, 1);
        assert_eq!(table.stability(0, 5, 10), Stability::Stable);
    }

    #[test]
    fn a_sync_that_ends_well_after_another_failed_makes_nothing_stable() {
        let table = SegmentTable::new(1, 1, [0; 16], 64);
        let info = table.get(0);
        info.begin_use(5, 1);
        assert!(info.hold_file());
        assert!(!info.hold_file(), "one at a time");
        info.note_sync(10, false);
        info.let_file_go();
        assert!(info.hold_file());
        info.note_sync(10, true);
        assert_eq!(table.stability(0, 5, 10), Stability::Lost);
    }

    #[test]
    fn sectors_are_covered_by_every_frame_they_touch() {
        assert_eq!(frames_of(8, 8), (1, 1));
        assert_eq!(frames_of(9, 8), (1, 2));
        assert_eq!(frames_of(15, 1), (1, 1));
    }
}
