//! Which segment each file holds: the header, its copy, the trailer and, where all of them are lost, the records tell.
//!
//! Does not own the records of a segment (`segments`). Invariant: nothing is written.

use std::io;
use std::sync::Arc;

use super::at;
use super::segments::{Found, Recovery};
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{CLEANER, SegmentHeader, SegmentKey};
use crate::cache::log::life::Event;
use crate::cache::log::scan::{self, Identity};
use crate::cache::log::superblock::CACHE_VERSION;

/// Shard number in the header of a segment whose header was lost.
const UNKNOWN_SHARD: u32 = CLEANER - 1;
/// Stands for the id of a segment until that has one; no segment on a disk has this id.
const NAMELESS: u64 = 0;

impl Recovery<'_> {
    /// Finds out which segment `segment` holds, if any.
    pub fn identify(&mut self, number: u32) -> Result<Option<Found>, CacheError> {
        let name = || self.disk.segment_name(number);
        let file = at(self.disk.open_segment(number, 0), "opening", name)?;
        let patient = self.patience.with(&*file);
        let identity = match scan::identify(&patient, self.table.cache_id(), self.table.segment_frames()) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.check_short(number, &*file)?;
                return Ok(None);
            }
            identity => at(identity, "reading", name)?,
        };
        self.table.get(number).set_file(Arc::clone(&file));
        let mut closed = false;
        let (header, trailer, bad_header) = match identity {
            Identity::Blank { unreadable } => {
                if unreadable {
                    self.quarantine(number);
                }
                return Ok(None);
            }
            Identity::Sealed { trailer, header } => {
                let rebuilt = header.unwrap_or_else(|| self.rebuilt_header(&trailer.key));
                (rebuilt, Some(trailer), header.is_none())
            }
            Identity::Unsealed { header, bad_header, closed: has_trailer } => {
                closed = has_trailer;
                (header, None, bad_header)
            }
            Identity::TooNew { version } => {
                return Err(CacheError::TooNew {
                    directory: self.disk.location(),
                    found: version,
                    known: CACHE_VERSION,
                });
            }
            Identity::Unknown => return self.identify_by_records(number, file),
        };
        if bad_header {
            self.found.bad_footers += 1;
            tracing::warn!(
                file = name(),
                "a segment header is damaged or half-written; its copy or the trailer serves instead"
            );
        }
        if bad_header || trailer.is_none() {
            self.fronts.push((number, header));
        }
        // The highest id is in some header even if nothing was appended under it.
        self.last_segment_id = self.last_segment_id.max(header.segment_id);
        let by_cleaner = header.shard >= UNKNOWN_SHARD;
        Ok(Some(Found {
            number,
            shard: Some(header.shard).filter(|shard| *shard < UNKNOWN_SHARD),
            key: header.key(),
            file,
            trailer,
            closed,
            by_cleaner,
            held: false,
            walk: None,
        }))
    }

    /// The segment in segment `segment`, whose ends say nothing: that of the newest records in it.
    fn identify_by_records(
        &mut self,
        number: u32,
        file: Arc<dyn SegmentFile>,
    ) -> Result<Option<Found>, CacheError> {
        let name = || self.disk.segment_name(number);
        let (cache_id, frames) = (self.table.cache_id(), self.table.segment_frames());
        let (newest, whole) =
            at(scan::newest_segment(&self.patience.with(&*file), cache_id, frames), "reading", name)?;
        self.found.bad_footers += 1;
        tracing::error!(file = name(), "neither the header nor the trailer of a segment can be read");
        if newest.is_none() && whole {
            // Nothing was ever appended. But both ends are rotten: the file is not used before another start has looked.
            self.quarantine(number);
            return Ok(None);
        }
        let key = self.table.key(newest.unwrap_or(NAMELESS));
        self.last_segment_id = self.last_segment_id.max(key.segment_id);
        if newest.is_some() {
            self.fronts.push((number, self.rebuilt_header(&key)));
        }
        Ok(Some(Found {
            number,
            shard: None,
            key,
            file,
            trailer: None,
            closed: true,
            by_cleaner: true,
            held: false,
            walk: None,
        }))
    }

    /// Gives ids to the segments of which nothing says an id. Call when all others have been identified: what an earlier start
    /// found of a segment must not be taken for what is known of another one.
    pub fn name_the_nameless(&mut self, segments: &mut [Found]) -> Result<(), CacheError> {
        for found in segments.iter_mut().filter(|found| found.key.segment_id == NAMELESS) {
            found.key = self.table.key(self.new_segment_id()?);
            self.made_up.push((found.number, self.rebuilt_header(&found.key)));
        }
        Ok(())
    }

    /// An id that no segment has or had.
    pub fn new_segment_id(&mut self) -> Result<u64, CacheError> {
        let next = self.last_segment_id.checked_add(1).ok_or_else(|| CacheError::Exhausted {
            directory: self.disk.location(),
            what: "a segment has the highest id there is",
        })?;
        self.last_segment_id = next;
        Ok(next)
    }

    /// Takes a segment that holds nothing out of use, because the disk does not read or take what is in its file.
    pub fn quarantine(&mut self, number: u32) {
        self.found.unreadable += 1;
        tracing::error!(
            file = self.disk.segment_name(number),
            "the disk loses what is written to a segment file, which holds nothing: it is not used until the next start"
        );
        self.table.get(number).on(Event::Quarantine);
    }

    /// A file that is shorter than a segment: one whose making was cut short, or a damaged one.
    fn check_short(&mut self, number: u32, file: &dyn SegmentFile) -> Result<(), CacheError> {
        match scan::read_frame(file, 0) {
            Ok(frame) if frame.iter().any(|byte| *byte != 0) => Err(CacheError::Damaged {
                file: self.disk.segment_name(number),
                offset_bytes: 0,
                what: "the file is shorter than a segment".into(),
            }),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(_) => {
                self.quarantine(number);
                Ok(())
            }
        }
    }

    /// The header that a sealed segment should have.
    fn rebuilt_header(&self, key: &SegmentKey) -> SegmentHeader {
        SegmentHeader {
            cache_id: key.cache_id,
            segment_id: key.segment_id,
            shard: UNKNOWN_SHARD,
            segment_bytes: self.table.segment_bytes(),
        }
    }
}
