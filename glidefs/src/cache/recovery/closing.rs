//! Closing the segments read by recovery: making each stable, so the next recovery finds the same, and removing files beyond the
//! cache's size.
//!
//! Does not own finding and reading segments (`identify`, `segments`). Invariants: a frame with the proof of how far a segment
//! was stable is overwritten only after the proof is somewhere else; a segment which does not become stable is given up: all live
//! data of the segment moves, and until then no FLUSH calls the data stable.

use std::sync::Arc;

use super::layout::at;
use super::segments::{Found, Recovery};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::FooterBuilder;
use crate::cache::log::life::State;
use crate::cache::log::scan;
use crate::cache::log::seal;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::table::Place;
use crate::cache::log::walk::{self, Hole, Walk};

impl Found {
    /// Whether a walk kept no record of the segment.
    fn holds_nothing(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.records.is_empty())
    }

    /// Whether a start must close the segment or fail: the segment is open, has records and ends in a torn tail, and the dropped
    /// record could come back as a part of the segment. Of any other segment the next walk finds the same, closed or not.
    fn must_be_closed(&self) -> bool {
        let is_open = !self.closed && self.trailer.is_none();
        is_open && !self.holds_nothing() && self.walk.as_ref().is_some_and(|walk| walk.torn)
    }

    /// The writer that is to close the segment, with the records of `walk` for the footer.
    fn closing(&self, walk: &Walk) -> SegmentWriter {
        let mut footer = FooterBuilder::default();
        for record in &walk.records {
            footer.add_record(record.position_frames, &record.entries, &record.crcs);
        }
        // A lost footer whose place the trailer names leaves room for the new footer there.
        let end = self.trailer.as_ref().map_or(walk.evidence_end(), |trailer| trailer.footer_frame);
        let mut segment = SegmentWriter::resume(self.number, self.key, Arc::clone(&self.file), end, footer);
        // A vital trailer is stable before the footer is written. Holes need one: exports made from now on had nothing in a hole,
        // so the next start must not find the hole again. So do dropped records, whose headers describe the records before, and
        // records without a header of their own: without a trailer the next start could miss these.
        let was_vital = self.trailer.as_ref().is_some_and(|trailer| trailer.vital);
        segment.vital = was_vital || !walk.holes.is_empty() || walk.has_dropped() || walk.made_up() > 0;
        segment
    }
}

impl Recovery<'_> {
    /// Whether a second walk finds the records of the first. A failed sync may have cost frames of the page cache alone.
    fn is_as_found(&self, found: &Found) -> bool {
        let Some(walk) = &found.walk else { return true };
        // The frames with the proof of how far the segment is stable may be lost now, so the second walk is given the result of
        // the first.
        let file = self.patience.with(&*found.file);
        let again = walk::walk_again(&file, &found.key, found.span(self.table.segment_frames()), walk.stable);
        // A missing hole is no loss: the frames of the hole can be read now, or were written.
        let is_known = |hole: &Hole| walk.holes.contains(hole);
        again.is_ok_and(|again| again.records == walk.records && again.holes.iter().all(is_known))
    }

    /// Writes the headers in `fronts` again and makes the headers stable: nothing in their segments proves them stable. Where the
    /// disk does not take a header, the data of the segment moves, and the file is not used again before the next start; until
    /// the data has moved, the last frame says which segment the file holds, as a copy of the header or as a trailer. `false`
    /// when a segment has changed since recovery read it.
    pub fn rewrite_fronts(&mut self, segments: &[Found]) -> bool {
        for (number, header) in std::mem::take(&mut self.fronts) {
            let used = self.table.get(number);
            let Some(file) = used.file() else { continue };
            let rewrite = || seal::rewrite_front(&**file, &header).and_then(|()| file.sync());
            let Err(error) = rewrite() else { continue };
            let found = segments.iter().find(|found| found.number == number);
            let is_as_found = found.is_none_or(|found| self.is_as_found(found));
            if !is_as_found && !self.is_last_try {
                return false;
            }
            // A write may fail for a moment only: one more try.
            let Err(error) = (if is_as_found { rewrite() } else { Err(error) }) else { continue };
            self.report(
                number,
                &error,
                "the disk does not take a segment header: the data of the segment moves to another one, and the file is not used until the next start",
            );
            match used.state() {
                State::Free => self.quarantine(number),
                State::Closed => {
                    if let Some(found) = found {
                        self.give_up(found);
                    }
                }
                State::Open | State::Sealed | State::Quarantined => used.retire(),
            }
        }
        true
    }

    /// Has all data of a segment move elsewhere, because the segment cannot be closed. Until then no FLUSH calls all of the data
    /// stable.
    fn give_up(&mut self, found: &Found) {
        let used = self.table.get(found.number);
        used.retire();
        if let Some(walk) = found.walk.as_ref().filter(|_| !found.held) {
            // The keeper also tries to close the segment: there may be no room to move the data to.
            self.given_up.push(found.closing(walk));
        }
        used.poison_from(found.walk.as_ref().map_or(1, |walk| walk.stable));
        let place = Place { number: found.number, segment_id: found.key.segment_id, end: used.appended() };
        for entry in found.records().iter().flat_map(|record| &record.entries) {
            if let Some(volume) = self.volumes.get(&entry.export) {
                volume.must_sync(self.table, place);
            }
        }
    }

    /// Makes a segment stable; a walked segment is closed for ever as well. `false` when the segment has changed since recovery
    /// read it.
    pub fn seal(&mut self, found: &Found) -> Result<bool, CacheError> {
        let used = self.table.get(found.number);
        if used.is_poisoned() {
            return Ok(true);
        }
        let Err(error) = self.try_seal(found) else { return Ok(true) };
        let is_as_found = self.is_as_found(found);
        if !is_as_found && !self.is_last_try {
            return Ok(false);
        }
        // A write may fail for a moment only: one more try.
        match if is_as_found { self.try_seal(found) } else { Err(error) } {
            Err(error) if !is_as_found || used.is_retired() || !found.must_be_closed() => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a segment cannot be closed: the data of the segment moves to another one, and the file is not used until the next start"
                );
                self.give_up(found);
                Ok(true)
            }
            sealed => sealed.map(|()| true),
        }
    }

    fn try_seal(&self, found: &Found) -> Result<(), CacheError> {
        let Found { number, file, held, .. } = found;
        let (number, file) = (*number, Arc::clone(file));
        let name = || self.disk.segment_name(number);
        let Some(walk) = &found.walk else {
            // The process that wrote the trailer may have died before the trailer was stable.
            let Some(trailer) = found.trailer.filter(|trailer| trailer.vital) else { return Ok(()) };
            let written = seal::write_trailer(&*file, &trailer, self.table.segment_frames());
            return at(written.and_then(|()| file.sync()), "making the trailer stable", name);
        };
        // Wrong copies in the page cache are replaced first: `rewrite` writes frames from the page cache.
        at(scan::put_back(&*file, &walk.wrong_copies), "rewriting", name)?;
        at(scan::rewrite(&*file, walk.stable, walk.evidence_end()), "rewriting", name)?;
        if *held {
            at(file.sync(), "syncing", name)?;
            self.table.get(number).enter(State::Sealed);
            return Ok(());
        }
        let (segment, frames) = (found.closing(walk), self.table.segment_frames());
        let trailer = at(seal::close(&segment, frames, walk.headers_to_erase()), "closing", name)?;
        let used = self.table.get(number);
        used.enter(State::Sealed);
        used.leave_crcs(Some(&trailer), frames);
        if found.holds_nothing() && used.extents() == 0 && !used.is_retired() {
            // The segment is free at once: cleaning may have no other segment to move data to.
            used.end_use();
            used.enter(State::Free);
        }
        Ok(())
    }

    /// Removes segment files with numbers beyond the cache's size; fails when one of these files holds live data.
    ///
    /// While a segment with data is not stable, all files stay until a later start: the newer copies of their data may be in the
    /// unstable segment.
    pub fn remove_segments_beyond(&self, present: &[u32]) -> Result<(), CacheError> {
        let limit = self.table.limit();
        let needed = |number: u32| self.table.get(number).extents() > 0;
        let beyond: Vec<u32> = present.iter().copied().filter(|number| *number >= limit).collect();
        let first = beyond.iter().copied().find(|number| needed(*number));
        let last = beyond.iter().copied().rfind(|number| needed(*number));
        if let (Some(first), Some(last)) = (first, last) {
            return Err(CacheError::CannotShrink {
                segments: limit,
                file: self.disk.segment_name(first),
                size_bytes_min: (u64::from(last) + 1) * self.table.segment_bytes(),
            });
        }
        let is_unstable = |number: &u32| {
            let info = self.table.get(*number);
            info.is_poisoned() && info.extents() > 0
        };
        let stay = present.iter().any(is_unstable);
        for number in beyond {
            if !stay {
                at(self.disk.remove_segment(number), "removing", || self.disk.segment_name(number))?;
            }
            // After this, no FLUSH waits for the segment, even if the segment could not be closed.
            self.table.get(number).end_use();
        }
        Ok(())
    }
}
