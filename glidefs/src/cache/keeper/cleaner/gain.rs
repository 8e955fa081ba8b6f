//! Whether to clean a segment pays: the frames that the segment gives back, and the frames that its live data takes elsewhere.

use crate::cache::keeper::runs::Run;
use crate::cache::log::batch::HEADERS_MAX;
use crate::cache::log::format::{FooterBuilder, FooterRecord};
use crate::cache::log::table::SegmentInfo;
use crate::cache::shared::Shared;
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Data moved with one append, bytes; in small segments an eighth of one, or the longest entry.
const MOVE_BYTES: usize = 1 << 20;
/// Frames of a record's header and of its part of a footer, at most.
const MOVE_OVERHEAD_FRAMES: u32 = 8;

/// Most data that is moved with one append, bytes.
pub(super) fn move_bytes(shared: &Shared) -> usize {
    let eighth = shared.table.segment_frames() as usize * FRAME_BYTES / 8;
    MOVE_BYTES.min(eighth).max(REQUEST_BYTES_MAX)
}

/// What freeing a segment with `records` frees, frames. An end that was left unused counts as far as it is longer than moving
/// leaves one: a segment whose daemon was killed has next to nothing in it.
pub(super) fn freed_frames(shared: &Shared, info: &SegmentInfo, records: &[FooterRecord]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut footer = FooterBuilder::new();
    for record in records {
        footer.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    let used = frames(records.iter().map(|record| 1 + record.crcs.len()).sum());
    // Behind it comes the trailer.
    let end = info.appended().saturating_add(frames(footer.encoded_len() / FRAME_BYTES)).saturating_add(1);
    let unused = shared.table.segment_frames().saturating_sub(end);
    used.saturating_add(
        unused.saturating_sub(frames(move_bytes(shared) / FRAME_BYTES) + MOVE_OVERHEAD_FRAMES),
    )
}

/// Frames that `runs` take in another segment, at most. What is estimated too low here is moved for ever.
pub(super) fn frames_for(shared: &Shared, runs: &[Run]) -> u32 {
    let frames = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let data: u32 = runs.iter().map(|run| run.frames).sum();
    // A run is no longer than a move, so two moves in a row are longer than one. A record header holds the entries and CRCs of
    // at least a hundred entries of one frame each.
    let moves = data.saturating_mul(2) / frames(move_bytes(shared) / FRAME_BYTES).max(1);
    let records = moves.saturating_add(frames(runs.len() / 100)).saturating_add(1);
    data.saturating_add(records.saturating_mul(frames(HEADERS_MAX)))
}
