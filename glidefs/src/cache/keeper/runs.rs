//! The live data of a segment: the records, and the runs of frames that must move before the segment can be freed.
//!
//! Does not own the moving. Invariant: every extent found by an index in a segment is in the records found here, whatever the
//! disk gives back of the footer and the record headers.

use crate::cache::log::format::{Entry, EntryKind, FooterRecord};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::table::frames_of;
use crate::cache::shared::Shared;
use crate::cache::verify::read_records;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::{Backing, Extent};
use crate::units::{ExportId, FRAME_SECTORS, SectorRange};

/// A part of an entry that is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub entry: Entry,
    /// Frame of the segment with the run's first byte; no meaning in a run without frames.
    pub first: u32,
    /// 0 for entries without data: zeroes, damage and doubt.
    pub frames: u32,
    pub range: SectorRange,
}

/// The records of segment number `number`, to which nothing is appended any more, or nothing was meanwhile: as the disk has the
/// records, or, where the disk does not have all, as the indexes describe them.
pub(super) fn records(shared: &Shared, number: u32, info: &SegmentInfo) -> Vec<FooterRecord> {
    let volumes = shared.all_volumes();
    // The entries of doubt for which recovery has a damaged segment stand are in no record of the segment.
    if !volumes.iter().any(|volume| volume.is_doubted_in(number)) {
        let Some(file) = info.file() else { return Vec::new() };
        match read_records(shared, number, &**file) {
            Ok(read) if read.whole => return read.records,
            Ok(_) => {}
            Err(error) => shared.report(number, &error, "reading a segment that is to be cleaned failed"),
        }
    }
    let extents = volumes.iter().flat_map(|volume| {
        let mut extents = volume.extents_in(number);
        // The pieces of a write follow each other, in whatever layers: two pieces in one frame move as one.
        extents.sort_unstable_by_key(|extent| (extent.seq, extent.range.start()));
        extents.into_iter().filter_map(|extent| described(volume.id(), &extent))
    });
    extents.collect()
}

/// A record for `extent` of `export` alone, without checksums, placed so that the first frame of the record's data is the first
/// frame of `extent`.
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

/// Adds the parts of `entry` still needed to `runs`; the entry's record is at frame `position` of segment number `number`. A frame of
/// the last entry before and of this one moves once.
pub(super) fn live_runs(volume: &Volume, entry: &Entry, number: u32, position: u32, runs: &mut Vec<Run>) {
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
        match runs.last_mut().and_then(|last| Some((merge(last, &run)?, last))) {
            Some((merged, last)) => *last = merged,
            None => runs.push(run),
        }
    });
}

/// Frames `from..to` of `run`; `None` when there are none.
pub(super) fn part_of(run: &Run, from: u32, to: u32) -> Option<Run> {
    if from >= to || to > run.frames {
        return None;
    }
    let start = run.range.start() + u64::from(from) * FRAME_SECTORS;
    let end = (run.range.start() + u64::from(to) * FRAME_SECTORS).min(run.range.end());
    let range = SectorRange::new(start, end.checked_sub(start)?)?;
    Some(Run { entry: run.entry, first: run.first + from, frames: to - from, range })
}

/// One run for both, if the two are of one write and touch or overlap in the segment; for runs of one entry without frames always,
/// because everything between the two is newer.
fn merge(last: &Run, next: &Run) -> Option<Run> {
    // The sector that would be in the first frame of the segment.
    let origin = |run: &Run| run.range.start().wrapping_sub(u64::from(run.first) * FRAME_SECTORS);
    let write = |run: &Run| (run.entry.export, run.entry.seq, origin(run));
    let touches = match (last.frames, next.frames) {
        (0, 0) => last.entry == next.entry,
        (0, _) | (_, 0) => false,
        _ => write(last) == write(next) && (last.first..=last.first + last.frames).contains(&next.first),
    };
    if !touches {
        return None;
    }
    let end = |run: &Run| run.first + run.frames;
    let frames = if last.frames == 0 { 0 } else { end(last).max(end(next)) - last.first };
    let end = last.range.end().max(next.range.end());
    let range = SectorRange::new(last.range.start(), end.checked_sub(last.range.start())?)?;
    Some(Run { frames, range, ..*last })
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
        volume.next_seqs(3).unwrap();
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
        let expected = [run(13, 1, range(100, 8)), run(15, 2, range(116, 14))];
        assert_eq!(runs, expected);
        // Without the records of the segment, as the index describes the pieces.
        let mut found = Vec::new();
        for record in volume.extents_in(0).iter().filter_map(|extent| described(ExportId(1), extent)) {
            live_runs(&volume, &record.entries[0], 0, record.position_frames, &mut found);
        }
        let places =
            |runs: &[Run]| -> Vec<_> { runs.iter().map(|run| (run.first, run.frames, run.range)).collect() };
        assert_eq!(places(&found), places(&expected));
    }
}
