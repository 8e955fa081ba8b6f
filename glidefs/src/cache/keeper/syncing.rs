//! Syncs of segment files off the workers, and the repair after a failed sync.
//!
//! Owns the calls and their log lines. Invariant: only one thread at a time syncs a file, as the kernel reports a failed
//! write-back to one caller only.

use crate::cache::log::info::SegmentInfo;
use crate::cache::log::scan;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;

pub(super) const SYNC_FAILED: &str =
    "the cache disk failed to make data stable; FLUSH fails until the data has been written again";

/// Writes the records of a segment with a failed sync once more, in their place: this takes no room, and the kernel counts the
/// pages as unwritten again. `false` when this fails too, or when the pages are gone; then the data must move.
pub(super) fn heal(shared: &Shared, info: &SegmentInfo, segment: &SegmentWriter) -> bool {
    let Some(_hold) = SyncHold::begin(shared, segment.number) else { return false };
    let rewritten = scan::rewrite_records(&*segment.file, &segment.key, info.synced(), info.appended());
    let healed = match rewritten {
        Ok(true) => segment.file.sync().is_ok(),
        Ok(false) | Err(_) => false,
    };
    if healed {
        info.heal();
        tracing::info!(
            file = shared.disk.segment_name(segment.number),
            "made a segment stable after a failed sync"
        );
    }
    healed
}

/// Syncs the file of segment `number` and returns whether the segment is stable; `None` while somebody else holds the file.
pub(in crate::cache) fn sync(shared: &Shared, number: u32) -> Option<bool> {
    let hold = SyncHold::begin(shared, number)?;
    let info = shared.table.get(number);
    let covers = info.appended();
    let synced = match info.file() {
        Some(file) => file.sync(),
        None => Ok(()),
    };
    if let Err(error) = &synced {
        shared.report(number, error, SYNC_FAILED);
    }
    hold.end(covers, synced.is_ok());
    if synced.is_err() {
        // The shard that appends to the segment must let go of the segment.
        for port in &shared.ports {
            port.wake();
        }
    }
    Some(!info.is_poisoned())
}
