//! The segments found by recovery, and the records in each.
//!
//! Does not own which segment a file holds (`identify`), reading the file (`reading`), the consequences of records that cannot be
//! found (`losses`), or making segments stable (`closing`). Invariants: a structure the disk does not read, or gives back changed,
//! costs no more than the structure itself; nothing is written.
//!
//! ```text
//!  on the disk                     trailer  closed  walk           state after reading   closing writes
//!  trailer, whole footer           Some     –       None           Sealed                a vital trailer again
//!  trailer, damaged footer         Some     –       To             Closed                footer and trailer again
//!  no trailer, and the last frame
//!    is the header's copy          None     false   Open           Closed                footer behind the kept records, trailer
//!    is neither, nor torn          None     true    Closed         Closed                the same
//!  header, and nothing else        None     false   None           Free                  the front again
//! ```
//!
//! Two more cases of a walked segment: the segment stands for entries of doubt (`held`: synced, and not closed), or the
//! disk does not take the closing (`given_up`: the keeper moves the live data, or closes the segment later).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use super::identify::NOTE_SHARD;
use super::layout::at;
use super::missing::Missing;
use super::patience::Patience;
use super::reading::{Contents, Reader};
use crate::cache::log::disk::{Disk, SegmentFile};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{EntryKind, FooterRecord, SegmentHeader, SegmentKey, Trailer};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::scan::{self, offset};
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::sums::Crcs;
use crate::cache::log::superblock::CACHE_VERSION;
use crate::cache::log::table::SegmentTable;
use crate::cache::log::walk::{Span, Walk};
use crate::cache::options::Recovered;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::extent;
use crate::cache::volume::ranks::Ranks;
use crate::units::{ExportId, Seq};

/// A segment found on the disk.
pub(super) struct Found {
    pub number: u32,
    pub key: SegmentKey,
    pub file: Arc<dyn SegmentFile>,
    /// `None` when the segment was not sealed, or when the trailer is lost.
    pub trailer: Option<Trailer>,
    /// Without a trailer: a trailer was there, or was being written, because the last frame is not the copy of the header.
    pub closed: bool,
    /// The shard in the header.
    shard: u32,
    /// The segment is not closed on the disk, and the next recovery finds the same damage.
    pub held: bool,
    /// The indexes have the content of the segment from a checkpoint.
    pub is_covered: bool,
    /// The findings of a walk, all of which may have been dropped. `None` when the footer lists the records, or the walk found
    /// nothing.
    pub walk: Option<Walk>,
}

impl Found {
    /// The segment with this `header` in file number `number`, not read yet.
    pub fn new(
        number: u32,
        file: Arc<dyn SegmentFile>,
        header: &SegmentHeader,
        trailer: Option<Trailer>,
        closed: bool,
    ) -> Self {
        let (key, shard) = (header.key(), header.shard);
        Self { number, key, file, trailer, closed, shard, held: false, is_covered: false, walk: None }
    }

    /// Whether cleaning filled the segment, or a start did, or nobody knows who did.
    pub fn by_cleaner(&self) -> bool {
        self.shard >= NOTE_SHARD
    }

    /// Whether `other` is a later segment filled by the same shard.
    pub fn is_followed_by(&self, other: &Self) -> bool {
        !self.by_cleaner() && other.shard == self.shard && other.key.segment_id > self.key.segment_id
    }

    /// Whether the segment was walked and has an entry of doubt.
    pub fn says_doubt(&self) -> bool {
        let records = self.walk.iter().flat_map(|walk| &walk.records);
        records.flat_map(|record| &record.entries).any(|entry| entry.kind == EntryKind::Doubt)
    }

    /// The frames in which the records of the segment may be, of `frames` frames.
    pub fn span(&self, frames: u32) -> Span {
        // The last frame is the trailer's.
        let end = frames - 1;
        match &self.trailer {
            Some(trailer) => Span::To(trailer.footer_frame),
            None if self.closed => Span::Closed(end),
            None => Span::Open(end),
        }
    }

    /// The records of a segment that was read: those of the walk, or those in the footer, which is read once more.
    pub fn records(&self) -> Cow<'_, [FooterRecord]> {
        if let Some(walk) = &self.walk {
            return Cow::Borrowed(&walk.records);
        }
        let read = self.trailer.as_ref().and_then(|trailer| scan::read_footer(&*self.file, trailer).ok());
        Cow::Owned(read.unwrap_or_default())
    }
}

pub(super) struct Recovery<'a> {
    pub disk: &'a dyn Disk,
    pub patience: &'a Patience<'a>,
    pub table: &'a SegmentTable,
    pub volumes: HashMap<ExportId, Arc<Volume>>,
    /// The highest segment id in the log; where segments are missing, in the checkpoint as well: no id is given out twice.
    pub last_segment_id: u64,
    /// The log has announcements. The program which wrote these has also closed the older segments with records, as far as the
    /// disk took the closing.
    pub announces: bool,
    /// Segment numbers and headers that may not be stable, to be written again.
    pub fronts: Vec<(u32, SegmentHeader)>,
    /// Segment numbers and headers with made-up ids.
    pub made_up: Vec<(u32, SegmentHeader)>,
    /// The marks noted in the catalog: recovery takes no entry of an export up to the export's mark from the log.
    pub noted: HashMap<ExportId, Seq>,
    /// Segments the disk did not let recovery close.
    pub given_up: Vec<SegmentWriter>,
    /// How much of the damage found, as counted in `found`, is in files without data.
    pub of_blank_files: u64,
    /// Numbers of segments with notes of starts.
    pub notes: HashSet<u32>,
    /// A segment which changes while this try closes the segment is given up, and the cache is not read again.
    pub is_last_try: bool,
    /// The ranks of the segments in the order of a replay.
    pub ranks: Ranks,
    /// The checkpoint of the index is used, if the checkpoint can be used.
    pub tries_checkpoint: bool,
    /// Threads that read and check segment files.
    pub hands: usize,
    /// The highest id of an export with an entry in the log, or with an extent in the checkpoint.
    pub last_export: Option<ExportId>,
    /// Segments that the reading before did not find; those that are lost, once this reading has judged.
    pub missing: Missing,
    /// The id that the catalog has for the next export; `None` where nobody counts ids.
    pub next_export: Option<ExportId>,
    pub found: Recovered,
}

impl<'a> Recovery<'a> {
    /// The way to the segment files, for any thread.
    pub fn reader(&self) -> Reader<'a> {
        let Self { disk, patience, table, .. } = *self;
        Reader { disk, patience, cache_id: table.cache_id(), frames: table.segment_frames() }
    }

    /// Fails when the disk reads none of several segment files: then the disk is at fault, and not a segment.
    pub fn refuse_a_disk_that_reads_nothing(&self, present: &[u32]) -> Result<(), CacheError> {
        let is_read = |info: &SegmentInfo| {
            info.extents() > 0 || !(info.is_retired() || info.state() == State::Quarantined)
        };
        match present {
            [first, _, ..] if !present.iter().any(|number| is_read(self.table.get(*number))) => {
                Err(CacheError::Disk {
                    operation: "reading",
                    file: self.disk.segment_name(*first),
                    source: io::Error::other("the disk does not read any of the segment files"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Takes `contents`, the records of the segment `found`, into the indexes. Fails where the disk did not let a walk read, or where a
    /// newer glidefs wrote the segment.
    pub fn take_in(&mut self, found: &mut Found, contents: Contents) -> Result<(), CacheError> {
        let number = found.number;
        let (records, tail) = match contents {
            Contents::Footer(records) => {
                self.found.footers += 1;
                // Only a sealed segment has a footer.
                (records, found.trailer.as_ref().map_or(1, |trailer| trailer.footer_frame))
            }
            Contents::Walked { bad_footer, walk } => {
                if let Some(error) = bad_footer {
                    self.found.bad_footers += 1;
                    self.report(number, &error, "a footer is damaged; scanning the segment instead");
                }
                let mut walk = at(walk, "scanning", || self.disk.segment_name(number))?;
                self.judge(number, &walk)?;
                let records = std::mem::take(&mut walk.records);
                // A segment whose records were all dropped is closed as well: otherwise the next walk may find the dropped records.
                if records.is_empty() && walk.holes.is_empty() && !walk.torn {
                    if walk.unreadable > 0 {
                        self.quarantine(number);
                    }
                    return Ok(());
                }
                let tail = found.trailer.as_ref().map_or(walk.tail, |trailer| trailer.footer_frame);
                found.walk = Some(walk);
                (records, tail)
            }
        };
        if records.is_empty() && found.walk.is_none() {
            return Ok(());
        }
        self.found.segments += 1;
        self.found.records += records.len() as u64;
        let used = self.table.get(number);
        let frames = self.table.segment_frames();
        // A segment that is walked gets a trailer, and sums, later.
        let trailer = found.trailer.as_ref().filter(|_| found.walk.is_none());
        if trailer.and_then(|trailer| trailer.sums_frame(frames)).is_none() {
            used.keep_crcs(Crcs::new(frames));
        }
        used.leave_crcs(trailer, frames);
        used.begin_use(found.key.segment_id, tail);
        used.enter(State::Open);
        used.enter(State::Closed);
        for entry in records.iter().flat_map(|record| &record.entries) {
            self.announces |= entry.kind == EntryKind::Announced;
            self.last_export = self.last_export.max(Some(entry.export));
        }
        if found.shard == NOTE_SHARD {
            self.notes.insert(number);
        }
        self.replay(number, &records);
        match &mut found.walk {
            None => used.enter(State::Sealed),
            Some(walk) => {
                self.found.scans += 1;
                walk.records = records;
            }
        }
        Ok(())
    }

    /// Logs an `error` about the file of segment `number`.
    pub fn report(&self, number: u32, error: &(dyn std::error::Error + 'static), what: &'static str) {
        tracing::error!(file = self.disk.segment_name(number), error, "{what}");
    }

    /// Counts and reports what `walk` tells of segment number `number`. Fails where a newer glidefs wrote the segment.
    fn judge(&mut self, number: u32, walk: &Walk) -> Result<(), CacheError> {
        let name = || self.disk.segment_name(number);
        if let Some(found) = walk.newer {
            return Err(CacheError::TooNew { directory: self.disk.location(), found, known: CACHE_VERSION });
        }
        if walk.made_up() > 0 {
            self.found.bad_footers += walk.made_up() as u64;
            tracing::error!(
                file = name(),
                records = walk.made_up(),
                "record headers are damaged; the headers behind them describe the same records"
            );
        }
        for hole in &walk.holes {
            self.found.holes += 1;
            tracing::error!(
                file = name(),
                offset_bytes = offset(hole.from),
                to_bytes = offset(hole.to),
                "a record header is damaged and no footer lists the record"
            );
        }
        if walk.unreadable > 0 {
            self.found.unreadable += u64::from(walk.unreadable);
            self.table.get(number).retire();
            tracing::error!(
                file = name(),
                frames = walk.unreadable,
                "the disk does not read parts of a segment"
            );
        }
        if !walk.wrong_copies.is_empty() {
            tracing::error!(
                file = name(),
                frames = walk.wrong_copies.len(),
                "the page cache has wrong data where the disk has the right data: check the memory of this host"
            );
        }
        if walk.torn {
            self.found.torn_tails += 1;
            tracing::info!(file = name(), offset_bytes = offset(walk.tail), "dropped an unfinished record");
        }
        Ok(())
    }

    /// When no segment is free, makes the indexes refer to the originals of the data last copied by an interrupted cleaning. The
    /// segment of the copies becomes free: without a free segment cleaning could never go on.
    ///
    /// Cleaning takes the last free segment only to empty another one into it. All data of the emptied segment is still there
    /// until the emptied segment is free.
    pub fn make_room_to_clean(&mut self, segments: &[Found]) {
        let last = segments.iter().rfind(|found| found.by_cleaner() && found.trailer.is_none());
        let Some(last) = last.map(|found| found.number) else { return };
        let is_needed = |(_, info): (u32, &SegmentInfo)| info.state() != State::Free && info.extents() > 0;
        if !self.table.iter().all(is_needed) {
            return;
        }
        self.ranks.put_last(last);
        let counted = self.found;
        for found in segments.iter().filter(|found| found.number != last) {
            self.replay(found.number, &found.records());
        }
        // Each entry counts once.
        self.found = counted;
    }

    /// Puts the entries of records into the indexes. The checksums stay in memory of segments without sums on the disk.
    fn replay(&mut self, number: u32, records: &[FooterRecord]) {
        for record in records {
            self.table.get(number).set_crcs(record.position_frames + 1, &record.crcs);
            // A record of one writer has entries of one export.
            for entries in record.entries.chunk_by(|one, next| one.export == next.export) {
                let volume = entries.first().and_then(|entry| self.volumes.get(&entry.export));
                let Some(volume) = volume else {
                    self.found.ignored_entries += entries.len() as u64;
                    continue;
                };
                let extents =
                    entries.iter().filter_map(|entry| extent(entry, number, record.position_frames));
                let (put_back, left_out) = volume.recovered_all(self.table, &self.ranks, extents);
                self.found.entries += put_back;
                self.found.evicted_entries += left_out;
            }
        }
    }
}
