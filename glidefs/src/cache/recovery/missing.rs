//! Segments that the checkpoint lists and the log lacks, and which of these the checkpoint proves lost: the file is gone, or nothing in
//! the file says any more which segment was there.
//!
//! Does not own the checkpoint (`checkpoint`), or the stability of the entries about a loss (`note`). Invariants: a segment counts as lost
//! only if the checkpoint lists the segment, two readings of the log did not find the segment, and nothing could have put the file out of
//! use since; where segments are gone, and nothing tells a loss from an older copy of the log, the start is refused; the checkpoint stays
//! until the entries about lost segments are stable, as nothing else tells of the loss; a refused start has written nothing.
//!
//! A segment leaves its file in two ways only. A later segment takes the number: then the file has a header of a higher id, as two
//! headers are never lost at once (`log/seal`). Or the keeper puts a failing file out of use, and takes the checkpoint away before.
//! Ids ascend, so an older copy of the log has no segment later than one which is missing there. A file that is there and cannot be read
//! is damage like any other: the walk of the file finds holes.
//!
//! **The rule.** Either the segment listed is proved to be the one lost: then what the checkpoint lists there, and the rest of the log does
//! not have, is lost, as damage, and nothing else suffers. Or nobody knows what was in the file, and all exports are in doubt.
//!
//! The proof is a part of the listed content, of a covered segment, that is found nowhere else. For a number is used again only when each
//! listed extent is replaced or copied by something stable, or is barred in the catalog, or is of an export which is not in the catalog any
//! more, or is being deleted; and all this is so at the start as well, unless another loss has cost it, or the log went round and what
//! replaced the content was replaced by content in the lost file. Both leave a gap in the ids of the segments since: so a loss proves itself
//! only where all later segments are there. Content that the store has proves as well as any, and is no loss: the exports forget what the
//! store has, as the log may have older content, and the catalog bars this last of all, because what is barred proves nothing.
//!
//! **What nobody notices.** The loss of a file that the checkpoint does not list, and of the newest segment with records if that had none
//! when the checkpoint was made.
//!
//! **Two lanes.** Ids ascend in the order in which segments are prepared, over all shards and both lanes. The order of the records is another
//! one, as a shard fills a segment of each lane at a time. So a segment prepared passes for unused only if no segment of a higher id, of
//! any shard and lane, has a record.
//!
//! **Too much doubt.** All exports are in doubt, which is never wrong and costs more than was lost, where
//!
//! - a start died when the catalog had barred all that the checkpoint lists in a lost segment, and the checkpoint was still there: the other
//!   order would let a death between the steps bring older content back;
//! - an id since is in no file: a number was used twice, or the disk did not take a header or a note;
//! - the content is too much to be kept, and none of a segment's samples is missed;
//! - a segment of one lane never had a record, and a later one of the other lane has some.
//!
//! **No room.** A note goes neither to the file of a lost segment nor to the last segment which cleaning needs. So a full cache may have no
//! room for a note, or only a file with half of one: each start is refused then, until there is a larger `cache.size`, or no checkpoint. The
//! error says so. A segment that nobody needs does not count as free: what replaced the content may not be stable yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::layout::at;
use super::losses::evidence_of;
use super::segments::{Found, Recovery};
use crate::cache::catalog::CacheCatalog;
use crate::cache::log::error::CacheError;
use crate::cache::log::format::{Entry, EntryKind, Kept, KeptExtent};
use crate::cache::log::life::State;
use crate::cache::volume::Volume;
use crate::cache::volume::appends::SEQS_IN_A_SEGMENT;
use crate::units::{ExportId, SectorRange, Seq};

/// Entries without data in a frame.
const ENTRIES_IN_A_FRAME: u32 = 144;
/// Most files named in an error.
const NAMES_MAX: usize = 3;
/// Most extents not in the store of missing segments that a start keeps in memory. In tests two segments have fewer, and three more.
const EXTENTS_MAX: usize = if cfg!(test) { 70 } else { 1 << 20 };
/// Most samples of a segment.
const SAMPLES_MAX: usize = 256;

/// How the checkpoint lists a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// With the extents that were the newest content.
    Covered,
    /// With records, which were stable when the checkpoint was complete.
    Filled,
    /// Without a stable record. Records may have come since.
    Prepared,
}

/// A segment that the checkpoint lists and the log lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingSegment {
    /// The file, as a segment number.
    pub number: u32,
    pub segment_id: u64,
    pub listed: Listed,
}

/// The segments that the checkpoint lists and the log lacks.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub segments: Vec<MissingSegment>,
    pub content: LostContent,
    /// The highest id of a segment listed.
    pub last_listed: u64,
    /// The files held the segments listed, and no later ones, when they were lost: the checkpoint tells all that is lost.
    pub is_known: bool,
    /// Entries about these segments have to be stable before the checkpoint is removed.
    pub needs_note: bool,
    /// What the catalog has to bar before the checkpoint is removed.
    pub marks: Vec<(ExportId, Seq)>,
}

impl Missing {
    /// Whether no segment is missing.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether the segment of file `number` is missing.
    pub fn has(&self, number: u32) -> bool {
        self.segments.iter().any(|missing| missing.number == number)
    }
}

/// The extents in missing segments, by segment number, of known exports, and not older than what the catalog bars.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LostContent {
    /// Extents not in the store, in the order of the checkpoint: [`EXTENTS_MAX`] at most.
    pub extents: Vec<(ExportId, KeptExtent)>,
    /// Some extents were left out.
    pub is_cut_short: bool,
    /// The last sequence number given out of each export with an extent not in the store.
    pub exports: BTreeMap<ExportId, Seq>,
    /// The exports with extents in the store.
    pub stored: BTreeSet<(u32, ExportId)>,
    /// Some extents of each segment, in the store or not: [`SAMPLES_MAX`] at most.
    pub samples: BTreeMap<u32, Vec<(ExportId, KeptExtent)>>,
}

impl LostContent {
    /// Adds `extents` of `volume`, whose last sequence number given out was `last`.
    pub fn add(&mut self, volume: &Volume, last: Seq, extents: Vec<KeptExtent>) {
        let (export, marks) = (volume.id(), volume.marks());
        for extent in extents.into_iter().filter(|extent| extent.seq > marks.evicted) {
            let samples = self.samples.entry(extent.number).or_default();
            if samples.len() < SAMPLES_MAX {
                samples.push((export, extent));
            }
            if extent.seq <= marks.stored {
                self.stored.insert((extent.number, export));
                continue;
            }
            let known = self.exports.entry(export).or_default();
            *known = last.max(*known);
            if self.extents.len() < EXTENTS_MAX {
                self.extents.push((export, extent));
            } else {
                self.is_cut_short = true;
            }
        }
    }
}

/// The id of the segment in each file, by segment number, as the file itself says.
pub(super) struct Ids(pub Vec<u64>);

impl Ids {
    /// Whether file `number` has segment `segment_id`, or a later one.
    pub fn has(&self, number: u32, segment_id: u64) -> bool {
        self.0.get(number as usize).is_some_and(|id| *id >= segment_id)
    }
}

impl Recovery<'_> {
    /// The ids of `segments`. A file with a made-up id may turn out to hold anything, or nothing.
    pub fn ids(&self, segments: &[Found]) -> Ids {
        let made_up: HashSet<u32> = self.made_up.iter().map(|(number, _)| *number).collect();
        let mut ids = vec![0; self.table.len()];
        for found in segments.iter().filter(|found| !made_up.contains(&found.number)) {
            if let Some(id) = ids.get_mut(found.number as usize) {
                *id = found.key.segment_id;
            }
        }
        Ids(ids)
    }

    /// Keeps those of the missing segments that are lost, and reports them: not those which this reading has found. `segments` are all
    /// segments of the log, read. Fails where the log may be an older copy.
    pub fn judge_missing(&mut self, segments: &[Found]) -> Result<(), CacheError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let ids = self.ids(segments);
        // Somebody may have given the file another name.
        let anywhere: HashSet<u64> = ids.0.iter().copied().collect();
        let newest = anywhere.iter().max().copied().unwrap_or(0);
        let has_writes = |number: u32| {
            let is_used = !matches!(self.table.get(number).state(), State::Free | State::Quarantined);
            is_used && !self.notes.contains(&number)
        };
        let filled = (0..).zip(&ids.0).filter(|(number, _)| has_writes(*number)).map(|(_, id)| *id);
        let newest_filled = filled.max().unwrap_or(0);
        // All exports are in doubt because of such a hole.
        let of_anyone = |found: &&Found| {
            found.walk.as_ref().is_some_and(|walk| walk.holes.iter().any(|hole| hole.of_anyone))
        };
        let doubted: HashSet<u32> = segments.iter().filter(of_anyone).map(|found| found.number).collect();
        let made_up: HashSet<u32> = self.made_up.iter().map(|(number, _)| *number).collect();
        self.missing.segments.retain(|missing| {
            let is_there = anywhere.contains(&missing.segment_id)
                || ids.has(missing.number, missing.segment_id)
                || made_up.contains(&missing.number) && doubted.contains(&missing.number);
            // Nothing says that the segment ever had a record.
            let is_unused = missing.listed == Listed::Prepared && missing.segment_id > newest_filled;
            if is_unused && !is_there {
                tracing::warn!(
                    file = self.disk.segment_name(missing.number),
                    segment_id = missing.segment_id,
                    "a segment is gone that had no records when the checkpoint of the index was written, and no later segment has any: if \
                     writes went there since, reads return older content in their place"
                );
            }
            !is_there && !is_unused
        });
        // One segment which an older copy would have proves that the log is none, for all of them.
        if !self.missing.is_empty() && self.missing.segments.iter().all(|missing| missing.segment_id > newest)
        {
            return Err(self.all_newer_are_missing());
        }
        self.missing.is_known = self.knows_what_is_lost(&anywhere);
        for missing in &self.missing.segments {
            self.found.holes += 1;
            tracing::error!(
                file = self.disk.segment_name(missing.number),
                segment_id = missing.segment_id,
                is_content_known = self.missing.is_known,
                "a segment is gone that was there when the checkpoint of the index was written"
            );
        }
        Ok(())
    }

    /// Whether each lost segment is proved to be the segment listed, and not a later one with the same number. `anywhere` are the ids of
    /// all segments there are.
    fn knows_what_is_lost(&self, anywhere: &HashSet<u64>) -> bool {
        let content = &self.missing.content;
        // Had the number been used again, then nothing would be missed.
        let is_missed = |(export, extent): &&(ExportId, KeptExtent)| {
            self.volumes.get(export).is_some_and(|volume| {
                let is_note = |number| self.notes.contains(&number);
                !volume.missed_parts(extent.range, extent.seq, is_note).is_empty()
            })
        };
        let of_extents = content.extents.iter().filter(is_missed).map(|(_, extent)| extent.number);
        let mut proved: HashSet<u32> = of_extents.collect();
        proved.extend(content.samples.iter().filter_map(|(number, samples)| {
            samples.iter().any(|sample| is_missed(&sample)).then_some(*number)
        }));
        let is_proved =
            |missing: &MissingSegment| missing.listed == Listed::Covered && proved.contains(&missing.number);
        // What had replaced the content may be gone: with another lost segment, or as that number was used again as well. Not if all
        // segments since are there.
        let later = anywhere.iter().filter(|id| **id > self.missing.last_listed);
        let last = later.clone().max().copied().unwrap_or(self.missing.last_listed);
        let has_all_later = last.saturating_sub(self.missing.last_listed) == later.count() as u64;
        self.missing.segments.iter().all(is_proved) && has_all_later
    }

    /// The entries about the lost segments, beside `others` about other losses: for each part of lost content, or, where nobody knows the
    /// content, entries of doubt.
    pub fn entries_of_missing(&self, others: &[Entry]) -> Vec<Entry> {
        if !self.missing.is_known {
            let mut highest: HashMap<ExportId, Seq> = HashMap::new();
            for entry in others {
                let seq = highest.entry(entry.export).or_default();
                *seq = entry.seq.max(*seq);
            }
            let seqs = SEQS_IN_A_SEGMENT.saturating_mul(self.missing.segments.len() as u64);
            return self.doubts_of_missing(|export, volume| {
                // Of many entries the one of the highest number is written, and the next start must know this one.
                let last = highest.get(&export).copied().unwrap_or_default().max(volume.figures().last_seq);
                Some(Seq(last.0.saturating_add(seqs)))
            });
        }
        self.lost_content().unwrap_or_else(|| {
            // Nothing in a covered segment has a higher number.
            self.doubts_of_missing(|export, volume| {
                let last = self.missing.content.exports.get(&export).copied();
                last.filter(|last| *last > volume.doubted_to())
            })
        })
    }

    /// Entries for the lost content: damage, or zeroes, which need no segment. `None` where there are more entries than a note may have.
    fn lost_content(&self) -> Option<Vec<Entry>> {
        let content = &self.missing.content;
        let lost: HashSet<u32> = self.missing.segments.iter().map(|missing| missing.number).collect();
        let most = (self.table.segment_frames() / 4).saturating_mul(ENTRIES_IN_A_FRAME) as usize;
        let mut entries = Vec::new();
        if content.is_cut_short {
            return None;
        }
        for (export, extent) in content.extents.iter().filter(|(_, extent)| lost.contains(&extent.number)) {
            let Some(volume) = self.volumes.get(export) else { continue };
            let kind = match extent.content {
                Kept::Zero => EntryKind::Zero,
                Kept::Data(_) | Kept::Damaged => EntryKind::Damaged,
            };
            let parts = volume.missed_parts(extent.range, extent.seq, |_| false);
            entries.extend(parts.into_iter().map(|range| Entry {
                export: *export,
                seq: extent.seq,
                range,
                kind,
            }));
            if entries.len() > most {
                return None;
            }
        }
        Some(entries)
    }

    /// Entries of doubt about the lost segments, for each export for which `seq` gives a number.
    fn doubts_of_missing(&self, seq: impl Fn(ExportId, &Volume) -> Option<Seq>) -> Vec<Entry> {
        let Some(range) = self.evidence_of_missing() else { return Vec::new() };
        // The last start may have ended before the checkpoint was gone.
        let new = self.volumes.iter().filter(|(_, volume)| !volume.has_doubt_of(range));
        let entries = new.filter_map(|(export, volume)| {
            Some(Entry { export: *export, seq: seq(*export, volume)?, range, kind: EntryKind::Doubt })
        });
        entries.collect()
    }

    /// Stands for the loss of all lost segments together; `None` without one.
    fn evidence_of_missing(&self) -> Option<SectorRange> {
        let mut ids: Vec<u64> = self.missing.segments.iter().map(|missing| missing.segment_id).collect();
        ids.sort_unstable();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        evidence_of(*ids.last()?, &bytes)
    }

    /// Has the volumes forget all content that the store has, of exports with such content in a lost segment: older content of the same
    /// sectors may be in the log.
    pub fn forget_stored_of_missing(&mut self) {
        let lost: HashSet<u32> = self.missing.segments.iter().map(|missing| missing.number).collect();
        let stored = self.missing.content.stored.iter();
        let exports: BTreeSet<ExportId> =
            stored.filter(|(number, _)| lost.contains(number)).map(|(_, export)| *export).collect();
        let volumes = exports.iter().filter_map(|export| self.volumes.get(export));
        let marks = volumes.map(|volume| (volume.id(), volume.forget_clean(self.table))).collect();
        self.missing.marks = marks;
    }

    /// Bars the content that [`Self::forget_stored_of_missing`] had forgotten from later starts. What is barred proves nothing any more:
    /// this is the last step before the checkpoint is removed.
    pub fn bar_stored_of_missing(&mut self, catalog: &dyn CacheCatalog) -> Result<(), CacheError> {
        let marks = std::mem::take(&mut self.missing.marks);
        if marks.is_empty() {
            return Ok(());
        }
        at(catalog.evicted(&marks), "noting in the catalog which entries are left out", || {
            self.disk.location()
        })
    }

    /// Fails if entries about lost segments have to be stable, and no segment is free for these. Nothing was written then.
    pub fn require_place_for_missing(&self) -> Result<(), CacheError> {
        let has_place = || self.can_spare_a_segment() && !self.places_for_a_note().is_empty();
        if !self.missing.needs_note || has_place() { Ok(()) } else { Err(self.no_place_for_missing()) }
    }

    /// Names of some files of missing segments.
    fn missing_files(&self) -> String {
        let segments = &self.missing.segments;
        let names = segments.iter().take(NAMES_MAX).map(|missing| self.disk.segment_name(missing.number));
        let more = if segments.len() > NAMES_MAX { ", …" } else { "" };
        format!("{}{more}", names.collect::<Vec<_>>().join(", "))
    }

    /// The error of a start without a place for entries about lost segments. Without a file, a lost segment cannot stand for the
    /// entries, and the next start needs the checkpoint.
    pub fn no_place_for_missing(&self) -> CacheError {
        let segments = u64::from(self.table.limit()).saturating_add(4);
        CacheError::BadOptions(format!(
            "segments are lost ({}), and no other file takes the note of the exports which have lost data (files of segments that nobody \
             needs any more are not free before a start has ended): put the files back; or see whether the disk has errors (dmesg) or is full, \
             and set cache.size to at least {} bytes for more files; or put the whole cache \
             directory back from one copy. To go on without the note, remove index.ckpt: reads may then return older content in the place \
             of lost data",
            self.missing_files(),
            segments.saturating_mul(self.table.segment_bytes()),
        ))
    }

    /// The error of a start where the newest segments are gone, or the log is an older copy.
    fn all_newer_are_missing(&self) -> CacheError {
        CacheError::BadOptions(format!(
            "{} segments are gone which index.ckpt lists ({}), and the log has nothing newer: put the files back, or the whole cache directory \
             from one copy. If {} is an older copy on purpose, or to go on with what is there, remove index.ckpt: reads may then return \
             older content in the place of lost data; nothing was changed",
            self.missing.segments.len(),
            self.missing_files(),
            self.disk.location(),
        ))
    }
}
