//! Opening a cache: the log on the disk becomes the indexes, and no stable record is lost without an error for the readers of its
//! sectors.
//!
//! Owns the order of the steps: segment files are read and checked ahead, on several threads, and one thread takes the findings, in
//! the order of the segments. Does not own the formats, or the use of segments after the start. Invariants: a failed open
//! changed nothing stable; after an open without failure every segment with records, dropped records included, is sealed and
//! stable, or given up to the keeper, so no record dropped by this recovery can come back; damage to a segment costs the data in
//! the damaged place. Damage keeps the cache from opening if no segment file can be read, a file with data is shorter than a segment, the
//! disk does not take the closing of a segment, whose dropped record could come back, or no file takes the note of lost segments.

mod ages;
mod checkpoint;
mod closing;
mod identify;
mod layout;
mod losses;
mod missing;
mod note;
mod patience;
mod reading;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use self::ages::{check_exports, check_start, count_start};
pub(super) use self::layout::read_superblock;
use self::layout::{at, segment_frames, segment_limit, segments_in};
use self::missing::Missing;
use self::patience::Patience;
use self::segments::{Found, Recovery};
use super::volume::Volume;
use crate::cache::catalog::CacheCatalog;
use crate::cache::hands::in_order;
use crate::cache::log::disk::{Clock, Disk, Lock};
use crate::cache::log::error::CacheError;
use crate::cache::log::format::SegmentHeader;
use crate::cache::log::superblock::{Superblock, VERSION_SOUND};
use crate::cache::log::table::SegmentTable;
use crate::cache::options::{Known, Options, Recovered};
use crate::cache::shared::{Parts, Shared};
use crate::cache::volume::layers::SeqMarks;
use crate::cache::volume::ranks::Ranks;
use crate::locks::holder;
use crate::units::ExportId;

/// Most times one start reads the cache: a failed sync may cost frames already read, and then the start reads again.
const TRIES_MAX: u32 = 4;

/// The end of a try to read the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// A sync failed and the page cache dropped frames already read, of a segment not known to be stable; or a file can be read
    /// again. The indexes are worth nothing.
    ReadAgain,
    /// The checkpoint was used, and is damaged, or the log tells of losses: the indexes are worth nothing, and nothing was written.
    ReadWithoutCheckpoint,
}

/// Opens the cache on `disk`. See [`super::Cache::open`].
pub(super) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    options: &Options,
    known: Known,
) -> Result<(Shared, Recovered), CacheError> {
    let started = clock.now();
    let lock = take_lock(&*disk)?;
    let mut superblock = begin_superblock(&*disk, options, &*known.catalog)?;
    let frames = segment_frames(superblock.segment_bytes)?;
    let limit = segment_limit(options, superblock.segment_bytes)?;
    let mut exports = known.exports;
    let (mut patience, mut doubted) = (Patience::new(&*clock), 0);
    let (mut tries_left, mut tries_checkpoint, mut refused) = (TRIES_MAX, true, 0);
    let mut missing = Missing::default();
    while tries_left > 0 {
        let (present, count) = segments_in(&*disk, limit)?;
        disk.expect_segments(present.len());
        let table = SegmentTable::new(count, limit, superblock.cache_id, frames);
        let volume = |(id, marks): &(ExportId, SeqMarks)| (*id, Arc::new(Volume::at(*id, *marks)));
        let mut recovery = Recovery {
            disk: &*disk,
            patience: &patience,
            table: &table,
            volumes: exports.iter().map(volume).collect(),
            last_segment_id: missing.last_listed,
            announces: false,
            fronts: Vec::new(),
            made_up: Vec::new(),
            noted: HashMap::new(),
            given_up: Vec::new(),
            of_blank_files: 0,
            notes: HashSet::new(),
            is_last_try: tries_left == 1,
            ranks: Ranks::default(),
            tries_checkpoint,
            hands: options.hands,
            last_export: None,
            next_export: known.next_export,
            missing: std::mem::take(&mut missing),
            found: Recovered::default(),
        };
        let outcome = recovery.run(&present, &mut superblock, &*known.catalog)?;
        refused += recovery.found.checkpoints_refused;
        missing = std::mem::take(&mut recovery.missing);
        if outcome == Outcome::ReadWithoutCheckpoint {
            // Nothing was written.
            tries_checkpoint = false;
            drop(recovery);
            // All of the log is read once more, and the judgement of losses depends on the reads.
            patience = Patience::new(&*clock);
            continue;
        }
        tries_left -= 1;
        let next_segment_id = recovery.new_segment_id()?;
        let Recovery { mut volumes, noted, mut given_up, mut found, .. } = recovery;
        given_up.retain(|segment| segment.number < limit);
        doubted += found.doubted;
        if outcome == Outcome::ReadAgain {
            tries_checkpoint = false;
            tracing::warn!(
                "a sync failed, or a file can be read again, and the disk has other data than was read before: reading the cache again"
            );
            for (id, marks) in &mut exports {
                marks.evicted = noted.get(id).copied().unwrap_or_default().max(marks.evicted);
            }
            continue;
        }
        count_start(&*disk, &mut superblock, &*known.catalog)?;
        // A volume with nothing but the marks is made again when somebody asks for the volume.
        for (id, marks) in &exports {
            if volumes.get(id).is_some_and(|volume| volume.is_blank_at(marks.stored)) {
                volumes.remove(id);
            }
        }
        volumes.shrink_to_fit();
        warn_if_disk_is_small(&*disk, limit, &present, superblock.segment_bytes);
        found.doubted = doubted;
        found.checkpoints_refused = refused;
        found.seconds = clock.now().saturating_sub(started).as_secs_f64();
        let catalog = known.catalog;
        let parts = Parts {
            disk,
            superblock,
            clock,
            table,
            volumes,
            next_segment_id,
            lock,
            catalog,
            given_up,
            recovered: found,
        };
        return Ok((Shared::new(parts, options), found));
    }
    // Not reached: on the last try `run` never returns `ReadAgain`.
    let source = io::Error::other("segments went on changing after they were read");
    Err(CacheError::Disk { operation: "reading", file: disk.location(), source })
}

impl Recovery<'_> {
    /// Reads the segment files with the numbers `present` into the indexes and closes the segments.
    fn run(
        &mut self,
        present: &[u32],
        superblock: &mut Superblock,
        catalog: &dyn CacheCatalog,
    ) -> Result<Outcome, CacheError> {
        let checkpoint = match self.begin_checkpoint(superblock) {
            Ok(checkpoint) => checkpoint,
            Err(outcome) => return Ok(outcome),
        };
        // All files are read before any file is written: when damage refuses the start, the cache stays as it was. When `run`
        // returns `ReadAgain`, headers, entries of doubt and the catalog's marks may have been written: the next try finds the first
        // two in the log, and is told the marks.
        let mut segments = self.identify_all(present)?;
        self.name_the_nameless(&mut segments)?;
        self.rank(&mut segments);
        let used = checkpoint.map(|checkpoint| self.load_checkpoint(checkpoint, &mut segments)).transpose();
        let used = match used {
            Ok(used) => used,
            Err(outcome) => return Ok(outcome),
        };
        self.read_all(&mut segments)?;
        if used.is_some_and(|used| !self.bears_out(used, &segments)) {
            return Ok(Outcome::ReadWithoutCheckpoint);
        }
        if self.has_a_file_come_back()? {
            return Ok(Outcome::ReadAgain);
        }
        check_exports(self.last_export, self.next_export, self.disk.location())?;
        self.judge_missing(&segments)?;
        // From here on the start writes: no later start may take the checkpoint for one of the log. Where the checkpoint proves losses, a
        // later start takes no more than this from the checkpoint, until the log tells of the losses.
        if self.missing.is_empty() {
            self.remove_checkpoint()?;
        }
        self.refuse_a_disk_that_reads_nothing(present)?;
        self.make_room_to_clean(&segments);
        let mut losses = self.doubts(&segments);
        let missed = self.entries_of_missing(&losses);
        self.missing.needs_note = !missed.is_empty();
        self.require_place_for_missing()?;
        losses.extend(missed);
        if !self.rewrite_fronts(&segments) {
            return Ok(Outcome::ReadAgain);
        }
        self.forget_stored_of_missing();
        self.write_down(losses, &mut segments, superblock, catalog)?;
        self.forget_old_doubts(&segments);
        // A header with a made-up id hides which segment the file was, so such headers are written only now, when the log says
        // which exports may have lost records in the file. A file in which no record was found is free, and may have the entries
        // of doubt by now: its header stays.
        let is_used = |(number, header): &(u32, SegmentHeader)| {
            self.table.get(*number).segment_id() == header.segment_id
        };
        self.fronts = std::mem::take(&mut self.made_up).into_iter().filter(is_used).collect();
        if !self.rewrite_fronts(&segments) {
            return Ok(Outcome::ReadAgain);
        }
        // Once a damaged segment is closed, only the entry of doubt tells of the loss there: segments with entries of doubt are
        // closed first.
        let (doubting, others): (Vec<&Found>, Vec<&Found>) =
            segments.iter().partition(|found| found.says_doubt());
        for found in doubting.into_iter().chain(others) {
            if !self.seal(found)? {
                return Ok(Outcome::ReadAgain);
            }
        }
        // All entries of doubt are in closed segments now, those that a start which came to a bad end left behind included.
        if !self.missing.is_empty() {
            self.bar_stored_of_missing(catalog)?;
            self.remove_checkpoint()?;
        }
        self.remove_segments_beyond(present)?;
        Ok(Outcome::Done)
    }

    /// Brings `segments` into the order of a replay, and gives them ranks.
    ///
    /// Of two copies of one write the index refers to the copy of the highest rank. Copies made by cleaning come last, the newest at the
    /// end, so the segment emptied by cleaning is free.
    fn rank(&mut self, segments: &mut [Found]) {
        segments.sort_unstable_by_key(|found| (found.by_cleaner(), found.key.segment_id));
        self.ranks = Ranks::ascending(segments.iter().map(|found| found.number));
    }

    fn remove_checkpoint(&self) -> Result<(), CacheError> {
        at(self.disk.remove_checkpoint(), "removing index.ckpt", || self.disk.location())
    }

    /// Finds the segments in the files with the numbers `present`.
    fn identify_all(&mut self, present: &[u32]) -> Result<Vec<Found>, CacheError> {
        let reader = self.reader();
        let mut segments = Vec::new();
        let ask = |number: &u32| (*number, reader.ask(*number));
        in_order(self.hands, present.iter(), ask, |(number, answer)| {
            let file = || self.disk.segment_name(number);
            let failed = |(operation, source)| CacheError::Disk { operation, file: file(), source };
            let (file, answer) = answer.map_err(failed)?;
            segments.extend(self.identify(number, file, answer)?);
            Ok::<_, CacheError>(())
        })?;
        Ok(segments)
    }

    /// Reads the records of those of `segments` that no checkpoint covers into the indexes.
    fn read_all(&mut self, segments: &mut [Found]) -> Result<(), CacheError> {
        let reader = self.reader();
        let unread = segments.iter_mut().filter(|found| !found.is_covered);
        in_order(
            self.hands,
            unread,
            |found| {
                let span = found.span(reader.frames);
                let contents = reader.read(&*found.file, &found.key, found.trailer.as_ref(), span);
                (found, contents)
            },
            |(found, contents)| self.take_in(found, contents),
        )
    }
}

pub(super) fn take_lock(disk: &dyn Disk) -> Result<Box<dyn Lock>, CacheError> {
    let directory = disk.location();
    match disk.lock() {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => {
            let holder = holder(&Path::new(&directory).join("LOCK"));
            Err(CacheError::InUse { directory, holder })
        }
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

/// The superblock of the cache on `disk`; a new one, written, in a new cache.
fn begin_superblock(
    disk: &dyn Disk,
    options: &Options,
    catalog: &dyn CacheCatalog,
) -> Result<Superblock, CacheError> {
    let directory = disk.location();
    if let Some(superblock) = read_superblock(disk)? {
        check_start(superblock.start, catalog, directory)?;
        return Ok(superblock);
    }
    if let Some(number) = at(disk.segments(), "listing", || directory.clone())?.first() {
        // A new cache gets its superblock before its first segment.
        return Err(CacheError::Damaged {
            file: format!("{directory}/cache.meta"),
            offset_bytes: 0,
            what: format!("it is missing, but {} is there", disk.segment_name(*number)),
        });
    }
    check_start(0, catalog, directory.clone())?;
    segment_frames(options.segment_bytes)?;
    segment_limit(options, options.segment_bytes)?;
    let superblock = Superblock {
        version: VERSION_SOUND,
        cache_id: *uuid::Uuid::new_v4().as_bytes(),
        segment_bytes: options.segment_bytes,
        start: 0,
    };
    at(disk.replace_superblock(&superblock.encode()), "writing cache.meta", || directory)?;
    Ok(superblock)
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
