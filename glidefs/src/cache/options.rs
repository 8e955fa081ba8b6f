//! The options for opening the cache, and the findings of opening.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cache::catalog::CacheCatalog;
#[cfg(doc)]
use crate::cache::hands::HANDS_MAX;
use crate::cache::volume::budget::Budgets;
use crate::cache::volume::layers::SeqMarks;
use crate::units::ExportId;

/// The fate of writes when the cache is full and no data can be moved out; `cache.on_full` of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// Writes wait.
    #[default]
    Wait,
    /// Writes fail with ENOSPC.
    Enospc,
}

/// How the cache is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Room for all segments together, bytes. At least `2 × shards + 3` segments.
    pub size_bytes: u64,
    /// Size of one segment file, bytes: a multiple of 4096, at least 256 KiB and below 2 TiB. Fixed when the cache is made; an
    /// existing cache keeps the old size.
    pub segment_bytes: u64,
    /// Shards, one a worker. May change from one start to the next.
    pub shards: usize,
    /// The fate of writes when the cache is full.
    pub on_full: OnFull,
    /// Most memory for checksums of sealed segments, bytes; a little more where a shard would get less than 16 KiB.
    pub checksums_bytes_max: u64,
    /// Most memory for stretches of segments that are read often, mapped and locked, bytes; 0 for none.
    pub mapped_bytes_max: u64,
    /// The bounds on the parts of the cache that exports share.
    pub budgets: Budgets,
    /// Threads that read and check segments and the checkpoint at a start, the thread of the start included: 1 to [`HANDS_MAX`]. With 1
    /// all reads are made in one order, on the calling thread.
    pub hands: usize,
}

/// The exports whose data the cache keeps.
#[derive(Debug)]
pub struct Known {
    /// Each export with the marks of the export's history.
    pub exports: Vec<(ExportId, SeqMarks)>,
    /// The id for the next export: the log has no entry of this export, or of a later one. `None` where nobody counts ids.
    pub next_export: Option<ExportId>,
    /// Where the marks are kept.
    pub catalog: Arc<dyn CacheCatalog>,
}

/// The findings of opening the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Segments with records.
    pub segments: u64,
    /// Segments read through their footers.
    pub footers: u64,
    /// Segments covered by the checkpoint of the index.
    pub covered: u64,
    /// Extents taken from the checkpoint.
    pub checkpoint_extents: u64,
    /// Checkpoints which could not be used because of damage, of the checkpoint or of the log.
    pub checkpoints_refused: u64,
    /// Segments scanned record by record.
    pub scans: u64,
    /// Records found.
    pub records: u64,
    /// Entries of known exports put into an index.
    pub entries: u64,
    /// Entries left out because newer data of the same sectors may have left the log for the store.
    pub evicted_entries: u64,
    /// Entries of unknown exports.
    pub ignored_entries: u64,
    /// Segments with an incomplete record at the end.
    pub torn_tails: u64,
    /// Headers and footers found damaged, and made up for.
    pub bad_footers: u64,
    /// Frames and files which the disk did not read.
    pub unreadable: u64,
    /// Places in segments where records may be lost.
    pub holes: u64,
    /// Exports with a doubt: a record may be lost, and a READ of older data fails.
    pub doubted: u64,
    /// Time taken by opening, seconds.
    pub seconds: f64,
}
