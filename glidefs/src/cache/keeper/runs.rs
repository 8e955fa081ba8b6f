//! What of a segment is still needed: its records, and the runs of frames that must move before it can be freed.
//!
//! Does not own the moving. Invariant: everything that an index finds in a segment is in what this finds there, whatever the
//! disk gives back of its footer and its record headers.

use std::io;
use std::sync::atomic::Ordering;

use super::syncing::report;
use crate::cache::log::format::{Entry, EntryKind, FooterRecord};
use crate::cache::log::life::State;
use crate::cache::log::scan::{self, Identity};
use crate::cache::log::table::{SegmentInfo, frames_of};
use crate::cache::log::walk::{self, Span};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::{Backing, Extent};
use crate::units::{ExportId, FRAME_SECTORS, SectorRange};

/// Part of an entry that is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub entry: Entry,
    /// Frame of the segment with its first byte; no meaning where there are none.
    pub first: u32,
    /// 0 for zeroes and for what was lost.
    pub frames: u32,
    pub range: SectorRange,
}

/// What is in segment `number`, which is not appended to any more, or was not while this looked: as the disk says, or, where the
/// disk does not say all of it, as the indexes do.
pub(super) fn records(shared: &Shared, number: u32, info: &SegmentInfo) -> Vec<FooterRecord> {
    let volumes = shared.all_volumes();
    // What recovery has a damaged segment stand for is in no record of that segment.
    if !volumes.iter().any(|volume| volume.is_doubted_in(number)) {
        match read_records(shared, number, info) {
            Ok(Some(records)) => return records,
            Ok(None) => {}
            Err(error) => report(shared, number, &error, "reading a segment to clean it failed"),
        }
    }
    let extents = volumes.iter().flat_map(|volume| {
        volume.extents_in(number).into_iter().filter_map(|extent| described(volume.id(), &extent))
    });
    extents.collect()
}

/// All records of the segment in segment `number`; `None` when the disk has not got all of them any more.
fn read_records(shared: &Shared, number: u32, info: &SegmentInfo) -> io::Result<Option<Vec<FooterRecord>>> {
    let Some(file) = info.file() else { return Ok(Some(Vec::new())) };
    let (table, end) = (&shared.table, info.appended());
    if info.state() == State::Sealed
        && let Ok(Identity::Sealed { trailer, .. }) =
            scan::identify(&**file, table.cache_id(), table.segment_frames())
        && trailer.key == table.key(info.segment_id())
    {
        match scan::read_footer(&**file, &trailer) {
            Ok(records) => return Ok(Some(records)),
            Err(error) => {
                let file = shared.disk.segment_name(number);
                tracing::error!(
                    file,
                    error = &error as &dyn std::error::Error,
                    "a footer is damaged; scanning the segment"
                );
                shared.figures.bad_footers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let walked = walk::walk(&**file, &table.key(info.segment_id()), Span::To(end))?;
    Ok(walked.holes.is_empty().then_some(walked.records))
}

/// A record for `extent` of `export` alone. It begins where the first frame of `extent` does, and has no checksums.
fn described(export: ExportId, extent: &Extent) -> Option<FooterRecord> {
    let (start, kind, position_frames) = match extent.backing {
        Backing::Zero { .. } => (extent.range.start(), EntryKind::Zero, 0),
        Backing::Damaged { .. } => (extent.range.start(), EntryKind::Damaged, 0),
        Backing::Doubt { .. } => (extent.range.start(), EntryKind::Doubt, 0),
        Backing::Data { sector, .. } => {
            let (first, _) = frames_of(sector, 1);
            let start = extent.range.start().checked_sub(u64::from(sector) % FRAME_SECTORS)?;
            (start, EntryKind::Data { first_frame: 0 }, first.checked_sub(1)?)
        }
    };
    let range = SectorRange::new(start, extent.range.end().checked_sub(start)?)?;
    let entry = Entry { export, seq: extent.seq, range, kind };
    Some(FooterRecord { position_frames, entries: vec![entry], crcs: Vec::new() })
}

/// Adds what is still needed of `entry`, of a record at frame `position` in `segment`, to `runs`.
pub(super) fn live_runs(volume: &Volume, entry: &Entry, number: u32, position: u32, runs: &mut Vec<Run>) {
    let begin = runs.len();
    let first_frame = match entry.kind {
        EntryKind::Data { first_frame } => Some(first_frame),
        EntryKind::Zero | EntryKind::Damaged | EntryKind::Doubt => None,
        EntryKind::Announced => return,
    };
    volume.dirty_parts(entry.range, entry.seq, number, |part| {
        let (from, to) = (part.start() - entry.range.start(), part.end() - entry.range.start());
        let run = match first_frame {
            None => Some(Run { entry: *entry, first: 0, frames: 0, range: part }),
            Some(first_frame) => {
                let whole = Run {
                    entry: *entry,
                    first: position + 1 + first_frame,
                    frames: u32::try_from(entry.data_frames()).unwrap_or(0),
                    range: entry.range,
                };
                let frame = |sectors: u64| u32::try_from(sectors).unwrap_or(u32::MAX);
                part_of(&whole, frame(from / FRAME_SECTORS), frame(to.div_ceil(FRAME_SECTORS)))
            }
        };
        let Some(run) = run else { return };
        match runs[begin..].last_mut() {
            Some(last) => match merge(last, &run) {
                Some(merged) => *last = merged,
                None => runs.push(run),
            },
            None => runs.push(run),
        }
    });
}

/// Frames `from..to` of `run`; `None` when that is nothing.
pub(super) fn part_of(run: &Run, from: u32, to: u32) -> Option<Run> {
    if from >= to || to > run.frames {
        return None;
    }
    let start = run.range.start() + u64::from(from) * FRAME_SECTORS;
    let end = (run.range.start() + u64::from(to) * FRAME_SECTORS).min(run.range.end());
    let range = SectorRange::new(start, end.checked_sub(start)?)?;
    Some(Run { entry: run.entry, first: run.first + from, frames: to - from, range })
}

/// One run for both, if they touch or overlap; for zeroes always, because what is between them is newer.
fn merge(last: &Run, next: &Run) -> Option<Run> {
    let touches = last.frames == 0 || next.first <= last.first + last.frames;
    let frames = if last.frames == 0 { 0 } else { next.first + next.frames - last.first };
    let range = SectorRange::new(last.range.start(), next.range.end().checked_sub(last.range.start())?)?;
    touches.then_some(Run { frames, range, ..*last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::log::table::Place;
    use crate::cache::log::table::SegmentTable;
    use crate::cache::volume::extent::extent;
    use crate::units::Seq;

    #[test]
    fn what_was_overwritten_in_part_moves_in_whole_frames_and_no_frame_twice() {
        let table = SegmentTable::new(2, 2, [0; 16], 64);
        table.get(0).begin_use(1, 1);
        table.get(1).begin_use(2, 1);
        let volume = Volume::new(ExportId(1));
        let range = |start, count| SectorRange::new(start, count).unwrap();
        let entry = Entry {
            export: ExportId(1),
            seq: Seq(1),
            range: range(100, 30),
            kind: EntryKind::Data { first_frame: 2 },
        };
        let place = Place { number: 0, segment_id: 1, end: 9 };
        let newer = |start, count| Extent {
            range: range(start, count),
            seq: Seq(2),
            backing: Backing::Zero { number: 1 },
        };
        volume.next_seqs(3);
        volume
            .appended(
                &table,
                (Seq(1), 3),
                [extent(&entry, 0, 10).unwrap(), newer(103, 2), newer(108, 14)].into_iter(),
                place,
            )
            .unwrap();
        let mut runs = Vec::new();
        live_runs(&volume, &entry, 0, 10, &mut runs);
        let run = |first, frames, range| Run { entry, first, frames, range };
        assert_eq!(runs, [run(13, 1, range(100, 8)), run(15, 2, range(116, 14))]);
    }
}
