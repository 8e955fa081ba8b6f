//! Sealing a segment: making the segment stable, and writing the footer and the trailer. Syncs of segment files off the workers, and
//! the repair after a failed sync.
//!
//! Does not own when. Invariants: the trailer is written only after a sync of all records; no segment is freed or prepared while
//! the segment is sealed, as one thread, the keeper's, does all three. The hold on the file alone would not do: [`seal_one`]
//! gives the file back before the trailer is written.

use std::iter;

use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::{scan, seal};
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;

const SYNC_FAILED: &str =
    "the cache disk failed to make data stable; FLUSH fails until the data has been written again";
const NO_FOOTER: &str =
    "writing a footer failed, and is tried again: without a footer the next start has to scan the segment";

/// How far the sealing of a segment came.
pub(super) enum Sealing {
    /// Somebody else is syncing the file, or the file is not stable.
    Waits,
    /// The segment is sealed, and the disk did not take the footer or the trailer.
    WithoutFooter,
    Done,
}

/// Makes `segment` stable and seals the segment. With `is_full`, when no segment is free to move frames to, a segment with lost
/// frames is sealed as well.
pub(super) fn seal_one(shared: &Shared, segment: &SegmentWriter, is_full: bool) -> Sealing {
    let info = shared.table.get(segment.number);
    if info.segment_id() != segment.key.segment_id || info.state() != State::Closed {
        // The segment was emptied and freed before the segment's turn came.
        return Sealing::Done;
    }
    if info.is_poisoned() && !heal(shared, info, segment) {
        // Recovery must not take the contents of the segment for stable.
        return if is_full && seal_what_is_left(shared, info, segment) {
            Sealing::Done
        } else {
            Sealing::Waits
        };
    }
    let Some(hold) = SyncHold::begin(shared, segment.number) else { return Sealing::Waits };
    let covers = info.appended();
    let frames = shared.table.segment_frames();
    // A segment without a footer is as good, but recovery has to scan the segment.
    let footer = (!segment.vital).then(|| seal::write_footer(segment, frames));
    let synced = segment.file.sync();
    hold.end(covers, synced.is_ok());
    if let Err(error) = &synced {
        shared.report(segment.number, error, SYNC_FAILED);
        return Sealing::Waits;
    }
    let closed = match footer {
        Some(footer) => footer.and_then(|trailer| {
            seal::write_trailer(&*segment.file, &trailer, frames)?;
            Ok(trailer)
        }),
        None => seal::close_trailer_first(segment, frames, iter::empty()),
    };
    info.enter(State::Sealed);
    match closed {
        Ok(trailer) => {
            info.leave_crcs(Some(&trailer), frames);
            Sealing::Done
        }
        Err(error) => {
            shared.report(segment.number, &error, NO_FOOTER);
            Sealing::WithoutFooter
        }
    }
}

/// Makes the frames of `segment` left by a failed sync stable in their place. The trailer becomes stable before any frame counts
/// as stable: a walk would take a lost frame for the torn end of the segment. A READ of a lost frame fails by the frame's
/// checksum.
fn seal_what_is_left(shared: &Shared, info: &SegmentInfo, segment: &SegmentWriter) -> bool {
    let Some(_hold) = SyncHold::begin(shared, segment.number) else { return false };
    // The segment is not sealed, so the checksums are in memory.
    let crcs = info.crcs();
    let crc = |frame| crcs.as_ref()?.get(frame);
    let frames = shared.table.segment_frames();
    let sealed = scan::rewrite_intact(&*segment.file, &segment.key, info.appended(), crc)
        .and_then(|()| segment.file.sync())
        .and_then(|()| seal::close_trailer_first(segment, frames, iter::empty()));
    match &sealed {
        Ok(trailer) => {
            info.heal();
            info.enter(State::Sealed);
            info.leave_crcs(Some(trailer), frames);
            tracing::error!(
                file = shared.disk.segment_name(segment.number),
                "a failed sync has cost data in the cache, and there is no room to move the rest to: the rest is stable again, and \
                 lost sectors fail until they are written again"
            );
        }
        Err(error) => shared.report(segment.number, error, SYNC_FAILED),
    }
    sealed.is_ok()
}

/// Writes footer and trailer of `segment`, all of which is stable; `false` when the disk does not take the writes, or somebody
/// else has the file.
pub(super) fn write_footer_again(shared: &Shared, segment: &SegmentWriter) -> bool {
    let info = shared.table.get(segment.number);
    let Some(_hold) = SyncHold::begin(shared, segment.number) else { return false };
    // Freeing the segment, or using the segment again, takes the hold on the file.
    info.segment_id() != segment.key.segment_id || info.state() != State::Sealed || {
        let frames = shared.table.segment_frames();
        let written = seal::close(segment, frames, iter::empty());
        if let Ok(trailer) = &written {
            info.leave_crcs(Some(trailer), frames);
        }
        written.is_ok()
    }
}

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
