//! Segments that the checkpoint proves lost: the file is gone, or nothing in the file says any more which segment was there.
//!
//! Does not own the checkpoint (`checkpoint`), or the stability of entries of doubt (`losses`). Invariants: a segment counts as lost
//! only if the checkpoint lists the segment with records, two readings of the log did not find the segment, the log is no older copy, and
//! nothing could have put the file out of use since; the checkpoint stays until the entries of doubt about lost segments are stable, as
//! nothing else tells of the loss; a start refused for want of a place for these entries has written nothing.
//!
//! A segment leaves its file in two ways only. A later segment takes the number: then the file has a header of a higher id, as two
//! headers are never lost at once (`log/seal`). Or the keeper puts a failing file out of use, and takes the checkpoint away before.
//! Ids ascend, so an older copy of the log has no segment later than one which is missing there. A file that is there and cannot be read
//! is damage like any other: the walk of the file finds holes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::losses::evidence_of;
use super::segments::{Found, Missing, Recovery};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{Entry, EntryKind};
use crate::cache::volume::Volume;
use crate::cache::volume::appends::SEQS_IN_A_SEGMENT;
use crate::units::{ExportId, SectorRange, Seq};

impl Recovery<'_> {
    /// Keeps those of the missing segments that are lost, and reports them: not those which this reading has found, and none if the log is an
    /// older copy. `segments` are all segments of the log, read.
    pub fn judge_missing(&mut self, segments: &[Found]) {
        if self.missing.is_empty() {
            return;
        }
        let made_up: HashSet<u32> = self.made_up.iter().map(|(number, _)| *number).collect();
        let (mut ids, mut later, mut holed) = (HashSet::new(), HashMap::new(), HashSet::new());
        for found in segments {
            if !made_up.contains(&found.number) {
                ids.insert(found.key.segment_id);
                later.insert(found.number, found.key.segment_id);
            } else if found.walk.as_ref().is_some_and(|walk| !walk.holes.is_empty()) {
                holed.insert(found.number);
            }
        }
        let newest = ids.iter().max().copied().unwrap_or(0);
        let is_there = |missing: &Missing| {
            ids.contains(&missing.segment_id)
                || holed.contains(&missing.number)
                || later.get(&missing.number).is_some_and(|id| *id > missing.segment_id)
        };
        self.missing.retain(|missing| !is_there(missing));
        // One segment which an older copy would have proves that the log is none, for all of them.
        if self.missing.iter().all(|missing| missing.segment_id > newest) {
            self.missing.clear();
        }
        for missing in &self.missing {
            self.found.holes += 1;
            tracing::error!(
                file = self.disk.segment_name(missing.number),
                segment_id = missing.segment_id,
                "a segment is gone that was there when the checkpoint of the index was written"
            );
        }
    }

    /// Entries of doubt about the lost segments, which may have had records of any export: one for each export. Each has a higher number
    /// than those of `others` about the export, so of many entries this one is written.
    pub fn doubts_of_missing(&self, others: &[Entry]) -> Vec<Entry> {
        let Some(range) = self.evidence_of_missing() else { return Vec::new() };
        let mut highest: HashMap<ExportId, Seq> = HashMap::new();
        for entry in others {
            let seq = highest.entry(entry.export).or_default();
            *seq = entry.seq.max(*seq);
        }
        let seqs = SEQS_IN_A_SEGMENT.saturating_mul(self.missing.len() as u64);
        // The last start may have ended before the checkpoint was gone.
        let new = self.volumes.iter().filter(|(_, volume)| !volume.has_doubt_of(range));
        let entry = |(export, volume): (&ExportId, &Arc<Volume>)| {
            let last = highest.get(export).copied().unwrap_or_default().max(volume.figures().last_seq);
            let seq = Seq(last.0.saturating_add(seqs));
            Entry { export: *export, seq, range, kind: EntryKind::Doubt }
        };
        new.map(entry).collect()
    }

    /// Stands for the loss of all lost segments together; `None` without one.
    fn evidence_of_missing(&self) -> Option<SectorRange> {
        let mut ids: Vec<u64> = self.missing.iter().map(|missing| missing.segment_id).collect();
        ids.sort_unstable();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        evidence_of(*ids.last()?, &bytes)
    }

    /// Fails if a segment is lost, and no segment is free for the entries of doubt. Nothing was written then.
    pub fn require_place_for_missing(&self) -> Result<(), CacheError> {
        let has_place = || self.can_spare_a_segment() && !self.places_for_doubts().is_empty();
        if self.missing.is_empty() || has_place() { Ok(()) } else { Err(self.no_place_for_missing()) }
    }

    /// The error of a start without a place for entries of doubt about lost segments. Without a file, a lost segment cannot stand for the
    /// entries, and the next start needs the checkpoint.
    pub fn no_place_for_missing(&self) -> CacheError {
        let names: Vec<String> =
            self.missing.iter().take(3).map(|missing| self.disk.segment_name(missing.number)).collect();
        let segments = u64::from(self.table.limit()).saturating_add(4);
        CacheError::BadOptions(format!(
            "segments are lost ({}), and no other file takes the note of the exports which may have lost data: see whether the disk has \
             errors (dmesg) or is full, set cache.size to at least {} bytes for more files, or put the whole cache directory back from one \
             copy",
            names.join(", "),
            segments.saturating_mul(self.table.segment_bytes()),
        ))
    }
}
