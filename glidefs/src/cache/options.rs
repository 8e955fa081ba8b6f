//! What the cache is opened with, and what opening found.

use std::sync::Arc;

use crate::cache::catalog::{CacheCatalog, NoCatalog};
use crate::cache::volume::layers::SeqMarks;
use crate::units::ExportId;

/// What happens to writes when the cache is full and nothing can be moved out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// They wait.
    #[default]
    Wait,
    /// They fail with ENOSPC.
    Enospc,
}

/// How the cache is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Room for all segments together, bytes. At least `2 × shards + 3` segments.
    pub size_bytes: u64,
    /// Size of one segment file, bytes: a multiple of 4096, at least 256 KiB and below 2 TiB. Fixed when the cache is
    /// made; an existing cache keeps its own.
    pub segment_bytes: u64,
    /// Shards, one a worker. May change from one run to the next.
    pub shards: usize,
    /// What to do when the cache is full.
    pub on_full: OnFull,
}

/// The exports whose data the cache keeps.
#[derive(Debug)]
pub struct Known {
    /// Each with how far its history had come.
    pub exports: Vec<(ExportId, SeqMarks)>,
    /// Where the marks are kept.
    pub catalog: Arc<dyn CacheCatalog>,
}

impl Known {
    /// Exports that no store has anything of.
    pub fn local(ids: &[ExportId]) -> Self {
        let exports = ids.iter().map(|id| (*id, SeqMarks::default())).collect();
        Self { exports, catalog: Arc::new(NoCatalog) }
    }
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Segments that held records.
    pub segments: u64,
    /// Of those, read through their footers.
    pub footers: u64,
    /// Of those, scanned record by record.
    pub scans: u64,
    /// Records found.
    pub records: u64,
    /// Entries of known exports put into an index.
    pub entries: u64,
    /// Entries that were left out because newer data of the same sectors may have left the log for the store.
    pub evicted_entries: u64,
    /// Entries of exports that are no longer known.
    pub ignored_entries: u64,
    /// Segments that ended in a record that was not whole.
    pub torn_tails: u64,
    /// Headers and footers that were damaged and made up for.
    pub bad_footers: u64,
    /// Frames and files that the disk did not read.
    pub unreadable: u64,
    /// Places in segments where records may be lost.
    pub holes: u64,
    /// Exports that may have lost a record: what of them is older than it fails.
    pub doubted: u64,
    /// How long it took, seconds.
    pub seconds: f64,
}
