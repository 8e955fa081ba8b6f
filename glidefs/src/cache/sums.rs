//! The checksums of sealed segments, for readers off the workers, and for shards that cannot use the sums on the disk.
//!
//! ```text
//! checksums in memory ─▶ pages in memory ─▶ the sums on the disk ─▶ footer ─▶ record headers
//!  (not sealed, or        a shard's own, or   one page               └── restored: all checksums of the segment come to memory,
//!   restored)             these               a READ has its ring        and the sums are written again where there is room
//! ```
//!
//! Owns restored checksums and how long they stay, and the pages for everybody but the shards. Does not own the pages of a shard
//! (`shard/sums`). Invariants: no bytes count as right without a checksum that proved itself; a checksum not found is no damage of
//! the data; memory for pages and for restored checksums is bounded. Everything here may block, except for [`Sums::ask`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::{FooterRecord, Frame, PAGE_SUMS, Trailer, check_sums, sum_in, sums_pages};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::records::{Records, read_records};
use crate::cache::log::scan::read_frame;
use crate::cache::log::seal;
use crate::cache::log::sums::pages::Pages;
use crate::cache::log::sums::{Crcs, Verdict, crcs_in};
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;
use crate::locks::MutexExt;
use crate::units::FRAME_BYTES;

/// Divisor: the part of the memory for pages that readers off the workers have, and as much again for restored checksums.
const SHARE: u64 = 8;
/// How long checksums stay in memory of which some could not be found: perhaps the disk reads the others later.
const PARTS_STAY: Duration = Duration::from_millis(500);

/// Checksums for all readers but the shards.
#[derive(Debug)]
pub(super) struct Sums {
    bytes_max: u64,
    pages: Mutex<Pages>,
    /// Segment numbers and ids.
    asked: Mutex<Vec<(u32, u64)>>,
    /// Oldest first.
    restored: Mutex<VecDeque<Restored>>,
    /// Memory taken by the pages of all shards.
    pub shard_bytes: AtomicU64,
    /// How often the sums of a segment could not be used.
    pub restores: AtomicU64,
}

/// Checksums brought back to memory.
#[derive(Debug)]
struct Restored {
    number: u32,
    crcs: Arc<Crcs>,
    /// Some are missing: the checksums leave memory at this time.
    until: Option<Duration>,
}

impl Sums {
    /// Room for pages of `bytes_max` bytes, those of all shards included.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            pages: Mutex::new(Pages::new(bytes_max / SHARE)),
            asked: Mutex::default(),
            restored: Mutex::default(),
            shard_bytes: AtomicU64::new(0),
            restores: AtomicU64::new(0),
        }
    }

    /// Bytes of pages for each of `shards` shards.
    pub fn bytes_for_shard(&self, shards: usize) -> u64 {
        let rest = self.bytes_max - self.bytes_max / SHARE;
        rest / (shards as u64).max(1)
    }

    /// Memory taken by pages.
    pub fn page_bytes(&self) -> u64 {
        self.pages.lock_whole().bytes() + self.shard_bytes.load(Ordering::Relaxed)
    }

    /// Whether a shard waits for the keeper.
    pub fn is_asked(&self) -> bool {
        !self.asked.lock_whole().is_empty()
    }

    /// Asks the keeper to bring back the checksums of a segment. The caller has pinned the segment, and asks again in each turn until
    /// the checksums are there.
    pub fn ask(&self, number: u32, segment_id: u64) {
        let mut asked = self.asked.lock_whole();
        if !asked.contains(&(number, segment_id)) {
            asked.push((number, segment_id));
        }
    }
}

/// Brings back the checksums for which shards asked, and forgets those that have been in memory for long enough. `true` when a shard
/// can go on.
pub(super) fn restore_asked(shared: &Shared) -> bool {
    let sums = &shared.sums;
    forget(shared);
    let asked = std::mem::take(&mut *sums.asked.lock_whole());
    if asked.is_empty() {
        return false;
    }
    for (number, segment_id) in asked {
        let info = shared.table.get(number);
        if info.segment_id() == segment_id && info.crcs().is_none() {
            restore(shared, number);
        }
    }
    for port in &shared.ports {
        port.wake();
    }
    true
}

/// Compares `bytes`, frames from `first` on of segment number `number`, with their checksums. The caller keeps the segment from being
/// used again.
pub(super) fn compare(shared: &Shared, number: u32, first: u32, bytes: &[u8]) -> Verdict {
    let info = shared.table.get(number);
    if let Some(crcs) = &*info.crcs() {
        return Verdict::of(first, bytes, |frame| crcs.get(frame));
    }
    // A request has few frames.
    let count = u32::try_from(bytes.len() / FRAME_BYTES).unwrap_or(u32::MAX);
    let frames = first..first.saturating_add(count);
    if let Some(found) = sums_of(shared, info, frames) {
        return Verdict::of(first, bytes, |frame| found.get(frame.checked_sub(first)? as usize).copied());
    }
    match restore(shared, number) {
        Some(crcs) => Verdict::of(first, bytes, |frame| crcs.get(frame)),
        None => Verdict::Missing(first),
    }
}

/// The checksums of `frames` from the sums on the disk; `None` where these cannot be used.
fn sums_of(shared: &Shared, info: &SegmentInfo, frames: Range<u32>) -> Option<Vec<u32>> {
    let segment_id = info.segment_id();
    let mut found = Vec::with_capacity(frames.len());
    for page in frames.start / PAGE_SUMS..sums_pages(frames.end) {
        let begin = page.saturating_mul(PAGE_SUMS);
        let part = frames.start.max(begin)..frames.end.min(begin.saturating_add(PAGE_SUMS));
        {
            let mut pages = shared.sums.pages.lock_whole();
            if let Some(slot) = pages.find(segment_id, page) {
                let known = pages.at(slot);
                found.extend(part.map(|frame| sum_in(known, frame)));
                continue;
            }
        }
        let read = read_page(shared, info, page)?;
        found.extend(part.map(|frame| sum_in(&read, frame)));
        shared.sums.pages.lock_whole().fill(segment_id, page, |kept| {
            *kept = *read;
            true
        });
    }
    Some(found)
}

fn read_page(shared: &Shared, info: &SegmentInfo, page: u32) -> Option<Box<Frame>> {
    let position = info.sums_frame()?.checked_add(page)?;
    let read = read_frame(&**info.file()?, position).ok()?;
    check_sums(&read[..], &shared.table.key(info.segment_id()), position, page).ok()?;
    Some(read)
}

/// Finds the checksums of segment number `number` in the footer or the record headers, and keeps them in memory for a time. `None`
/// when the segment has no file.
fn restore(shared: &Shared, number: u32) -> Option<Arc<Crcs>> {
    let info = shared.table.get(number);
    let file = info.file()?;
    let segment_id = info.segment_id();
    shared.sums.restores.fetch_add(1, Ordering::Relaxed);
    let frames = shared.table.segment_frames();
    let (records, trailer, whole) = match read_records(&**file, &shared.table, info) {
        Ok(Records { records, trailer, whole, .. }) => (records, trailer, whole),
        Err(error) => {
            tracing::error!(
                file = shared.disk.segment_name(number),
                error = &error as &dyn std::error::Error,
                "the checksums of a segment cannot be read"
            );
            (Vec::new(), None, false)
        }
    };
    let mut found = crcs_in(&records, frames);
    if !whole {
        add_pages(shared, info, &mut found);
    }
    let crcs = Arc::new(Crcs::of(&found));
    // Who frees the segment or uses the segment again takes the hold: so the checksums come to the use which they are of.
    if let Some(hold) = SyncHold::begin(shared, number)
        && hold.info().segment_id() == segment_id
    {
        if let Some(trailer) = &trailer {
            write_again(shared, &**file, number, trailer, &records);
        }
        info.keep_crcs(Arc::clone(&crcs));
        let until = (!whole).then(|| shared.clock.now().saturating_add(PARTS_STAY));
        shared.sums.restored.lock_whole().push_back(Restored { number, crcs: Arc::clone(&crcs), until });
    }
    forget(shared);
    Some(crcs)
}

/// Adds to `found` the checksums of frames without any from the pages that can be used.
fn add_pages(shared: &Shared, info: &SegmentInfo, found: &mut [Option<u32>]) {
    for (page, cells) in (0u32..).zip(found.chunks_mut(PAGE_SUMS as usize)) {
        let Some(read) = read_page(shared, info, page) else { continue };
        let first = page.saturating_mul(PAGE_SUMS);
        for (frame, cell) in (first..).zip(cells) {
            *cell = cell.or_else(|| Some(sum_in(&read, frame)));
        }
    }
}

/// Writes the sums where they should be: an older glidefs sealed the segment, or the sums are damaged. Nobody waits for success.
fn write_again(
    shared: &Shared,
    file: &dyn SegmentFile,
    number: u32,
    trailer: &Trailer,
    records: &[FooterRecord],
) {
    if let Err(error) = seal::write_sums(file, trailer, shared.table.segment_frames(), records) {
        tracing::warn!(
            file = shared.disk.segment_name(number),
            error = &error as &dyn std::error::Error,
            "the checksums of a sealed segment cannot be written; the footer serves instead"
        );
    }
}

/// Forgets restored checksums: those whose time is over, and the oldest ones while all take more than their share. The newest
/// checksums stay: a shard may be waiting for these.
fn forget(shared: &Shared) {
    let mut restored = shared.sums.restored.lock_whole();
    if restored.is_empty() {
        return;
    }
    let now = shared.clock.now();
    restored.retain(|kept| {
        let stays = kept.until.is_none_or(|until| now < until);
        if !stays {
            shared.table.get(kept.number).drop_crcs(&kept.crcs);
        }
        stays
    });
    let mut bytes: u64 = restored.iter().map(|kept| kept.crcs.bytes()).sum();
    while restored.len() > 1
        && bytes > shared.sums.bytes_max / SHARE
        && let Some(oldest) = restored.pop_front()
    {
        bytes = bytes.saturating_sub(oldest.crcs.bytes());
        shared.table.get(oldest.number).drop_crcs(&oldest.crcs);
    }
}
