//! What to do about records that cannot be found: which exports may have had data in them, and saying so in the log.
//!
//! Does not own finding the holes (`walk`). Invariants: an export that may have lost a record answers no read with what may be
//! older than that record; which exports those are is stable in the log before the cache takes a write.

use std::collections::HashMap;
use std::sync::Arc;

use super::at;
use super::segments::{Found, Recovery};
use crate::cache::error::CacheError;
use crate::cache::flush::Book;
use crate::cache::format::{Entry, EntryKind, FooterRecord, SegmentHeader};
use crate::cache::keeper::CLEANER;
use crate::cache::pressure::RESERVE;
use crate::cache::seal;
use crate::cache::segment::{Batch, Segment, extent};
use crate::cache::slots::{Event, State};
use crate::cache::superblock::{Superblock, VERSION_DAMAGED};
use crate::cache::walk::Hole;
use crate::units::{ExportId, SectorRange, Seq};

/// More sequence numbers of an export than the records of one segment hold.
const SEQS_IN_A_SEGMENT: u64 = 1 << 32;
/// Sequence numbers in a piece of an export's history. A doubt leaves one piece at least without any.
const SEQS_IN_A_PIECE: u64 = SEQS_IN_A_SEGMENT / 2;

/// The highest sequence number in each piece of each export's history of which the log has any.
type Pieces = HashMap<(ExportId, u64), Seq>;

/// Exports that may have lost a record, each with the highest sequence number which that may have.
pub(super) type Doubts = HashMap<ExportId, Seq>;

/// What a segment with a hole says of an export.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// A record before the hole names the export.
    known: bool,
    /// Sequence numbers next to the hole.
    before: Option<Seq>,
    behind: Option<Seq>,
}

impl Recovery<'_> {
    /// The exports that may have lost records in `segments`, which have been read.
    pub fn doubts(&self, segments: &[Found]) -> Doubts {
        let mut doubts = Doubts::new();
        let mut pieces = None;
        for found in segments {
            let Some(walk) = &found.walk else { continue };
            if walk.holes.is_empty() {
                continue;
            }
            // In a segment without a record, nobody could be announced before the first.
            let announces = walk.announces || (walk.records.is_empty() && self.announces);
            let later = first_behind(segments, found);
            let pieces = pieces.get_or_insert_with(|| pieces_of(segments));
            for hole in &walk.holes {
                let beside = beside(&walk.records, *hole);
                for (export, volume) in &self.volumes {
                    let knows_all = announces && !hole.of_anyone;
                    if knows_all && !beside.get(export).is_some_and(|beside| beside.known) {
                        continue;
                    }
                    // An earlier start found the hole: what was written since is newer than any record that was there.
                    if self.spoken_for.get(export).is_some_and(|through| found.key.segment_id <= *through) {
                        continue;
                    }
                    // Numbers ascend in a segment, unless it has copies.
                    let beside = if found.by_cleaner { None } else { beside.get(export).copied() };
                    let mut beside = beside.unwrap_or_default();
                    beside.behind = beside.behind.or_else(|| later.get(export).copied());
                    let highest = match beside {
                        Beside { before: Some(before), behind: Some(behind), .. }
                            if behind.0 == before.0 + 1 =>
                        {
                            continue;
                        }
                        Beside { behind: Some(behind), .. } => Seq(behind.0 - 1),
                        // Numbers go on behind those that may have been given out, so that none is given out twice.
                        Beside { behind: None, before, .. } => {
                            let last = before.map(|before| last_of_life(pieces, *export, before));
                            let last = last.unwrap_or(volume.figures().last_seq);
                            Seq(last.0.saturating_add(SEQS_IN_A_SEGMENT))
                        }
                    };
                    let doubt = doubts.entry(*export).or_default();
                    *doubt = highest.max(*doubt);
                }
            }
        }
        doubts
    }

    /// Makes `doubts` stable in the log, and has the indexes heed them.
    pub fn write_down(
        &mut self,
        doubts: &Doubts,
        segments: &mut [Found],
        superblock: &mut Superblock,
        book: &dyn Book,
    ) -> Result<(), CacheError> {
        let (mut marks, mut entries) = (Vec::new(), Vec::new());
        for (export, volume) in self.volumes.iter().filter(|(_, volume)| volume.has_ended_doubt()) {
            marks.push((*export, volume.forget_clean(self.slots)));
        }
        for (export, seq) in doubts {
            let Some(volume) = self.volumes.get(export) else { continue };
            // What of it is in the store is right there; copies of it here may be older.
            let flushed = volume.forget_clean(self.slots);
            marks.push((*export, flushed));
            if *seq <= flushed {
                continue;
            }
            self.found.doubted += 1;
            tracing::error!(
                export = export.0,
                "records of this export may be lost: all of it that was not written since fails until it is written again. Go \
                 back to a snapshot, or restore a copy: what the store has now is kept as one"
            );
            // Every hole that was found is in a segment up to this one.
            if let Some(range) = SectorRange::new(self.last_segment_id, 1) {
                entries.push(Entry { export: *export, seq: *seq, range, kind: EntryKind::Doubt });
            }
        }
        marks.retain(|(_, flushed)| *flushed > Seq(0));
        let name = || self.disk.location();
        if !marks.is_empty() {
            at(book.evicted(&marks), "noting in the catalog what is left out", name)?;
        }
        if entries.is_empty() {
            return Ok(());
        }
        if superblock.version < VERSION_DAMAGED {
            superblock.version = VERSION_DAMAGED;
            at(self.disk.replace_superblock(&superblock.encode()), "writing cache.meta", name)?;
        }
        let is_free = |number: &u32| self.slots.get(*number).state() == State::Free;
        // Cleaning must find a free slot to move data to.
        let spare = self.slots.count(State::Free) > RESERVE;
        match (0..self.slots.limit()).find(is_free).filter(|_| spare) {
            Some(number) => self.append(&entries, number),
            None => {
                self.hold(&entries, segments);
                Ok(())
            }
        }
    }

    /// Has the damaged segments stand for `entries`: they stay as they are, so that the next recovery finds the same, until the
    /// keeper has moved the entries to a segment of their own.
    fn hold(&self, entries: &[Entry], segments: &mut [Found]) {
        let is_damaged = |found: &&mut Found| found.walk.as_ref().is_some_and(|walk| !walk.holes.is_empty());
        for found in segments.iter_mut().filter(is_damaged) {
            found.held = true;
            self.slots.get(found.slot).set_unreadable();
            for entry in entries {
                if let (Some(volume), Some(extent)) =
                    (self.volumes.get(&entry.export), extent(entry, found.slot, 0))
                {
                    volume.recovered(self.slots, extent);
                }
            }
        }
    }

    /// Writes a segment of `entries`, none of which has data, into slot `number`, which is free.
    fn append(&mut self, entries: &[Entry], number: u32) -> Result<(), CacheError> {
        let (slot, frames) = (self.slots.get(number), self.slots.segment_frames());
        let name = || self.disk.segment_name(number);
        let file = at(self.disk.open_segment(number, self.slots.segment_bytes()), "opening", name)?;
        let file = Arc::clone(slot.set_file(file));
        let header = SegmentHeader {
            cache_id: self.slots.cache_id(),
            segment_id: self.new_segment_id()?,
            shard: CLEANER,
            segment_bytes: self.slots.segment_bytes(),
        };
        at(seal::write_header(&*file, &header, frames, &slot.front_unsure), "writing the header", name)?;
        slot.make_crcs(frames);
        slot.begin_use(header.segment_id, 1);
        slot.on(Event::Prepare);
        let mut segment = Segment::new(number, header.key(), file, frames);
        let mut batch = Batch::default();
        for entry in entries {
            if !batch.fits(1, 0) {
                self.write(&mut segment, &mut batch)?;
            }
            let pushed = batch.push_entry(*entry);
            debug_assert!(pushed.is_ok(), "the batch has room, and records hold such entries");
        }
        self.write(&mut segment, &mut batch)?;
        let trailer = at(seal::write_footer(&segment), "writing the footer", name)?;
        at(segment.file.sync(), "syncing", name)?;
        at(seal::write_trailer(&segment, &trailer, frames), "writing the trailer", name)?;
        slot.heal();
        slot.on(Event::Close);
        slot.on(Event::Seal);
        Ok(())
    }

    fn write(&self, segment: &mut Segment, batch: &mut Batch) -> Result<(), CacheError> {
        let slot = segment.slot;
        if !segment.has_room_for(self.slots, batch, 0, 0) {
            return Err(CacheError::Damaged {
                file: self.disk.location(),
                offset_bytes: 0,
                what: "records are lost, of more exports than a segment can name".into(),
            });
        }
        let appended = segment.append(self.slots, batch, std::iter::empty());
        let position = at(appended, "writing", || self.disk.segment_name(slot))?;
        for entry in batch.entries() {
            if let (Some(volume), Some(extent)) =
                (self.volumes.get(&entry.export), extent(entry, slot, position))
            {
                volume.recovered(self.slots, extent);
            }
        }
        batch.reset();
        Ok(())
    }
}

/// The first sequence number of each export in the segments that the shard of `found` appended to later.
fn first_behind(segments: &[Found], found: &Found) -> HashMap<ExportId, Seq> {
    let mut first = HashMap::new();
    let is_later = |other: &&Found| {
        found.shard.is_some() && other.shard == found.shard && other.key.segment_id > found.key.segment_id
    };
    for other in segments.iter().filter(is_later) {
        for_writes(other, |entry| {
            let seq = first.entry(entry.export).or_insert(entry.seq);
            *seq = entry.seq.min(*seq);
        });
    }
    first
}

fn pieces_of(segments: &[Found]) -> Pieces {
    let mut pieces = Pieces::new();
    for found in segments {
        for_writes(found, |entry| {
            let last = pieces.entry((entry.export, entry.seq.0 / SEQS_IN_A_PIECE)).or_default();
            *last = entry.seq.max(*last);
        });
    }
    pieces
}

/// Calls `visit` with each entry of `found`, which has been read, that is a write.
fn for_writes(found: &Found, mut visit: impl FnMut(&Entry)) {
    let read = found.walk.is_none().then(|| found.footer_again()).flatten();
    let records = found.walk.as_ref().map(|walk| &walk.records).or(read.as_ref());
    records.into_iter().flatten().flat_map(|record| &record.entries).for_each(|entry| match entry.kind {
        EntryKind::Data { .. } | EntryKind::Zero => visit(entry),
        EntryKind::Damaged | EntryKind::Doubt | EntryKind::Announced => {}
    });
}

/// The last sequence number that `export` had given out when a hole behind write `before` came to be. Where an earlier start
/// found the hole and could not write that down, numbers go on behind those that may have been in the hole.
fn last_of_life(pieces: &Pieces, export: ExportId, before: Seq) -> Seq {
    let mut last = before;
    let mut piece = before.0 / SEQS_IN_A_PIECE;
    while let Some(seq) = pieces.get(&(export, piece)) {
        last = last.max(*seq);
        piece += 1;
    }
    last
}

/// What `records` say of each export that they name.
fn beside(records: &[FooterRecord], hole: Hole) -> HashMap<ExportId, Beside> {
    let mut found: HashMap<ExportId, Beside> = HashMap::new();
    for record in records {
        for entry in &record.entries {
            let beside = found.entry(entry.export).or_default();
            beside.known |= record.position_frames < hole.from;
            if entry.kind == EntryKind::Announced {
                continue;
            }
            if record.position_frames < hole.from {
                beside.before = beside.before.max(Some(entry.seq));
            } else {
                beside.behind = Some(beside.behind.map_or(entry.seq, |behind| behind.min(entry.seq)));
            }
        }
    }
    found
}
