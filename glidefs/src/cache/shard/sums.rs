//! The checksums for READs: in memory, or on the disk, where the page cache has them or a read beside the read of the data gets them.
//!
//! Does not own the reads of data (`read`), or checksums off the workers (`cache/verify`). Invariants: nothing here waits for the disk;
//! nothing takes a lock or memory from the heap while the checksums are in memory; each page is checked before use.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;

use crate::cache::log::format::{Frame, PAGE_SUMS, check_sums, frame_crc, sum_in, sums_pages};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::scan::offset;
use crate::cache::log::sums::pages::{Pages, Slot};
use crate::cache::log::sums::{Crcs, Verdict};
use crate::cache::shared::Shared;
use crate::units::FRAME_BYTES;

/// One segment and its checksums, if they are in memory. Costs more to find than to use.
pub(super) struct Segment<'a> {
    pub number: u32,
    pub info: &'a SegmentInfo,
    crcs: Option<Guard<Option<Arc<Crcs>>>>,
}

impl<'a> Segment<'a> {
    /// Segment number `number`, which the caller has pinned.
    pub fn of(shared: &'a Shared, number: u32) -> Self {
        let info = shared.table.get(number);
        Self { number, info, crcs: Some(info.crcs()).filter(|crcs| crcs.is_some()) }
    }

    fn crcs(&self) -> Option<&Crcs> {
        self.crcs.as_ref()?.as_deref()
    }

    /// Compares `bytes`, frames from `first` on, with the checksums; `None` when the checksums are neither in memory nor in the page
    /// cache.
    pub fn compare(&self, shared: &Shared, pages: &mut Pages, first: u32, bytes: &[u8]) -> Option<Verdict> {
        if let Some(crcs) = self.crcs() {
            return Some(Verdict::of(first, crcs_of(bytes), |frame| crcs.get(frame)));
        }
        let frames = u32::try_from(bytes.len() / FRAME_BYTES).ok()?;
        if pages_of(first, frames).len() > 1 && !self.are_known(shared, pages, first, frames) {
            // No frame is verified now, as all are verified again when the checksums are there.
            return None;
        }
        let (mut frame, mut rest) = (first, bytes);
        while !rest.is_empty() {
            let left = PAGE_SUMS - frame % PAGE_SUMS;
            let (part, behind) = rest.split_at((left as usize * FRAME_BYTES).min(rest.len()));
            let page = find(shared, pages, self.info, frame / PAGE_SUMS)?;
            match Verdict::of(frame, crcs_of(part), |frame| Some(sum_in(page, frame))) {
                Verdict::Right => (frame, rest) = (frame.checked_add(left)?, behind),
                bad => return Some(bad),
            }
        }
        Some(Verdict::Right)
    }

    /// Whether [`Self::compare`] would have the checksums of the frames `first..first + frames`.
    pub fn are_known(&self, shared: &Shared, pages: &mut Pages, first: u32, frames: u32) -> bool {
        self.crcs().is_some()
            || pages_of(first, frames).into_iter().all(|page| find(shared, pages, self.info, page).is_some())
    }
}

fn crcs_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(FRAME_BYTES).map(frame_crc)
}

/// The pages with the sums of the frames `first..first + frames`.
pub(super) fn pages_of(first: u32, frames: u32) -> Range<u32> {
    first / PAGE_SUMS..sums_pages(first.saturating_add(frames))
}

/// Page `page` of the sums, from memory or from the page cache.
fn find<'a>(shared: &Shared, pages: &'a mut Pages, info: &SegmentInfo, page: u32) -> Option<&'a Frame> {
    let segment_id = info.segment_id();
    let slot = match pages.find(segment_id, page) {
        Some(slot) => slot,
        None => {
            let position = info.sums_frame()?.checked_add(page)?;
            let file = info.file()?;
            keep(shared, pages, segment_id, page, |frame| {
                matches!(file.read_now(frame, offset(position)), Ok(true))
                    && check_sums(frame, &shared.table.key(segment_id), position, page).is_ok()
            })?
        }
    };
    Some(pages.at(slot))
}

/// Keeps the pages `of`, read from the disk as `bytes`, of the sums of segment number `number`; `false` when one is damaged.
pub(super) fn take(shared: &Shared, pages: &mut Pages, number: u32, of: Range<u32>, bytes: &[u8]) -> bool {
    let info = shared.table.get(number);
    let (segment_id, Some(first)) = (info.segment_id(), info.sums_frame()) else { return false };
    let (frames, _) = bytes.as_chunks::<FRAME_BYTES>();
    of.len() == frames.len()
        && of.zip(frames).all(|(page, bytes)| {
            let key = shared.table.key(segment_id);
            let is_whole = first
                .checked_add(page)
                .is_some_and(|position| check_sums(bytes, &key, position, page).is_ok());
            is_whole
                && keep(shared, pages, segment_id, page, |frame| {
                    *frame = *bytes;
                    true
                })
                .is_some()
        })
}

fn keep(
    shared: &Shared,
    pages: &mut Pages,
    segment_id: u64,
    page: u32,
    fill: impl FnOnce(&mut Frame) -> bool,
) -> Option<Slot> {
    let before = pages.bytes();
    let slot = pages.fill(segment_id, page, fill);
    // The sum of all shards cannot overflow, and a shard takes away only bytes added before.
    shared.sums.shard_bytes.fetch_add(pages.bytes().wrapping_sub(before), Ordering::Relaxed);
    slot
}
