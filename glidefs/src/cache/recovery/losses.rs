//! Records that cannot be found: which exports may have had data in them.
//!
//! Does not own finding the holes (`walk`), segments that are gone (`missing`), or the segment with the entries (`note`). Invariants: an
//! export with a record that may be lost answers no READ with content that may be older than the record; which exports these are is stable
//! in the log before the cache takes a WRITE.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::layout::at;
use super::segments::{Found, Recovery};
use crate::cache::catalog::CacheCatalog;
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{Entry, EntryKind, FooterRecord, frame_crc};
use crate::cache::log::superblock::{Superblock, VERSION_DAMAGED};
use crate::cache::log::walk::{Hole, Walk};
use crate::cache::volume::Volume;
use crate::cache::volume::appends::{SEQS_IN_A_PIECE, SEQS_IN_A_SEGMENT};
use crate::cache::volume::extent::extent;
use crate::units::{ExportId, SectorRange, Seq};

/// As many entries of doubt as the smallest segment has room for.
const ENTRIES_MANY: usize = 1000;

/// The highest sequence number in the log of each piece of each export's history.
type Pieces = HashMap<(ExportId, u64), Seq>;

/// The traces of one export in a segment with a hole.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// A record before the hole names the export.
    known: bool,
    /// The highest sequence number before the hole, and the lowest behind the hole.
    before: Option<Seq>,
    behind: Option<Seq>,
}

impl Recovery<'_> {
    /// Entries of doubt: for each segment read, one for each export that may have lost records there, unless an earlier doubt
    /// covers the loss.
    pub fn doubts(&self, segments: &[Found]) -> Vec<Entry> {
        let (mut doubts, mut pieces) = (Vec::new(), None);
        for found in segments {
            let Some(walk) = found.walk.as_ref().filter(|walk| !walk.holes.is_empty()) else { continue };
            let Some(range) = evidence(found, walk) else { continue };
            let pieces = pieces.get_or_insert_with(|| pieces_of(segments));
            let later = first_behind(segments, found);
            let mut highest: HashMap<ExportId, Seq> = HashMap::new();
            for hole in &walk.holes {
                self.lost_in(*hole, found, walk, &later, pieces, &mut highest);
            }
            for (export, seq) in highest {
                // An earlier start found the same loss in the segment: anything written since is newer than any record there.
                let is_known =
                    |volume: &Arc<Volume>| seq <= volume.doubted_to() || volume.has_doubt_of(range);
                if self.volumes.get(&export).is_some_and(|volume| !is_known(volume)) {
                    doubts.push(Entry { export, seq, range, kind: EntryKind::Doubt });
                }
            }
        }
        doubts
    }

    /// Raises `highest`, for each export that may have lost a record in `hole`, to the highest number possible for a lost record.
    fn lost_in(
        &self,
        hole: Hole,
        found: &Found,
        walk: &Walk,
        later: &HashMap<ExportId, Seq>,
        pieces: &Pieces,
        highest: &mut HashMap<ExportId, Seq>,
    ) {
        // A segment without a record does not tell whether exports are announced before their first entry: the rest of the log
        // does.
        let announces = walk.announces || (walk.records.is_empty() && self.announces);
        let knows_all = announces && !hole.of_anyone;
        let all_beside = beside(&walk.records, hole);
        for (export, volume) in &self.volumes {
            let beside = all_beside.get(export).copied();
            if knows_all && !beside.is_some_and(|beside| beside.known) {
                continue;
            }
            // Sequence numbers of an export ascend in a segment, unless cleaning filled the segment with copies.
            let Beside { before, behind, .. } = beside.filter(|_| !found.by_cleaner()).unwrap_or_default();
            let behind = behind.or_else(|| later.get(export).copied());
            let last = match (before, behind) {
                (Some(before), Some(behind)) if behind.0.checked_sub(1) == Some(before.0) => continue,
                (_, Some(behind)) => Seq(behind.0.saturating_sub(1)),
                // Numbers go on behind all that may have been given out, so no number is given out twice.
                (_, None) => {
                    let last = before.map(|before| last_of_life(pieces, *export, before));
                    let last = last.unwrap_or(volume.figures().last_seq);
                    Seq(last.0.saturating_add(SEQS_IN_A_SEGMENT))
                }
            };
            let known = highest.entry(*export).or_default();
            *known = last.max(*known);
        }
    }

    /// Makes `entries`, of doubt and of lost content, stable in the log, and tells the volumes.
    pub fn write_down(
        &mut self,
        mut entries: Vec<Entry>,
        segments: &mut [Found],
        superblock: &mut Superblock,
        catalog: &dyn CacheCatalog,
    ) -> Result<(), CacheError> {
        let mut marks: HashMap<ExportId, Seq> = HashMap::new();
        let is_doubt = |entry: &&Entry| entry.kind == EntryKind::Doubt;
        let in_doubt: HashSet<ExportId> = entries.iter().filter(is_doubt).map(|entry| entry.export).collect();
        for (export, volume) in &self.volumes {
            // The store has the right content of everything written back, and the copies in the log may be older: the volume
            // forgets these copies.
            if volume.has_ended_doubt() || in_doubt.contains(export) {
                marks.insert(*export, volume.forget_clean(self.table));
            }
        }
        let is_stored = |entry: &Entry| marks.get(&entry.export).is_none_or(|stored| entry.seq <= *stored);
        entries.retain(|entry| entry.kind != EntryKind::Doubt || !is_stored(entry));
        let (mut doubts, content): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.kind == EntryKind::Doubt);
        if doubts.len() > ENTRIES_MANY {
            // The entry with the highest number of an export covers the others.
            doubts.sort_unstable_by_key(|entry| (entry.export.0, Reverse(entry.seq)));
            doubts.dedup_by_key(|entry| entry.export);
        }
        self.report_losses(&doubts, &content);
        let mut marks: Vec<(ExportId, Seq)> = marks.into_iter().collect();
        marks.retain(|(_, stored)| *stored > Seq(0));
        let name = || self.disk.location();
        if !marks.is_empty() {
            at(catalog.evicted(&marks), "noting in the catalog which entries are left out", name)?;
            self.noted.extend(marks);
        }
        doubts.extend(content);
        if doubts.is_empty() {
            return Ok(());
        }
        if superblock.version < VERSION_DAMAGED {
            superblock.version = VERSION_DAMAGED;
            at(self.disk.replace_superblock(&superblock.encode()), "writing cache.meta", name)?;
        }
        if !self.note(&doubts)? {
            self.hold(&doubts, segments);
        }
        Ok(())
    }

    /// Counts and reports the exports with `doubts`, and those with lost `content`.
    fn report_losses(&mut self, doubts: &[Entry], content: &[Entry]) {
        let in_doubt: HashSet<ExportId> = doubts.iter().map(|entry| entry.export).collect();
        for export in in_doubt {
            self.found.doubted += 1;
            tracing::error!(
                export = export.0,
                "records of this export may be lost: all sectors not written since fail until they are written again. Restore \
                 the export from a backup; or, with a store, go back to the snapshot of the stored content that the next \
                 writeback makes"
            );
        }
        let mut sectors: HashMap<ExportId, u64> = HashMap::new();
        for entry in content.iter().filter(|entry| entry.kind == EntryKind::Damaged) {
            let lost = sectors.entry(entry.export).or_default();
            *lost = lost.saturating_add(entry.range.count());
        }
        for (export, sectors) in sectors {
            tracing::error!(
                export = export.0,
                sectors,
                "content of this export was in a lost segment: these sectors fail until they are written again"
            );
        }
    }

    /// Has each damaged segment stand for the `entries` about the segment: the segment stays as it is, so the next recovery finds
    /// the same damage, until the keeper has moved the entries to a segment of their own.
    fn hold(&mut self, entries: &[Entry], segments: &mut [Found]) {
        for found in segments {
            let about = found.walk.as_ref().and_then(|walk| evidence(found, walk));
            for entry in entries.iter().filter(|entry| Some(entry.range) == about) {
                found.held = true;
                self.given_up.retain(|segment| segment.number != found.number);
                self.table.get(found.number).retire();
                if let (Some(volume), Some(extent)) =
                    (self.volumes.get(&entry.export), extent(entry, found.number, 0))
                {
                    volume.recovered(self.table, extent);
                }
            }
        }
    }

    /// Forgets the doubts about segments no longer there, except the highest of each export: the log need not keep the entries
    /// for ever.
    pub fn forget_old_doubts(&self, segments: &[Found]) {
        let ids: HashSet<u64> = segments.iter().map(|found| found.key.segment_id).collect();
        for volume in self.volumes.values() {
            volume.forget_doubts(self.table, |segment_id| !ids.contains(&segment_id));
        }
    }
}

/// The sectors of an entry of doubt: the start is the id of the damaged segment, the count is a checksum of the places of the
/// records found there. When more of the segment is lost, the checksum is another one. An entry of an older version has 1 in the
/// place of the checksum.
fn evidence(found: &Found, walk: &Walk) -> Option<SectorRange> {
    let places: Vec<u8> =
        walk.records.iter().flat_map(|record| record.position_frames.to_le_bytes()).collect();
    evidence_of(found.key.segment_id, &places)
}

/// As [`evidence`], of a segment with records found at `places`.
pub(super) fn evidence_of(segment_id: u64, places: &[u8]) -> Option<SectorRange> {
    let checksum = u64::from(frame_crc(places).max(2));
    // Ids count up from 1 and never reach this limit, which keeps the range valid.
    SectorRange::new(segment_id.min(u64::MAX - checksum), checksum)
}

/// The lowest sequence number of each export in the segments appended to after `found` by the shard of `found`.
fn first_behind(segments: &[Found], found: &Found) -> HashMap<ExportId, Seq> {
    let mut first = HashMap::new();
    for other in segments.iter().filter(|other| found.is_followed_by(other)) {
        for_writes(other, |entry| {
            let seq = first.entry(entry.export).or_insert(entry.seq);
            *seq = entry.seq.min(*seq);
        });
    }
    first
}

fn pieces_of(segments: &[Found]) -> Pieces {
    let mut pieces = Pieces::new();
    for found in segments {
        for_writes(found, |entry| {
            let last = pieces.entry((entry.export, entry.seq.0 / SEQS_IN_A_PIECE)).or_default();
            *last = entry.seq.max(*last);
        });
    }
    pieces
}

/// Calls `visit` with each entry for a write in `found`, a segment already read.
fn for_writes(found: &Found, mut visit: impl FnMut(&Entry)) {
    found.records().iter().flat_map(|record| &record.entries).for_each(|entry| match entry.kind {
        EntryKind::Data { .. } | EntryKind::Zero => visit(entry),
        EntryKind::Damaged | EntryKind::Doubt | EntryKind::Announced => {}
    });
}

/// The last number `export` had given out when a hole behind write `before` came to be. A start with knowledge of the hole made
/// numbers go on behind an empty piece, even if the start could not note the doubt: numbers behind an empty piece do not count.
fn last_of_life(pieces: &Pieces, export: ExportId, before: Seq) -> Seq {
    let mut last = before;
    let mut piece = before.0 / SEQS_IN_A_PIECE;
    while let Some(seq) = pieces.get(&(export, piece)) {
        last = last.max(*seq);
        piece += 1;
    }
    last
}

/// The traces of each export in `records`, before `hole` and behind.
fn beside(records: &[FooterRecord], hole: Hole) -> HashMap<ExportId, Beside> {
    let mut found: HashMap<ExportId, Beside> = HashMap::new();
    for record in records {
        for entry in &record.entries {
            let beside = found.entry(entry.export).or_default();
            beside.known |= record.position_frames < hole.from;
            if entry.kind == EntryKind::Announced {
                continue;
            }
            if record.position_frames < hole.from {
                beside.before = beside.before.max(Some(entry.seq));
            } else {
                beside.behind = Some(beside.behind.map_or(entry.seq, |behind| behind.min(entry.seq)));
            }
        }
    }
    found
}
