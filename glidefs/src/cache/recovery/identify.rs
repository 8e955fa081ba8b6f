//! Which segment each file holds: the header, the copy of the header and the trailer tell, and where all three are lost, the
//! records.
//!
//! Does not own reading the file (`reading`). Invariants: a structure the disk does not read, or gives back changed, costs no
//! more than the structure itself; nothing is written.

use std::io;
use std::sync::Arc;

use super::reading::Answer;
use super::segments::{Found, Recovery};
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{CLEANER, SegmentHeader};
use crate::cache::log::life::State;
use crate::cache::log::scan::Identity;
use crate::cache::log::superblock::CACHE_VERSION;

/// Shard number in a header that a start wrote in the place of a lost one.
pub(super) const UNKNOWN_SHARD: u32 = CLEANER - 1;
/// Shard number in the header of a note. A note with a lost header passes for a segment of an unknown shard: what only a note says is
/// then taken for content, which proves less.
pub(super) const NOTE_SHARD: u32 = CLEANER - 2;
/// Stands for the id of a segment until recovery has made up an id; no segment on a disk has this one.
const NAMELESS: u64 = 0;

impl Recovery<'_> {
    /// Finds out from `answer` which segment `file`, of number `number`, holds, if any. Fails where a newer glidefs wrote the segment,
    /// or where a file with data is shorter than a segment.
    pub fn identify(
        &mut self,
        number: u32,
        file: Arc<dyn SegmentFile>,
        answer: Answer,
    ) -> Result<Option<Found>, CacheError> {
        let name = || self.disk.segment_name(number);
        if !matches!(answer, Answer::Short(_)) {
            self.table.get(number).set_file(Arc::clone(&file));
        }
        let mut closed = false;
        let (header, trailer, bad_header) = match answer {
            // The making of the file was cut short, or the file is damaged.
            Answer::Short(first) => {
                match first {
                    Ok(frame) if frame.iter().any(|byte| *byte != 0) => {
                        let what = "the file is shorter than a segment".into();
                        return Err(CacheError::Damaged { file: name(), offset_bytes: 0, what });
                    }
                    Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => self.quarantine(number),
                    Ok(_) | Err(_) => {}
                }
                return Ok(None);
            }
            Answer::Records { newest, whole } => {
                return Ok(self.identify_by_records(number, file, newest, whole));
            }
            Answer::Ends(Identity::Blank { unreadable }) => {
                if unreadable {
                    self.quarantine(number);
                }
                return Ok(None);
            }
            Answer::Ends(Identity::Sealed { trailer, header }) => {
                let rebuilt = header.unwrap_or_else(|| self.rebuilt_header(trailer.key.segment_id));
                (rebuilt, Some(trailer), header.is_none())
            }
            Answer::Ends(Identity::Unsealed { header, bad_header, closed: has_trailer }) => {
                closed = has_trailer;
                (header, None, bad_header)
            }
            Answer::Ends(Identity::TooNew { version }) => {
                return Err(CacheError::TooNew {
                    directory: self.disk.location(),
                    found: version,
                    known: CACHE_VERSION,
                });
            }
        };
        if bad_header {
            self.found.bad_footers += 1;
            tracing::warn!(
                file = name(),
                "a segment header is damaged or half-written; the copy of the header or the trailer serves instead"
            );
        }
        if bad_header || trailer.is_none() {
            self.fronts.push((number, header));
        }
        // The highest id may be in a header under which nothing was appended.
        self.last_segment_id = self.last_segment_id.max(header.segment_id);
        Ok(Some(Found::new(number, file, &header, trailer, closed)))
    }

    /// The segment in file number `number`, where neither end of the file tells: the `newest` with records in the file. `whole`: all of
    /// the file can be read.
    fn identify_by_records(
        &mut self,
        number: u32,
        file: Arc<dyn SegmentFile>,
        newest: Option<u64>,
        whole: bool,
    ) -> Option<Found> {
        self.found.bad_footers += 1;
        tracing::error!(
            file = self.disk.segment_name(number),
            "neither the header nor the trailer of a segment can be read: looking for records in the file"
        );
        if newest.is_none() && whole {
            // Nothing was ever appended. But both ends of the file are damaged: the file is not used before another start has
            // looked.
            self.quarantine(number);
            self.of_blank_files += 1;
            return None;
        }
        let header = self.rebuilt_header(newest.unwrap_or(NAMELESS));
        self.last_segment_id = self.last_segment_id.max(header.segment_id);
        if newest.is_some() {
            self.fronts.push((number, header));
        }
        Some(Found::new(number, file, &header, None, true))
    }

    /// Makes up ids for the segments of which nothing tells the id. Call when all other segments have been identified: an id must
    /// be new, or damage of this segment would be taken for known damage of another.
    pub fn name_the_nameless(&mut self, segments: &mut [Found]) -> Result<(), CacheError> {
        for found in segments.iter_mut().filter(|found| found.key.segment_id == NAMELESS) {
            found.key = self.table.key(self.new_segment_id()?);
            self.made_up.push((found.number, self.rebuilt_header(found.key.segment_id)));
        }
        Ok(())
    }

    /// Whether a file that could not be read when the segments were named can be read by now, and may hold one. Such a file counts as
    /// empty, and would be written to: call before anything is written, and read again. Where the file still tells nothing, the file is
    /// out of use until the next start. Fails on the last try: without the file, READs might return older content.
    pub fn has_a_file_come_back(&mut self) -> Result<bool, CacheError> {
        let reader = self.reader();
        let is_back = |number| {
            !matches!(reader.ask(number), Err(_) | Ok((_, Answer::Records { newest: None, whole: false })))
        };
        let numbers: Vec<u32> = self.made_up.iter().map(|(number, _)| *number).collect();
        for number in numbers {
            // Where a walk found a record, or a place for one, the segment is in use.
            let state = self.table.get(number).state();
            if !matches!(state, State::Free | State::Quarantined) {
                continue;
            }
            if is_back(number) {
                if !self.is_last_try {
                    return Ok(true);
                }
                let source = io::Error::other(
                    "the disk reads the file at one time and not at another: see whether the disk has errors (dmesg), and start again",
                );
                let file = self.disk.segment_name(number);
                return Err(CacheError::Disk { operation: "reading", file, source });
            }
            if state == State::Free {
                self.quarantine(number);
            }
        }
        Ok(false)
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

    /// Takes segment number `number`, which holds nothing, out of use, because the disk does not read the file or does not take
    /// writes to the file.
    pub fn quarantine(&mut self, number: u32) {
        self.found.unreadable += 1;
        self.of_blank_files += 1;
        tracing::error!(
            file = self.disk.segment_name(number),
            "the disk does not read a segment file without data, or does not take writes to the file: it is not used until the next start"
        );
        self.table.get(number).enter(State::Quarantined);
    }

    /// A header for a segment whose own header was lost.
    fn rebuilt_header(&self, segment_id: u64) -> SegmentHeader {
        self.table.header(segment_id, UNKNOWN_SHARD)
    }
}
