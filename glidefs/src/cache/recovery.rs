//! Opening a cache: what is there becomes the indexes, and nothing that was stable is lost without saying so.
//!
//! Owns the order of the steps. Does not own the formats or the segments' use afterwards. Invariants: a failed open changed
//! nothing that was stable; after a successful one every segment with data is sealed and stable, so that nothing that this
//! recovery dropped can come back.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::disk::{Clock, Disk, SegmentFile};
use super::error::CacheError;
use super::flush::{Book, Start};
use super::format::{FooterBuilder, FooterRecord, SegmentHeader, SegmentKey, Trailer};
use super::handle::{Known, LockGuard, Options, Parts, Recovered, Shared};
use super::keeper::CLEANER;
use super::pressure::RESERVE;
use super::scan::{self, Identity, Scan, offset};
use super::seal;
use super::segment::{Segment, extent};
use super::slots::{Event, Slot, Slots, State};
use super::superblock::{CACHE_VERSION, Superblock};
use super::volume::Volume;
use crate::units::{ExportId, FRAME_BYTES};

/// Smallest segment: it takes the largest WRITE, and a few of them.
const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
/// Largest segment: its sectors are counted in 32 bits.
const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// Opens the cache on `disk`. See [`super::Cache::open`].
pub(super) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    options: &Options,
    known: Known,
) -> Result<(Shared, Recovered), CacheError> {
    let started = clock.now();
    let lock = take_lock(&*disk)?;
    let superblock = read_superblock(&*disk, options, &*known.book)?;
    let frames = segment_frames(superblock.segment_bytes)?;
    let limit = slot_limit(options, superblock.segment_bytes)?;
    let mut present = at(disk.segments(), "listing", || disk.location())?;
    present.sort_unstable();
    // Slot numbers are eight digits, so adding one cannot overflow.
    let count = present.last().map_or(0, |last| last + 1).max(limit);
    let slots = Slots::new(count, limit, superblock.cache_id, frames);

    let mut recovery = Recovery {
        disk: &*disk,
        slots: &slots,
        volumes: known.exports.iter().map(|(id, marks)| (*id, Arc::new(Volume::at(*id, *marks)))).collect(),
        last_segment_id: 0,
        fronts: Vec::new(),
        found: Recovered::default(),
    };
    // Everything is read before anything is written: damage anywhere leaves the cache as it was.
    let mut segments = Vec::new();
    for slot in &present {
        segments.extend(recovery.identify(*slot)?);
    }
    // Of two copies of the same write the one replayed last is referred to. That is the one that cleaning made, and its
    // newest, so that what it emptied is free.
    segments.sort_unstable_by_key(|found| (found.by_cleaner, found.key.segment_id));
    for found in &mut segments {
        recovery.read(found)?;
    }
    recovery.make_room_to_clean(&segments)?;
    recovery.rewrite_fronts()?;
    for found in segments {
        recovery.seal(found)?;
    }
    recovery.drop_slots_beyond(limit, &present)?;
    let Recovery { volumes, last_segment_id, mut found, .. } = recovery;
    count_start(&*disk, &superblock, &*known.book)?;
    warn_if_disk_is_small(&*disk, limit, &present, superblock.segment_bytes);
    found.seconds = clock.now().saturating_sub(started).as_secs_f64();
    let bad_footers = found.bad_footers;
    let parts = Parts {
        disk,
        clock,
        slots,
        volumes,
        next_segment_id: last_segment_id + 1,
        lock,
        book: known.book,
        bad_footers,
    };
    Ok((Shared::new(parts, options), found))
}

fn at<R>(
    result: io::Result<R>,
    operation: &'static str,
    file: impl FnOnce() -> String,
) -> Result<R, CacheError> {
    result.map_err(|source| CacheError::Disk { operation, file: file(), source })
}

fn take_lock(disk: &dyn Disk) -> Result<LockGuard, CacheError> {
    let directory = disk.location();
    match disk.lock() {
        Ok(Some(guard)) => Ok(LockGuard(guard)),
        Ok(None) => Err(CacheError::InUse { directory }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CacheError::DirectoryMissing { directory })
        }
        Err(source) => match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Err(CacheError::NotWritable { directory, source })
            }
            _ => Err(CacheError::Disk { operation: "locking", file: directory, source }),
        },
    }
}

fn read_superblock(disk: &dyn Disk, options: &Options, book: &dyn Book) -> Result<Superblock, CacheError> {
    let directory = disk.location();
    if let Some(bytes) = at(disk.read_superblock(), "reading cache.meta", || directory.clone())? {
        let superblock = Superblock::decode(&bytes, &directory)?;
        check_start(superblock.start, book, directory)?;
        return Ok(superblock);
    }
    if let Some(slot) = at(disk.segments(), "listing", || directory.clone())?.first() {
        // A new cache has its superblock before its first segment.
        return Err(CacheError::Damaged {
            file: format!("{directory}/cache.meta"),
            offset_bytes: 0,
            what: format!("it is missing, but {} is there", disk.segment_name(*slot)),
        });
    }
    check_start(0, book, directory.clone())?;
    segment_frames(options.segment_bytes)?;
    slot_limit(options, options.segment_bytes)?;
    let cache_id = *uuid::Uuid::new_v4().as_bytes();
    let superblock = Superblock { cache_id, segment_bytes: options.segment_bytes, start: 0 };
    at(disk.replace_superblock(&superblock.encode()), "writing cache.meta", || directory)?;
    Ok(superblock)
}

/// Whether a log of start `log` and `book` are of one age.
fn check_start(log: u32, book: &dyn Book, directory: String) -> Result<(), CacheError> {
    let Some(Start { last, begun }) = book.start() else { return Ok(()) };
    if log == last || Some(log) == begun {
        return Ok(());
    }
    Err(CacheError::OtherAges { directory, log, catalog: begun.unwrap_or(last) })
}

/// Counts this start, in the book and in the log. A crash between the steps leaves a start that was begun in the book, which is
/// what an older file does not have.
fn count_start(disk: &dyn Disk, superblock: &Superblock, book: &dyn Book) -> Result<(), CacheError> {
    let Some(known) = book.start() else { return Ok(()) };
    let (last, directory) = (superblock.start, disk.location());
    let Some(start) = last.max(known.last).checked_add(1) else { return Ok(()) };
    let note = |start| at(book.set_start(start), "writing the catalog", || directory.clone());
    note(Start { last, begun: Some(start) })?;
    let counted = Superblock { start, ..*superblock }.encode();
    at(disk.replace_superblock(&counted), "writing cache.meta", || directory.clone())?;
    note(Start { last: start, begun: None })
}

fn segment_frames(segment_bytes: u64) -> Result<u32, CacheError> {
    let fits = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes);
    match u32::try_from(segment_bytes / FRAME_BYTES as u64) {
        Ok(frames) if fits && segment_bytes.is_multiple_of(FRAME_BYTES as u64) => Ok(frames),
        _ => Err(CacheError::BadOptions(format!(
            "segments of {segment_bytes} bytes: must be a multiple of {FRAME_BYTES}, from {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_MAX}"
        ))),
    }
}

/// How many slots the options allow.
fn slot_limit(options: &Options, segment_bytes: u64) -> Result<u32, CacheError> {
    // Names of segment files have eight digits.
    const LIMIT_MAX: u64 = 100_000_000;
    let shards = options.shards as u64;
    let limit_min = shards.saturating_mul(2).saturating_add(u64::from(RESERVE) + 1);
    let limit = (options.size_bytes / segment_bytes).min(LIMIT_MAX);
    if shards == 0 {
        return Err(CacheError::BadOptions("a cache needs at least one shard".into()));
    }
    match u32::try_from(limit) {
        Ok(limit) if u64::from(limit) >= limit_min => Ok(limit),
        _ => Err(CacheError::BadOptions(format!(
            "cache.size of {} bytes is too small for {shards} workers: set it to at least {} bytes, or lower workers.count",
            options.size_bytes,
            limit_min.saturating_mul(segment_bytes),
        ))),
    }
}

/// A segment that was found.
struct Found {
    slot: u32,
    key: SegmentKey,
    file: Arc<dyn SegmentFile>,
    /// None when it was not sealed.
    trailer: Option<Trailer>,
    /// Cleaning filled it.
    by_cleaner: bool,
    /// What a scan found in it; `None` when it was sealed, or holds nothing.
    scan: Option<Scan>,
}

/// What became of entries: put into an index, left out because of the marks, of no known export.
#[derive(Default)]
struct Replayed {
    entries: u64,
    evicted: u64,
    ignored: u64,
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    slots: &'a Slots,
    volumes: HashMap<ExportId, Arc<Volume>>,
    last_segment_id: u64,
    /// Headers to write again.
    fronts: Vec<(u32, SegmentHeader)>,
    found: Recovered,
}

impl Recovery<'_> {
    /// Finds out which segment `slot` holds, if any.
    fn identify(&mut self, slot: u32) -> Result<Option<Found>, CacheError> {
        let name = || self.disk.segment_name(slot);
        let file = at(self.disk.open_segment(slot, 0), "opening", name)?;
        let identity = match scan::identify(&*file, self.slots.cache_id(), self.slots.segment_frames()) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.check_short(slot, &*file)?;
                return Ok(None);
            }
            identity => at(identity, "reading", name)?,
        };
        self.slots.get(slot).set_file(Arc::clone(&file));
        let (header, trailer, bad_header) = match identity {
            Identity::Blank => return Ok(None),
            Identity::Sealed { trailer, header } => {
                let rebuilt = header.unwrap_or_else(|| self.rebuilt_header(&trailer.key));
                (rebuilt, Some(trailer), header.is_none())
            }
            Identity::Unsealed { header, bad_header } => (header, None, bad_header),
            Identity::TooNew { version } => {
                return Err(CacheError::TooNew {
                    directory: self.disk.location(),
                    found: version,
                    known: CACHE_VERSION,
                });
            }
            Identity::Damaged { frame, what } => return Err(self.damaged(slot, frame, what)),
        };
        if bad_header {
            self.found.bad_footers += 1;
            tracing::warn!(
                file = name(),
                "a segment header is damaged or half-written; its copy or the trailer serves instead"
            );
        }
        if bad_header || trailer.is_none() {
            self.fronts.push((slot, header));
        }
        // The highest id is in some header even if nothing was appended under it.
        self.last_segment_id = self.last_segment_id.max(header.segment_id);
        let by_cleaner = header.shard == CLEANER;
        Ok(Some(Found { slot, key: header.key(), file, trailer, by_cleaner, scan: None }))
    }

    /// Reads what a segment holds into the indexes.
    fn read(&mut self, found: &mut Found) -> Result<(), CacheError> {
        let slot = found.slot;
        let scan = match &found.trailer {
            Some(trailer) => self.read_sealed(slot, &*found.file, trailer)?,
            None => self.scan(found)?,
        };
        if scan.records.is_empty() {
            return Ok(());
        }
        self.found.segments += 1;
        self.found.records += scan.records.len() as u64;
        let used = self.slots.get(slot);
        used.make_crcs(self.slots.segment_frames());
        used.begin_use(found.key.segment_id, scan.tail);
        used.on(Event::Prepare);
        used.on(Event::Close);
        let replayed = self.replay(slot, &scan.records);
        self.found.entries += replayed.entries;
        self.found.evicted_entries += replayed.evicted;
        self.found.ignored_entries += replayed.ignored;
        if found.trailer.is_some() {
            used.on(Event::Seal);
        } else {
            self.found.scans += 1;
            found.scan = Some(scan);
        }
        Ok(())
    }

    fn scan(&mut self, found: &Found) -> Result<Scan, CacheError> {
        let name = || self.disk.segment_name(found.slot);
        let scanned = scan::scan(&*found.file, &found.key, self.slots.segment_frames());
        match at(scanned, "scanning", name)? {
            Ok(scan) if scan.torn => {
                self.found.torn_tails += 1;
                tracing::info!(
                    file = name(),
                    offset_bytes = offset(scan.tail),
                    "dropped an unfinished record"
                );
                Ok(scan)
            }
            Ok(scan) => Ok(scan),
            Err(frame) => Err(self.damaged(found.slot, frame, "record header")),
        }
    }

    /// When no slot is free, gives up what an interrupted cleaning moved last, and goes back to the originals.
    ///
    /// Cleaning takes the last free slot only to empty another one into it. Until that one is free again all its data is
    /// still there, so the copies can be forgotten; otherwise cleaning could never go on.
    fn make_room_to_clean(&mut self, segments: &[Found]) -> Result<(), CacheError> {
        let Some(last) = segments.iter().rfind(|found| found.by_cleaner && found.trailer.is_none()) else {
            return Ok(());
        };
        let is_needed = |(_, slot): (u32, &Slot)| slot.state() != State::Free && slot.extents() > 0;
        if !self.slots.iter().all(is_needed) {
            return Ok(());
        }
        let counted = self.found;
        for found in segments.iter().filter(|found| found.slot != last.slot) {
            match (&found.trailer, &found.scan) {
                (_, Some(scan)) => self.replay(found.slot, &scan.records),
                (Some(trailer), None) => {
                    let scan = self.read_sealed(found.slot, &*found.file, trailer)?;
                    self.replay(found.slot, &scan.records)
                }
                (None, None) => continue,
            };
        }
        self.found = counted;
        Ok(())
    }

    /// A file that is shorter than a segment: one whose making was cut short, or a damaged one.
    fn check_short(&self, slot: u32, file: &dyn SegmentFile) -> Result<(), CacheError> {
        let blank = match scan::read_frame(file, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
            frame => at(frame, "reading", || self.disk.segment_name(slot))?.iter().all(|byte| *byte == 0),
        };
        if blank { Ok(()) } else { Err(self.damaged(slot, 0, "the file is shorter than a segment")) }
    }

    /// The records of a sealed segment: from its footer, or by a walk that must arrive at the footer.
    fn read_sealed(
        &mut self,
        slot: u32,
        file: &dyn SegmentFile,
        trailer: &Trailer,
    ) -> Result<Scan, CacheError> {
        let name = || self.disk.segment_name(slot);
        match at(scan::read_footer(file, trailer), "reading the footer", name)? {
            Ok(records) => {
                self.found.footers += 1;
                Ok(Scan { records, tail: trailer.footer_frame, stable: trailer.footer_frame, torn: false })
            }
            Err(error) => {
                self.found.bad_footers += 1;
                tracing::error!(
                    file = name(),
                    error = &error as &dyn std::error::Error,
                    "a footer is damaged; scanning the segment instead"
                );
                let scanned = at(scan::walk(file, &trailer.key, trailer.footer_frame), "scanning", name)?;
                if scanned.tail == trailer.footer_frame {
                    self.found.scans += 1;
                    Ok(scanned)
                } else {
                    Err(self.damaged(slot, scanned.tail, "record header, and the footer"))
                }
            }
        }
    }

    fn damaged(&self, slot: u32, frame: u32, what: &str) -> CacheError {
        CacheError::Damaged {
            file: self.disk.segment_name(slot),
            offset_bytes: offset(frame),
            what: what.into(),
        }
    }

    /// Puts records into the indexes and their checksums into the slot.
    fn replay(&self, slot: u32, records: &[FooterRecord]) -> Replayed {
        let mut replayed = Replayed::default();
        for record in records {
            self.slots.get(slot).set_crcs(record.position_frames + 1, &record.crcs);
            for entry in &record.entries {
                let Some(volume) = self.volumes.get(&entry.export) else {
                    replayed.ignored += 1;
                    continue;
                };
                if volume.recovered(self.slots, extent(entry, slot, record.position_frames)) {
                    replayed.entries += 1;
                } else {
                    replayed.evicted += 1;
                }
            }
        }
        replayed
    }

    /// The header that a sealed segment should have.
    fn rebuilt_header(&self, key: &SegmentKey) -> SegmentHeader {
        SegmentHeader {
            cache_id: key.cache_id,
            segment_id: key.segment_id,
            // Who wrote it is not known any more, and nobody needs to.
            shard: 0,
            segment_bytes: self.slots.segment_bytes(),
        }
    }

    /// Makes the headers stable of segments that did not get far enough to prove that they are.
    fn rewrite_fronts(&self) -> Result<(), CacheError> {
        for (slot, header) in &self.fronts {
            let Some(file) = self.slots.get(*slot).file() else { continue };
            let written = seal::rewrite_front(&**file, header).and_then(|()| file.sync());
            at(written, "rewriting the header", || self.disk.segment_name(*slot))?;
        }
        Ok(())
    }

    /// Makes a segment that was scanned stable and closes it for ever.
    fn seal(&mut self, found: Found) -> Result<(), CacheError> {
        let Found { slot, key, file, scan: Some(scan), .. } = found else { return Ok(()) };
        let name = || self.disk.segment_name(slot);
        at(scan::rewrite(&*file, scan.stable, scan.tail), "rewriting", name)?;
        let mut footer = FooterBuilder::new();
        for record in &scan.records {
            footer.add_record(record.position_frames, &record.entries, &record.crcs);
        }
        let segment = Segment::resume(slot, key, file, scan.tail, footer);
        let trailer = at(seal::write_footer(&segment), "writing the footer", name)?;
        at(segment.file.sync(), "syncing", name)?;
        at(
            seal::write_trailer(&segment, &trailer, self.slots.segment_frames()),
            "writing the trailer",
            name,
        )?;
        self.slots.get(slot).on(Event::Seal);
        Ok(())
    }

    /// Removes segment files that the cache's size has no room for, unless they hold data.
    fn drop_slots_beyond(&self, limit: u32, present: &[u32]) -> Result<(), CacheError> {
        let needed = |number: u32| self.slots.get(number).extents() > 0;
        let beyond: Vec<u32> = present.iter().copied().filter(|slot| *slot >= limit).collect();
        let first = beyond.iter().copied().find(|slot| needed(*slot));
        let last = beyond.iter().copied().rfind(|slot| needed(*slot));
        if let (Some(first), Some(last)) = (first, last) {
            return Err(CacheError::CannotShrink {
                slots: limit,
                file: self.disk.segment_name(first),
                size_bytes_min: (u64::from(last) + 1) * self.slots.segment_bytes(),
            });
        }
        for slot in beyond {
            at(self.disk.remove_segment(slot), "removing", || self.disk.segment_name(slot))?;
        }
        Ok(())
    }
}

fn warn_if_disk_is_small(disk: &dyn Disk, limit: u32, present: &[u32], segment_bytes: u64) {
    let missing = u64::from(limit).saturating_sub(present.len() as u64).saturating_mul(segment_bytes);
    match disk.free_bytes() {
        Ok(free_bytes) if free_bytes < missing => tracing::warn!(
            directory = disk.location(),
            free_bytes,
            missing_bytes = missing,
            "the file system has less space than cache.size asks for; the cache will be full before it reaches its size"
        ),
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot tell how much space is free");
        }
    }
}
