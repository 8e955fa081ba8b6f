//! The segments that recovery finds: which segment holds which, and what is in each.
//!
//! Does not own what to do about records that cannot be found (`losses`), nor making segments stable (`closing`). Invariants:
//! a structure that the disk does not read, or that is not what was written, costs no more than that structure; nothing is written.
//!
//! ```text
//!  on the disk                     trailer  closed  walk           state after reading   what closing does
//!  trailer, whole footer           Some     –       None           Sealed                a vital trailer again
//!  trailer, damaged footer         Some     –       To             Closed                footer and trailer again
//!  no trailer, and the last frame
//!    is the header's copy          None     false   Open           Closed                footer behind what is kept, trailer
//!    is neither, nor torn          None     true    Closed         Closed                the same
//!  header, and nothing else        None     false   None           Free                  the front again
//! ```
//!
//! Two more things may happen to a segment that was walked: it stands for entries of doubt (`held`: it is synced and not closed),
//! or the disk does not take its closing (`given_up`: the keeper moves what it holds, or closes it later).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::at;
use super::patience::Patience;
use crate::cache::log::disk::{Disk, SegmentFile};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{EntryKind, FooterRecord, SegmentHeader, SegmentKey, Trailer};
use crate::cache::log::life::{Event, State};
use crate::cache::log::scan::{self, offset};
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::superblock::CACHE_VERSION;
use crate::cache::log::table::{SegmentInfo, SegmentTable};
use crate::cache::log::walk::{self, Span, Walk};
use crate::cache::options::Recovered;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::extent;
use crate::units::{ExportId, Seq};

/// A segment that was found.
pub(super) struct Found {
    pub number: u32,
    pub key: SegmentKey,
    pub file: Arc<dyn SegmentFile>,
    /// None when it was not sealed.
    pub trailer: Option<Trailer>,
    /// Something is where the trailer should be.
    pub closed: bool,
    /// The shard that appended its records; `None` when cleaning did, or nobody knows.
    pub shard: Option<u32>,
    /// Cleaning filled it, or nobody knows who did.
    pub by_cleaner: bool,
    /// It is not closed on the disk, so that the next recovery finds the same in it.
    pub held: bool,
    /// What a walk found, all of which may have been dropped. `None` when the footer lists the records, or the walk found nothing.
    pub walk: Option<Walk>,
}

/// What became of entries: put into an index, left out because of the marks, of no known export.
#[derive(Default)]
struct Replayed {
    entries: u64,
    evicted: u64,
    ignored: u64,
}

impl Found {
    /// Whether an entry in the segment, which has been scanned, says that records are lost.
    pub fn says_doubt(&self) -> bool {
        let records = self.walk.iter().flat_map(|walk| &walk.records);
        records.flat_map(|record| &record.entries).any(|entry| entry.kind == EntryKind::Doubt)
    }

    /// The records of a sealed segment, which have been read before.
    pub fn footer_again(&self) -> Option<Vec<FooterRecord>> {
        scan::read_footer(&*self.file, self.trailer.as_ref()?).ok()
    }
}

pub(super) struct Recovery<'a> {
    pub disk: &'a dyn Disk,
    pub patience: &'a Patience<'a>,
    pub table: &'a SegmentTable,
    pub volumes: HashMap<ExportId, Arc<Volume>>,
    pub last_segment_id: u64,
    /// A program that announces exports in segments has written to the cache, and so has closed the older segments with records,
    /// as far as the disk took that.
    pub announces: bool,
    /// Headers to write again.
    pub fronts: Vec<(u32, SegmentHeader)>,
    /// Headers of segments whose ids were made up.
    pub made_up: Vec<(u32, SegmentHeader)>,
    /// The marks that the catalog was given: recovery takes no entry of the export up to its mark from the log.
    pub noted: HashMap<ExportId, Seq>,
    /// Segments that could not be closed.
    pub given_up: Vec<SegmentWriter>,
    /// A segment that changes while it is closed is given up, and not read again.
    pub is_last_try: bool,
    pub found: Recovered,
}

impl Recovery<'_> {
    /// Fails when the disk reads nothing at all: then it is not a segment that is damaged.
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

    /// Reads what a segment holds into the indexes.
    pub fn read(&mut self, found: &mut Found) -> Result<(), CacheError> {
        let number = found.number;
        let (records, tail) = if let Some(read) = self.read_footer(found) {
            read
        } else {
            let mut walk = self.walk(found)?;
            let records = std::mem::take(&mut walk.records);
            // A segment of which all was dropped is closed as well: otherwise the next walk may find what was dropped.
            if records.is_empty() && walk.holes.is_empty() && !walk.torn {
                return Ok(());
            }
            let tail = found.trailer.as_ref().map_or(walk.tail, |trailer| trailer.footer_frame);
            found.walk = Some(walk);
            (records, tail)
        };
        if records.is_empty() && found.walk.is_none() {
            return Ok(());
        }
        self.found.segments += 1;
        self.found.records += records.len() as u64;
        let used = self.table.get(number);
        used.make_crcs(self.table.segment_frames());
        used.begin_use(found.key.segment_id, tail);
        used.on(Event::Prepare);
        used.on(Event::Close);
        for entry in records.iter().flat_map(|record| &record.entries) {
            self.announces |= entry.kind == EntryKind::Announced;
        }
        let replayed = self.replay(number, &records);
        self.found.entries += replayed.entries;
        self.found.evicted_entries += replayed.evicted;
        self.found.ignored_entries += replayed.ignored;
        match &mut found.walk {
            None => used.on(Event::Seal),
            Some(walk) => {
                self.found.scans += 1;
                walk.records = records;
            }
        }
        Ok(())
    }

    /// The records of a sealed segment and where they end, if its footer says them.
    fn read_footer(&mut self, found: &Found) -> Option<(Vec<FooterRecord>, u32)> {
        let trailer = found.trailer.as_ref()?;
        match scan::read_footer(&self.patience.with(&*found.file), trailer) {
            Ok(records) => {
                self.found.footers += 1;
                Some((records, trailer.footer_frame))
            }
            Err(error) => {
                self.found.bad_footers += 1;
                tracing::error!(
                    file = self.disk.segment_name(found.number),
                    error = &error as &dyn std::error::Error,
                    "a footer is damaged; scanning the segment instead"
                );
                None
            }
        }
    }

    /// Where the records of `found` may be.
    pub fn span(&self, found: &Found) -> Span {
        // The last frame is the trailer's.
        let end = self.table.segment_frames() - 1;
        match &found.trailer {
            Some(trailer) => Span::To(trailer.footer_frame),
            None if found.closed => Span::Closed(end),
            None => Span::Open(end),
        }
    }

    fn walk(&mut self, found: &Found) -> Result<Walk, CacheError> {
        let name = || self.disk.segment_name(found.number);
        let span = self.span(found);
        let walk = at(walk::walk(&self.patience.with(&*found.file), &found.key, span), "scanning", name)?;
        if let Some(found) = walk.newer {
            return Err(CacheError::TooNew { directory: self.disk.location(), found, known: CACHE_VERSION });
        }
        if walk.made_up() > 0 {
            self.found.bad_footers += walk.made_up() as u64;
            tracing::error!(
                file = name(),
                records = walk.made_up(),
                "record headers are damaged; the records behind them say the same"
            );
        }
        for hole in &walk.holes {
            self.found.holes += 1;
            tracing::error!(
                file = name(),
                offset_bytes = offset(hole.from),
                to_bytes = offset(hole.to),
                "a record header is damaged and no footer says what it was"
            );
        }
        if walk.unreadable > 0 {
            self.found.unreadable += u64::from(walk.unreadable);
            self.table.get(found.number).retire();
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
                "the page cache has other data than the disk, which has what was written: check the memory of this host"
            );
        }
        if walk.torn {
            self.found.torn_tails += 1;
            tracing::info!(file = name(), offset_bytes = offset(walk.tail), "dropped an unfinished record");
        }
        Ok(walk)
    }

    /// When no segment is free, refers to the originals of what an interrupted cleaning moved last, so that the segment of the copies
    /// becomes free: without a free segment cleaning could never go on.
    ///
    /// Cleaning takes the last free segment only to empty another one into it. All data of that one is still there until it is free.
    pub fn make_room_to_clean(&self, segments: &[Found]) {
        let last = segments.iter().rfind(|found| found.by_cleaner && found.trailer.is_none());
        let Some(last) = last.map(|found| found.number) else { return };
        let is_needed = |(_, info): (u32, &SegmentInfo)| info.state() != State::Free && info.extents() > 0;
        if !self.table.iter().all(is_needed) {
            return;
        }
        for found in segments.iter().filter(|found| found.number != last) {
            match &found.walk {
                Some(walk) => drop(self.replay(found.number, &walk.records)),
                None => {
                    if let Some(records) = found.footer_again() {
                        self.replay(found.number, &records);
                    }
                }
            }
        }
    }

    /// Puts records into the indexes and their checksums into the segment.
    fn replay(&self, number: u32, records: &[FooterRecord]) -> Replayed {
        let mut replayed = Replayed::default();
        for record in records {
            self.table.get(number).set_crcs(record.position_frames + 1, &record.crcs);
            for entry in &record.entries {
                let Some(volume) = self.volumes.get(&entry.export) else {
                    replayed.ignored += 1;
                    continue;
                };
                let Some(extent) = extent(entry, number, record.position_frames) else { continue };
                if volume.recovered(self.table, extent) {
                    replayed.entries += 1;
                } else {
                    replayed.evicted += 1;
                }
            }
        }
        replayed
    }
}
