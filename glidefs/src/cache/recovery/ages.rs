//! Whether log and catalog are of one age: one of the two may be an older copy that was put back alone.
//!
//! Owns the count of starts, and the comparison of the log's exports with the ids given out. Does not own the files of either.
//! Invariants: log and catalog have the same number of a start, but for a start under way; no id of an export with an
//! entry in a segment that was read, or with an extent in the checkpoint, is given out again. Not noticed is an export deleted since the
//! catalog's copy whose records are all in covered segments.

use super::layout::at;
use crate::cache::catalog::{CacheCatalog, Start};
use crate::cache::log::disk::Disk;
use crate::cache::log::error::CacheError;
use crate::cache::log::superblock::Superblock;
use crate::units::ExportId;

/// Fails unless `catalog` and a log whose last start is `log` are of one age: one of the two may be an older copy that was put
/// back alone.
pub(super) fn check_start(log: u32, catalog: &dyn CacheCatalog, directory: String) -> Result<(), CacheError> {
    let Some(Start { last, begun }) = catalog.start() else { return Ok(()) };
    if log == last || Some(log) == begun {
        return Ok(());
    }
    Err(CacheError::OtherAges { directory, log, catalog: begun.unwrap_or(last) })
}

/// Counts this start, in the catalog and in the log. The catalog notes the start as begun first: after a crash between the steps
/// [`check_start`] accepts the log with the old count and with the new one. An older copy of one of the two is covered by no such
/// note, and is refused.
pub(super) fn count_start(
    disk: &dyn Disk,
    superblock: &mut Superblock,
    catalog: &dyn CacheCatalog,
) -> Result<(), CacheError> {
    let Some(known) = catalog.start() else { return Ok(()) };
    let (last, directory) = (superblock.start, disk.location());
    let Some(start) = last.max(known.last).checked_add(1) else { return Ok(()) };
    let note = |start| at(catalog.set_start(start), "writing the catalog", || directory.clone());
    note(Start { last, begun: Some(start) })?;
    superblock.start = start;
    at(disk.replace_superblock(&superblock.encode()), "writing cache.meta", || directory.clone())?;
    note(Start { last: start, begun: None })
}

/// Fails when the log has data of an export with an id that the catalog would give out again: `last` is the highest id in the log, and
/// `next` the id for the next export. The record of an export is in the catalog, together with the next id, before the export takes a
/// write, and the next id never falls: so only an older copy of the catalog knows less than the log.
pub(super) fn check_exports(
    last: Option<ExportId>,
    next: Option<ExportId>,
    directory: String,
) -> Result<(), CacheError> {
    match (last, next) {
        (Some(last), Some(next)) if last >= next => {
            Err(CacheError::OlderCatalog { directory, export: last.0, next_export: next.0 })
        }
        _ => Ok(()),
    }
}
