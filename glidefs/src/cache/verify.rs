//! Comparing data of the cache with its checksums, off the workers, and finding checksums again for everybody.
//!
//! ```text
//! checksums in memory ─▶ pages in memory ─▶ the sums on the disk ─▶ footer ─▶ record headers
//!  (not sealed, or        a shard's own, or   one page               └── restored: all checksums of the segment come to memory,
//!   restored)             those here          a READ has its ring        and the sums are written again where there is room
//! ```
//!
//! Does not own the memory (`sums`), or READs (`shard/sums`). Invariants: no bytes count as right without a checksum that proved
//! itself; a checksum not found is no damage of the data. Everything here may block.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::{FooterRecord, Frame, PAGE_SUMS, Trailer, check_sums, sum_in, sums_pages};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::scan::{self, Identity, read_frame};
use crate::cache::log::seal;
use crate::cache::log::sums::{Crcs, Verdict, crcs_in};
use crate::cache::log::walk::{self, Span};
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;
use crate::locks::MutexExt;

/// How long checksums stay in memory of which some could not be found: perhaps the disk reads the others later.
const PARTS_STAY: Duration = Duration::from_millis(500);

/// Brings back the checksums of one segment for which shards asked, and forgets those that have been in memory for long enough. One
/// segment a call, as shards may wait for free segments as well. `true` when a shard can go on.
pub(super) fn restore_asked(shared: &Shared) -> bool {
    shared.sums.forget(&shared.table, shared.clock.now());
    let Some((number, segment_id)) = shared.sums.next_asked() else { return false };
    let info = shared.table.get(number);
    if info.segment_id() == segment_id && info.crcs().is_none() {
        restore(shared, number);
    }
    for port in &shared.ports {
        port.wake();
    }
    true
}

/// Compares the CRCs of frames read, from `first` on of segment number `number`, with the checksums of these frames. The caller keeps
/// the segment from being used again.
pub(super) fn compare(shared: &Shared, number: u32, first: u32, read: &[u32]) -> Verdict {
    let verdict = |crc: &mut dyn FnMut(u32) -> Option<u32>| Verdict::of(first, read.iter().copied(), crc);
    let info = shared.table.get(number);
    if let Some(crcs) = &*info.crcs() {
        return verdict(&mut |frame| crcs.get(frame));
    }
    // A request has few frames.
    let count = u32::try_from(read.len()).unwrap_or(u32::MAX);
    let frames = first..first.saturating_add(count);
    if let Some(found) = sums_of(shared, info, frames) {
        return verdict(&mut |frame| found.get(frame.checked_sub(first)? as usize).copied());
    }
    match restore(shared, number) {
        Some(crcs) => verdict(&mut |frame| crcs.get(frame)),
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
    let Records { records, trailer, whole } = read_records(shared, number, &**file).unwrap_or_else(|error| {
        shared.report(number, &error, "the checksums of a segment cannot be read");
        Records::default()
    });
    let mut found = crcs_in(&records, frames);
    if !whole {
        add_pages(shared, info, &mut found);
    }
    let crcs = Arc::new(Crcs::of(&found));
    // Who frees the segment or uses the segment again takes the hold: so the checksums come to the use which they are of.
    if let Some(hold) = SyncHold::begin(shared, number)
        && hold.info().segment_id() == segment_id
    {
        // The sums are missing where an older glidefs sealed the segment, or are damaged. Nobody waits for success.
        if let Some(trailer) = &trailer
            && let Err(error) = seal::write_sums(&**file, trailer, frames, &records)
        {
            tracing::warn!(
                file = shared.disk.segment_name(number),
                error = &error as &dyn std::error::Error,
                "the checksums of a sealed segment cannot be written; the footer serves instead"
            );
        }
        info.keep_crcs(Arc::clone(&crcs));
        let until = (!whole).then(|| shared.clock.now().saturating_add(PARTS_STAY));
        shared.sums.restored(number, Arc::clone(&crcs), until);
    }
    shared.sums.forget(&shared.table, shared.clock.now());
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

/// The records of a segment, each checked.
#[derive(Default)]
pub(super) struct Records {
    pub records: Vec<FooterRecord>,
    /// The trailer of a sealed segment with a whole footer.
    trailer: Option<Trailer>,
    /// No record is missing.
    pub whole: bool,
}

/// Reads the records of segment number `number`, to which nothing is appended, from the footer, or else from the record headers.
/// Nothing is written.
pub(super) fn read_records(shared: &Shared, number: u32, file: &dyn SegmentFile) -> io::Result<Records> {
    let (table, info) = (&shared.table, shared.table.get(number));
    let key = table.key(info.segment_id());
    if info.state() == State::Sealed
        && let Ok(Some(Identity::Sealed { trailer, .. })) =
            scan::identify(file, table.cache_id(), table.segment_frames())
        && trailer.key == key
    {
        match scan::read_footer(file, &trailer) {
            Ok(records) => return Ok(Records { records, trailer: Some(trailer), whole: true }),
            Err(error) => shared.note_bad_footer(number, &error),
        }
    }
    let walk = walk::walk(file, &key, Span::To(info.appended()))?;
    Ok(Records { records: walk.records, trailer: None, whole: walk.holes.is_empty() })
}
