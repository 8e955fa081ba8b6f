//! The table of segments: what each segment holds, who still needs the segment, and how much of the segment is stable.
//!
//! Owns the counters that decide a segment's life cycle (`life`). Does not own when a segment moves on (`keeper`) or the meaning
//! of a segment's bytes. Invariants: a segment becomes free only when no extent refers to the segment and no read is pinned to
//! the segment; a segment id changes only then; whoever syncs a segment's file holds `sync_busy`, because the kernel reports a
//! failed write of its pages to one caller only.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::disk::SegmentFile;
use super::format::SegmentKey;
use super::life::{Event, State};
use crate::units::{FRAME_BYTES, FRAME_SECTORS};

/// The state and the counters of one segment.
#[derive(Debug, Default)]
pub(in crate::cache) struct SegmentInfo {
    state: AtomicU8,
    /// Data in the segment may not be stable although a sync was tried: the data must be written again, here or elsewhere, before
    /// anything else is given up.
    poisoned: AtomicBool,
    sync_busy: AtomicBool,
    /// No other segment is put into the file before the next start: the disk did not read or take some of the file, or a damaged
    /// segment in the file stands for entries of doubt.
    retired: AtomicBool,
    /// A write of the header in front failed, so the bytes in front are unknown.
    pub front_unsure: AtomicBool,
    /// Number of reads under way.
    pins: AtomicU32,
    /// Number of extents that refer to the segment.
    extents: AtomicU32,
    /// Frames from the segment's start that were appended, and frames that are known to be stable.
    appended: AtomicU32,
    synced: AtomicU32,
    segment_id: AtomicU64,
    /// Sectors of data that the extents refer to.
    live_sectors: AtomicI64,
    /// The part of `extents` and of `live_sectors` that is in the store as well, and so may be given up.
    clean_extents: AtomicU32,
    clean_sectors: AtomicI64,
    file: OnceLock<Arc<dyn SegmentFile>>,
    /// CRC-32C of every data frame.
    crcs: OnceLock<Box<[AtomicU32]>>,
}

impl SegmentInfo {
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    /// Moves the segment on. An event that must not happen in this state is a bug: the event is reported and ignored.
    pub fn on(&self, event: Event) {
        let state = self.state();
        debug_assert!(state.on(event).is_some(), "{event:?} in {state:?}");
        if let Some(next) = state.on(event) {
            self.state.store(next as u8, Ordering::Release);
        } else {
            tracing::error!(
                ?state,
                ?event,
                "a segment got an event that its state does not allow: the event is ignored"
            );
        }
    }

    pub fn segment_id(&self) -> u64 {
        self.segment_id.load(Ordering::Acquire)
    }

    pub fn extents(&self) -> u32 {
        self.extents.load(Ordering::Acquire)
    }

    pub fn live_sectors(&self) -> u64 {
        u64::try_from(self.live_sectors.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Number of extents whose data is not in the store.
    pub fn dirty_extents(&self) -> u32 {
        // The two counters are not read together. A wrong difference does no harm: the caller looks again.
        self.extents().saturating_sub(self.clean_extents.load(Ordering::Acquire))
    }

    /// Sectors of data that are not in the store.
    pub fn dirty_sectors(&self) -> u64 {
        let clean = u64::try_from(self.clean_sectors.load(Ordering::Relaxed)).unwrap_or(0);
        self.live_sectors().saturating_sub(clean)
    }

    pub fn appended(&self) -> u32 {
        self.appended.load(Ordering::Acquire)
    }

    pub fn set_appended(&self, frames: u32) {
        self.appended.store(frames, Ordering::Release);
    }

    pub fn synced(&self) -> u32 {
        self.synced.load(Ordering::Acquire)
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    /// As [`Self::poison`], when recovery knows that only the frames before `stable` are stable.
    pub fn poison_from(&self, stable: u32) {
        self.synced.store(stable, Ordering::SeqCst);
        self.poison();
    }

    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Keeps the file from being used for another segment before the next start.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// The segment's file, once opened.
    pub fn file(&self) -> Option<&Arc<dyn SegmentFile>> {
        self.file.get()
    }

    pub fn set_file(&self, file: Arc<dyn SegmentFile>) -> &Arc<dyn SegmentFile> {
        self.file.get_or_init(|| file)
    }

    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) != 0
    }

    /// Counts a read. The caller holds the lock of a volume that has an extent here.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    pub fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Makes the caller the only one to sync the file. `false` when somebody else syncs the file. Only `SyncHold::begin` calls
    /// this.
    pub fn hold_file(&self) -> bool {
        !self.sync_busy.swap(true, Ordering::SeqCst)
    }

    /// Ends a hold that [`Self::hold_file`] began. Only `SyncHold` calls this, and then wakes everybody who waits for the file.
    pub fn let_file_go(&self) {
        let was_held = self.sync_busy.swap(false, Ordering::SeqCst);
        debug_assert!(was_held, "nobody held the file that was let go");
    }

    /// Notes the result of a sync that began when `covers` frames had been appended. The caller holds the file.
    pub fn note_sync(&self, covers: u32, stable: bool) {
        if stable && !self.is_poisoned() {
            self.synced.fetch_max(covers, Ordering::AcqRel);
        } else {
            self.poison();
        }
    }

    /// Notes that the appended frames are stable, after a rewrite and a sync. The caller holds the file; nothing is appended any
    /// more.
    pub fn heal(&self) {
        self.synced.store(self.appended(), Ordering::SeqCst);
        self.poisoned.store(false, Ordering::Release);
    }

    /// Ends the use of the segment: nobody needs the contents, so nobody needs the contents to be stable. The caller holds the
    /// file.
    pub fn end_use(&self) {
        self.segment_id.store(0, Ordering::SeqCst);
        self.poisoned.store(false, Ordering::Release);
    }

    /// Takes the segment into use for `segment_id`, with `frames` frames written and stable. The caller holds the file, so that
    /// no sync that began before reports into this use.
    pub fn begin_use(&self, segment_id: u64, frames: u32) {
        self.poisoned.store(false, Ordering::Release);
        self.live_sectors.store(0, Ordering::Relaxed);
        self.clean_sectors.store(0, Ordering::Relaxed);
        // A volume may still remember a place of the last use. The new id is stored first: the id tells the volume to forget that
        // place.
        self.segment_id.store(segment_id, Ordering::SeqCst);
        self.synced.store(frames, Ordering::SeqCst);
        self.appended.store(frames, Ordering::Release);
    }

    /// CRC of `frame`, or `None` when the segment has no such frame.
    pub fn crc(&self, frame: u32) -> Option<u32> {
        Some(self.crcs.get()?.get(frame as usize)?.load(Ordering::Relaxed))
    }

    /// Makes room for the CRCs of `frames` frames, unless there is room already.
    pub fn make_crcs(&self, frames: u32) {
        self.crcs.get_or_init(|| (0..frames).map(|_| AtomicU32::new(0)).collect());
    }

    /// Sets the CRCs of the frames from `first` on. An index insert or [`Self::set_appended`] publishes the CRCs.
    pub fn set_crcs(&self, first: u32, crcs: &[u32]) {
        let cells = self.crcs.get().and_then(|cells| cells.get(first as usize..)).unwrap_or_default();
        debug_assert!(cells.len() >= crcs.len(), "a record reaches beyond its segment");
        for (cell, crc) in cells.iter().zip(crcs) {
            cell.store(*crc, Ordering::Relaxed);
        }
    }
}

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

/// The end of some frames in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Place {
    /// The segment's number.
    pub number: u32,
    /// The segment's id, which tells this use of the file from the next.
    pub segment_id: u64,
    /// One past the last frame.
    pub end: u32,
}

impl Place {
    pub fn stability(&self, table: &SegmentTable) -> Stability {
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
        if refs.extents > 0 {
            info.extents.fetch_add(refs.extents.unsigned_abs(), Ordering::AcqRel);
        } else if refs.extents < 0 {
            info.extents.fetch_sub(refs.extents.unsigned_abs(), Ordering::AcqRel);
        }
    }

    /// Counts a change in the extents whose data is in the store, besides [`Self::count_refs`].
    pub fn count_clean(&self, refs: Refs) {
        let info = self.get(refs.number);
        info.clean_sectors.fetch_add(refs.sectors, Ordering::Relaxed);
        if refs.extents > 0 {
            info.clean_extents.fetch_add(refs.extents.unsigned_abs(), Ordering::AcqRel);
        } else if refs.extents < 0 {
            info.clean_extents.fetch_sub(refs.extents.unsigned_abs(), Ordering::AcqRel);
        }
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
    fn a_segment_costs_little_until_it_is_used() {
        assert!(size_of::<SegmentInfo>() <= 120, "{} bytes", size_of::<SegmentInfo>());
    }

    #[test]
    fn sectors_are_covered_by_every_frame_they_touch() {
        assert_eq!(frames_of(8, 8), (1, 1));
        assert_eq!(frames_of(9, 8), (1, 2));
        assert_eq!(frames_of(15, 1), (1, 1));
    }
}
