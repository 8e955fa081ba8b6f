//! Work on the cache before a hand-over, so that the pause of devices is short.
//!
//! Owns the two moments: the daemon that runs prepares the cache for a successor, and the successor loads ahead while the other one
//! still serves. Invariant: [`load_ahead`] takes no lock and changes nothing; a cache that cannot be loaded ahead, though it can be opened, is
//! opened as at any other start.

use std::path::Path;
use std::time::{Duration, Instant};

use super::error::DaemonError;
use crate::cache::{Ahead, Cache, Directory, MonotonicClock, Options, SeqMarks};
use crate::handover::Mark;
use crate::units::{ExportId, Seq};

/// How long the checkpoint of the index may take.
const CHECKPOINT_PATIENCE: Duration = Duration::from_mins(2);

/// Prepares the cache for a successor, and returns the marks of its exports. Called by the daemon that runs, once its successor is known
/// to be able to take over, on a thread that may block.
pub(super) fn prepare_cache(cache: &Cache) -> Vec<Mark> {
    let begun = Instant::now();
    let is_ready = cache.expect_successor(CHECKPOINT_PATIENCE);
    tracing::info!(is_ready, seconds = begun.elapsed().as_secs_f64(), "the log is prepared for a successor");
    let mark = |(export, marks): (ExportId, SeqMarks)| Mark(export.0, marks.stored.0, marks.evicted.0);
    cache.marks().into_iter().map(mark).collect()
}

/// Loads as much of the cache as can be loaded beside the daemon that serves. Called by the successor, before any lock is taken;
/// `open_cache` gets the result.
pub(super) fn load_ahead(
    directory: &Path,
    options: &Options,
    marks: &[Mark],
) -> Result<Option<Ahead>, DaemonError> {
    let begun = Instant::now();
    let exports: Vec<_> = marks
        .iter()
        .map(|mark| (ExportId(mark.0), SeqMarks { stored: Seq(mark.1), evicted: Seq(mark.2) }))
        .collect();
    let disk = Directory::new(directory);
    let ahead = Cache::look_ahead(&disk, &MonotonicClock::default(), options, &exports)?;
    tracing::info!(
        extents = ahead.as_ref().map(Ahead::extents),
        seconds = begun.elapsed().as_secs_f64(),
        "the index is loaded ahead"
    );
    Ok(ahead)
}
