//! The state of one segment in memory: life, counters, file and checksums.
//!
//! Owns the counters that decide the segment's life cycle (`life`). Invariants: the segment id changes only when nobody needs the
//! contents; whoever syncs the segment's file holds `sync_busy`, because the kernel reports a failed write of its pages to one caller
//! only; checksums leave memory only when footer and trailer are on the disk.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};

use super::disk::SegmentFile;
use super::format::{CoveredSegment, Trailer};
use super::life::State;
use super::mapping::Mapping;
use super::sums::Crcs;
use crate::units::FRAME_BYTES;

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
    pub(super) extents: AtomicU32,
    /// Frames from the segment's start that were appended, and frames that are known to be stable.
    appended: AtomicU32,
    pub(super) synced: AtomicU32,
    pub(super) segment_id: AtomicU64,
    /// Sectors of data that the extents refer to.
    pub(super) live_sectors: AtomicI64,
    /// The part of `extents` and of `live_sectors` that is in the store as well, and so may be given up.
    pub(super) clean_extents: AtomicU32,
    pub(super) clean_sectors: AtomicI64,
    file: OnceLock<Arc<dyn SegmentFile>>,
    /// The checksums of all frames: until the segment is sealed, and later where the sums on the disk cannot be used. Readers take
    /// no lock: a segment may be sealed while the segment is read.
    crcs: ArcSwapOption<Crcs>,
    /// The file in memory, of a segment that is read often. Readers take no lock.
    mapping: ArcSwapOption<Mapping>,
    /// The segment is appended to past the page cache.
    through: AtomicBool,
    /// First frame of the sums on the disk; 0 without sums.
    sums_frame: AtomicU32,
    /// Length and CRC of the footer before the sums.
    footer_bytes: AtomicU32,
    footer_crc: AtomicU32,
}

impl SegmentInfo {
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    /// Moves the segment on to `next`. A step that this state does not allow is a bug: it is reported and not made.
    pub fn enter(&self, next: State) {
        let state = self.state();
        debug_assert!(state.leads_to(next), "{next:?} after {state:?}");
        if state.leads_to(next) {
            self.state.store(next as u8, Ordering::Release);
        } else {
            tracing::error!(?state, ?next, "a segment was to take a step that its state does not allow");
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

    /// Notes that the segment is appended to past the page cache.
    pub fn set_through(&self) {
        self.through.store(true, Ordering::Release);
    }

    /// Whether appends, past the page cache, may still take pages of the file out of memory.
    pub fn loses_pages(&self) -> bool {
        self.through.load(Ordering::Acquire) && self.state() == State::Open
    }

    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) != 0
    }

    /// Whether no extent refers to the segment and nothing is pinned here, at a moment of this call.
    pub fn is_unneeded(&self) -> bool {
        // A reader pins the segment while there is an extent, which may go before the pin. Zeroes on their way into an index pin the
        // segment before there is an extent, and the pin goes first. So pins are looked at in between.
        self.extents() == 0 && !self.is_pinned() && self.extents() == 0
    }

    /// Counts a read, or zeroes on their way into an index. The caller holds the lock of a volume that has an extent here, or
    /// publishes the record of the zeroes.
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

    /// Whether somebody syncs the file at this moment, as [`Self::hold_file`] would find.
    pub fn is_file_held(&self) -> bool {
        self.sync_busy.load(Ordering::SeqCst)
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

    /// Notes that the frames from `begin` to `end` are stable without a sync. They count where all frames before are known to be
    /// stable.
    pub fn note_stable(&self, begin: u32, end: u32) {
        // After a failed sync nothing counts any more before the segment is healed; a sync that ends meanwhile has less to report.
        if !self.is_poisoned() && self.synced() >= begin {
            self.synced.fetch_max(end, Ordering::AcqRel);
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
        self.sums_frame.store(0, Ordering::Release);
        self.through.store(false, Ordering::Release);
        self.crcs.store(None);
        self.mapping.store(None);
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

    /// The checksums in memory. `None` of a sealed segment, mostly: then [`Self::sums_frame`] says where the sums are.
    pub fn crcs(&self) -> Guard<Option<Arc<Crcs>>> {
        self.crcs.load()
    }

    pub fn keep_crcs(&self, crcs: impl Into<Arc<Crcs>>) {
        self.crcs.store(Some(crcs.into()));
    }

    /// Takes `crcs` out of memory, unless other checksums are in the place of `crcs`.
    pub fn drop_crcs(&self, crcs: &Arc<Crcs>) {
        self.crcs.compare_and_swap(crcs, None);
    }

    /// Sets the CRCs of the frames from `first` on, as far as the segment has checksums in memory.
    pub fn set_crcs(&self, first: u32, crcs: &[u32]) {
        if let Some(kept) = &*self.crcs() {
            kept.set(first, crcs);
        }
    }

    /// The file in memory, if the segment is read often. Whoever looks at frames has pinned the segment.
    pub fn mapping(&self) -> Guard<Option<Arc<Mapping>>> {
        self.mapping.load()
    }

    /// Has READs find this mapping, or none; returns the mapping before, which READs under way may still use.
    pub fn set_mapping(&self, mapping: Option<Arc<Mapping>>) -> Option<Arc<Mapping>> {
        self.mapping.swap(mapping)
    }

    /// Has READs find `next` in the place of `now`; `false` if they find something else meanwhile.
    pub fn replace_mapping(&self, now: &Arc<Mapping>, next: Option<Arc<Mapping>>) -> bool {
        let found = self.mapping.compare_and_swap(now, next);
        found.as_ref().is_some_and(|found| Arc::ptr_eq(found, now))
    }

    /// First frame of the sums on the disk; `None` when there are none. The sums may be damaged, or missing where an older glidefs
    /// sealed the segment.
    pub fn sums_frame(&self) -> Option<u32> {
        Some(self.sums_frame.load(Ordering::Acquire)).filter(|frame| *frame != 0)
    }

    /// The segment, with number `number`, as a checkpoint lists it; `None` of a segment without footer or without sums.
    pub fn covered(&self, number: u32) -> Option<CoveredSegment> {
        let (segment_id, sums_frame) = (self.segment_id(), self.sums_frame()?);
        let footer_bytes = self.footer_bytes.load(Ordering::Acquire);
        let footer_frame =
            sums_frame.checked_sub(u32::try_from(footer_bytes as usize / FRAME_BYTES).ok()?)?;
        let footer_crc = self.footer_crc.load(Ordering::Acquire);
        Some(CoveredSegment { number, segment_id, footer_frame, footer_bytes, footer_crc })
    }

    /// Takes the checksums out of memory of a segment of `frames` frames: footer, sums and `trailer` are on the disk. The checksums
    /// stay in memory where the segment has no trailer, or no room for the sums.
    pub fn leave_crcs(&self, trailer: Option<&Trailer>, frames: u32) {
        let sums = trailer.and_then(|trailer| Some((trailer, trailer.sums_frame(frames)?)));
        if let Some((trailer, _)) = sums {
            self.footer_bytes.store(trailer.footer_bytes, Ordering::Release);
            self.footer_crc.store(trailer.footer_crc, Ordering::Release);
        }
        // A reader without checksums in memory must find the place of the sums.
        self.sums_frame.store(sums.map_or(0, |(_, frame)| frame), Ordering::Release);
        if sums.is_some() {
            self.crcs.store(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_costs_little_until_it_is_used() {
        assert!(size_of::<SegmentInfo>() <= 128, "{} bytes", size_of::<SegmentInfo>());
    }
}
