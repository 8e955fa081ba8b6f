//! Reading ahead: a start that waits for another process to let the log go loads the checkpoint before, so that the part of the start
//! for which devices wait does not grow with the cache.
//!
//! Owns what was read ahead, and when that counts. Does not own the checkpoint (`checkpoint`), nor who lets go of the log when
//! (`keeper/following` on the other side). Invariants: nothing is written or created; the volumes have what loading the same checkpoint
//! now would give.
//!
//! In the time between, the other process goes on writing, cleaning, noting marks, and making and deleting exports. What is new is found
//! by the start in the segments which the checkpoint does not cover, and in the catalog, as after any other checkpoint. What was read
//! ahead is brought up to date, an export at a time:
//!
//! - *Marks have grown*: the extents of the export are sorted again, by the marks of now.
//! - *A segment is used again*: its extents are left out.
//! - *An export was deleted*: it is left out.
//!
//! With another checkpoint, a segment that is missing or damaged now, or an export which the reading was not told of and which the
//! checkpoint lists, nothing of the reading counts, and the checkpoint is loaded as ever.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::checkpoint::{Ends, Rest};
use super::layout::{at, segment_frames, segment_limit, segments_in};
use super::patience::Patience;
use super::segments::{Found, Recovery};
use crate::cache::log::disk::{CheckpointStamp, Clock, Disk};
use crate::cache::log::error::CacheError;
use crate::cache::log::superblock::Superblock;
use crate::cache::log::table::SegmentTable;
use crate::cache::options::Options;
use crate::cache::volume::Volume;
use crate::cache::volume::layers::SeqMarks;
use crate::cache::volume::ranks::Ranks;
use crate::units::ExportId;

/// A checkpoint that was loaded while another process had the cache open.
pub struct Ahead {
    stamp: CheckpointStamp,
    /// Counts the extents of `volumes`; nothing else of the table counts.
    table: SegmentTable,
    volumes: HashMap<ExportId, Arc<Volume>>,
    ends: Ends,
    rest: Rest,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stamp, volumes, rest, .. } = self;
        f.debug_struct("Ahead")
            .field("stamp", stamp)
            .field("volumes", &volumes.len())
            .field("extents", &rest.extents())
            .finish_non_exhaustive()
    }
}

impl Ahead {
    /// Number of extents that were put into volumes.
    pub fn extents(&self) -> u64 {
        self.rest.extents()
    }
}

/// Loads the checkpoint of the cache on `disk`, which another process has open, for `exports` with the marks that the other process has
/// noted. `None` without a checkpoint that can be used.
///
/// # Errors
/// The cache is of a format that this program does not read, or the disk fails. The start that follows would fail as well.
pub(in crate::cache) fn look_ahead(
    disk: &dyn Disk,
    clock: &dyn Clock,
    options: &Options,
    exports: &[(ExportId, SeqMarks)],
) -> Result<Option<Ahead>, CacheError> {
    let directory = disk.location();
    let bytes = at(disk.read_superblock(), "reading cache.meta", || directory.clone())?;
    let Some(bytes) = bytes else { return Ok(None) };
    let superblock = Superblock::decode(&bytes, &directory)?;
    let frames = segment_frames(superblock.segment_bytes)?;
    let limit = segment_limit(options, superblock.segment_bytes)?;
    let stamp = at(disk.checkpoint_stamp(), "looking for index.ckpt", || directory.clone())?;
    let Some(stamp) = stamp else { return Ok(None) };
    let (mut present, count) = segments_in(disk, limit)?;
    let table = SegmentTable::new(count, limit, superblock.cache_id, frames);
    let patience = Patience::new(clock);
    let mut recovery = Recovery::new(disk, &patience, &table, exports);
    recovery.hands = options.hands;
    let Ok(Some(mut checkpoint)) = recovery.begin_checkpoint(&superblock) else { return Ok(None) };
    present.retain(|number| checkpoint.lists(*number));
    let mut segments = match recovery.identify_all(&present) {
        Err(CacheError::Disk { operation, file, source }) => {
            // The other process may have removed the file.
            let error = &source as &dyn std::error::Error;
            tracing::info!(operation, file, error, "the log cannot be read ahead");
            return Ok(None);
        }
        segments => segments?,
    };
    recovery.rank(&mut segments);
    let ends = recovery.cover(checkpoint.covered(), &mut segments);
    if !ends.is_whole() {
        // A segment was lost. The start finds out which, and what was in the segment.
        return Ok(None);
    }
    let rest = match recovery.load_rest(&mut checkpoint, &ends) {
        Ok(rest) => rest,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::info!(error, "the checkpoint of the index cannot be read ahead");
            return Ok(None);
        }
    };
    drop(checkpoint);
    let Recovery { volumes, .. } = recovery;
    // Without the files, which the start opens again.
    let counts = SegmentTable::new(count, limit, superblock.cache_id, frames);
    counts.add_counts(&table);
    Ok(Some(Ahead { stamp, table: counts, volumes, ends, rest }))
}

impl Recovery<'_> {
    /// Makes what was read ahead the content of the volumes, which are empty, as far as loading the checkpoint would; `ends` is what the
    /// log has now of the segments listed. `None`, and nothing is changed, where the checkpoint has to be loaded.
    pub fn adopt(&mut self, ahead: Ahead, ends: &Ends) -> Option<Rest> {
        let Some(gone) = self.gone_since(&ahead, ends) else {
            tracing::info!("the checkpoint of the index was read ahead in vain, and is read again");
            return None;
        };
        let Ahead { table, volumes, rest, .. } = ahead;
        for (export, volume) in volumes {
            match self.volumes.get_mut(&export) {
                Some(own) if own.marks() == volume.marks() && !volume.has_any_in(&gone) => *own = volume,
                Some(own) => own.load_from(&volume, &gone, &table, &self.ranks),
                // Deleted since.
                None => volume.remove(&table).forget(&table),
            }
        }
        self.table.add_counts(&table);
        self.found.was_ahead = true;
        Some(rest)
    }

    /// The segments listed that were used again since the reading `ahead`; `None` where the reading does not count.
    fn gone_since(&self, ahead: &Ahead, ends: &Ends) -> Option<HashSet<u32>> {
        let stamp = self.disk.checkpoint_stamp().ok().flatten();
        let is_same = stamp == Some(ahead.stamp);
        let is_complete = !ahead.rest.unknown().iter().any(|export| self.volumes.contains_key(export));
        let has_grown = |(export, volume): (&ExportId, &Arc<Volume>)| {
            let (was, own) = (volume.marks(), self.volumes.get(export).map(|own| own.marks()));
            own.is_none_or(|own| own.evicted >= was.evicted && own.stored >= was.stored)
        };
        let is_older = ahead.volumes.iter().all(has_grown);
        ahead.ends.gone_in(ends).filter(|_| is_same && is_complete && is_older)
    }

    /// Brings `segments` into the order of a replay, and gives them ranks.
    ///
    /// Of two copies of one write the index refers to the copy of the highest rank. Copies made by cleaning come last, the newest at the
    /// end, so the segment emptied by cleaning is free.
    pub fn rank(&mut self, segments: &mut [Found]) {
        segments.sort_unstable_by_key(|found| (found.by_cleaner, found.key.segment_id));
        self.ranks = Ranks::ascending(segments.iter().map(|found| found.number));
    }
}
