//! Segments that the checkpoint proves lost: the file is gone, or nothing in the file says any more which segment was there.
//!
//! Does not own the checkpoint (`checkpoint`), or the stability of entries of doubt (`losses`). Invariants: a segment counts as lost
//! only if the checkpoint lists the segment, the log has a later one elsewhere, and nothing could have put the file out of use since;
//! the checkpoint stays until the entries of doubt about lost segments are stable, as nothing else tells of the loss.
//!
//! A segment leaves its file in two ways only. A later segment takes the number: then the file has a header of a higher id, as two
//! headers are never lost at once (`log/seal`). Or the keeper puts a failing file out of use, and takes the checkpoint away before.
//! Ids ascend, so an older copy of the log has no segment later than one which is missing there.

use std::collections::HashSet;

use super::losses::evidence_of;
use super::segments::{Found, Missing, Recovery};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{Entry, EntryKind};
use crate::cache::volume::appends::SEQS_IN_A_SEGMENT;
use crate::units::Seq;

impl Recovery<'_> {
    /// Finds out which of the `absent` segments are lost: not those of which the file has another name now, nor those that came later than
    /// an older copy of the log. `segments` are all segments of the log.
    pub fn find_missing(&mut self, absent: Vec<(u32, u64)>, segments: &[Found]) {
        let made_up: HashSet<u32> = self.made_up.iter().map(|(number, _)| *number).collect();
        let named = segments.iter().filter(|found| !made_up.contains(&found.number));
        let ids: HashSet<u64> = named.map(|found| found.key.segment_id).collect();
        let newest = ids.iter().max().copied().unwrap_or(0);
        let missing = absent.into_iter().filter(|(_, id)| *id < newest && !ids.contains(id));
        self.missing = missing.map(|(number, segment_id)| Missing { number, segment_id }).collect();
    }

    /// Counts and reports the lost segments.
    pub fn report_missing(&mut self) {
        for missing in &self.missing {
            self.found.holes += 1;
            tracing::error!(
                file = self.disk.segment_name(missing.number),
                segment_id = missing.segment_id,
                "a segment is gone that was there when the checkpoint of the index was written"
            );
        }
    }

    /// Entries of doubt about the lost segments: each may have had records of any export.
    pub fn doubts_of_missing(&self) -> Vec<Entry> {
        let mut doubts = Vec::new();
        let seqs = SEQS_IN_A_SEGMENT.saturating_mul(self.missing.len() as u64);
        for missing in &self.missing {
            let Some(range) = evidence_of(missing.segment_id, &[]) else { continue };
            for (export, volume) in &self.volumes {
                let seq = Seq(volume.figures().last_seq.0.saturating_add(seqs));
                // The last start may have ended before the checkpoint was gone.
                if !volume.has_doubt_of(range) {
                    doubts.push(Entry { export: *export, seq, range, kind: EntryKind::Doubt });
                }
            }
        }
        doubts
    }

    /// Fails if a segment is lost: call when entries of doubt have no place. Without a file, a lost segment cannot stand for the entries,
    /// and the next start needs the checkpoint.
    pub fn require_no_missing(&self) -> Result<(), CacheError> {
        let Some(missing) = self.missing.first() else { return Ok(()) };
        let segments = u64::from(self.table.limit()).saturating_add(4);
        Err(CacheError::BadOptions(format!(
            "{} has lost a segment, and no other file takes the note of the exports which may have lost data: see whether the disk has \
             errors (dmesg), set cache.size to at least {} bytes for more files, or put the whole cache directory back from one copy",
            self.disk.segment_name(missing.number),
            segments.saturating_mul(self.table.segment_bytes()),
        )))
    }
}
