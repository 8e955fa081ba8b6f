//! The gain of cleaning a segment: the frames freed with the segment, and the frames taken by the live data elsewhere.

use crate::cache::keeper::runs::Run;
use crate::cache::log::batch::HEADERS_MAX;
use crate::cache::log::format::{FooterBuilder, FooterRecord, sums_pages};
use crate::cache::log::info::SegmentInfo;
use crate::cache::shared::Shared;
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Most bytes moved with one append in large segments.
const MOVE_BYTES: usize = 1 << 20;
/// Most frames taken by the header of a moved record and the record's part of a footer.
const MOVE_OVERHEAD_FRAMES: u32 = 8;

/// Most bytes moved with one append: an eighth of a segment, up to [`MOVE_BYTES`], but never less than the longest entry.
pub(super) fn move_bytes(shared: &Shared) -> usize {
    let eighth = shared.table.segment_frames() as usize * FRAME_BYTES / 8;
    MOVE_BYTES.min(eighth).max(REQUEST_BYTES_MAX)
}

/// Frames gained by freeing a segment with `records`. The segment's unused end counts as far as that end is longer than the end
/// left unused by moving: the segment of a killed daemon is almost all unused.
pub(super) fn freed_frames(shared: &Shared, info: &SegmentInfo, records: &[FooterRecord]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut footer = FooterBuilder::new();
    for record in records {
        footer.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    let used = frames(records.iter().map(|record| 1 + record.crcs.len()).sum());
    // The sums and the trailer follow the footer.
    let behind = frames(footer.encoded_len() / FRAME_BYTES).saturating_add(sums_pages(info.appended()));
    let end = info.appended().saturating_add(behind).saturating_add(1);
    let unused = shared.table.segment_frames().saturating_sub(end);
    used.saturating_add(
        unused.saturating_sub(frames(move_bytes(shared) / FRAME_BYTES) + MOVE_OVERHEAD_FRAMES),
    )
}

/// Most frames taken by `runs` in another segment. With too low an estimate the same data would be moved for ever.
pub(super) fn frames_for(shared: &Shared, runs: &[Run]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let data: u32 = runs.iter().map(|run| run.frames).sum();
    // A run is no longer than a move, so two moves in a row have more data than one full move. A record header holds the entries
    // and CRCs of at least a hundred entries of one frame each.
    let moves = data.saturating_mul(2) / frames(move_bytes(shared) / FRAME_BYTES).max(1);
    let records = moves.saturating_add(frames(runs.len() / 100)).saturating_add(1);
    data.saturating_add(records.saturating_mul(frames(HEADERS_MAX)))
}
