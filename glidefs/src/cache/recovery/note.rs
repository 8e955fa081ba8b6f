//! The note of losses: a segment of entries of doubt, and of entries for lost content.
//!
//! Owns the choice of the file, and the writing. Does not own which entries there are (`losses`, `missing`). Invariants: the volumes hear of
//! an entry only when the note is stable; the note takes neither the last segment that cleaning needs nor the file of a lost segment.

use std::sync::Arc;

use super::identify::NOTE_SHARD;
use super::layout::at;
use super::segments::Recovery;
use crate::cache::log::batch::Batch;
use crate::cache::log::error::CacheError;
use crate::cache::log::format::Entry;
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::seal;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::{Extent, extent};

/// Most free files in which a note is tried: a disk failing for a moment must not take all free files out of use.
const PLACES_MAX: usize = 3;

impl Recovery<'_> {
    /// Writes `entries` to a segment of their own. `false` where no file takes them, and the damaged segments can stand for them.
    pub fn note(&mut self, entries: &[Entry]) -> Result<bool, CacheError> {
        for number in self.places_for_a_note() {
            if !self.can_spare_a_segment() {
                break;
            }
            match self.append(entries, number) {
                Err(error @ CacheError::Disk { .. }) => self.pass_over(number, &error),
                appended => return appended.map(|()| true),
            }
        }
        if self.missing.needs_note { Err(self.no_place_for_missing()) } else { Ok(false) }
    }

    /// Whether a free segment may take entries of doubt: cleaning must find a free segment to move data to. Where a segment is lost, nothing
    /// else can stand for the entries, so one free segment, which may be that of the lost number, has to do for cleaning.
    pub fn can_spare_a_segment(&self) -> bool {
        self.table.count(State::Free) > if self.missing.needs_note { 1 } else { RESERVE }
    }

    /// Numbers of free segments to write a note to, the best first: those with a file, in which a full file system has
    /// room, and then one without. [`PLACES_MAX`] at most. The number of a lost segment is none of these: until the entries are stable,
    /// only the checkpoint tells of the loss, and a later segment there would hide the loss.
    pub fn places_for_a_note(&self) -> Vec<u32> {
        let is_free =
            |(number, info): &(u32, &SegmentInfo)| info.state() == State::Free && !self.missing.has(*number);
        let free = self.table.iter().filter(is_free);
        let (mut places, others): (Vec<_>, Vec<_>) = free.partition(|(_, info)| info.file().is_some());
        places.extend(others.first());
        places.into_iter().map(|(number, _)| number).take(PLACES_MAX).collect()
    }

    /// Leaves out segment number `number`, whose file did not take entries of doubt. The keeper erases the written part.
    fn pass_over(&mut self, number: u32, error: &CacheError) {
        self.report(
            number,
            error,
            "a segment file does not take the note of lost records: trying another file",
        );
        let info = self.table.get(number);
        if info.state() == State::Open {
            info.retire();
            info.poison();
            info.enter(State::Closed);
        }
    }

    /// Writes a segment of `entries`, none of which has data, to the free segment number `number`.
    fn append(&mut self, entries: &[Entry], number: u32) -> Result<(), CacheError> {
        let (info, frames) = (self.table.get(number), self.table.segment_frames());
        let name = || self.disk.segment_name(number);
        let file = at(self.disk.open_segment(number, self.table.segment_bytes()), "opening", name)?;
        let file = Arc::clone(info.set_file(file));
        let header = self.table.header(self.new_segment_id()?, NOTE_SHARD);
        at(seal::write_header(&*file, &header, frames, &info.front_unsure), "writing the header", name)?;
        let mut segment = SegmentWriter::begin(self.table, number, &header, file);
        let (mut batch, mut placed) = (Batch::default(), Vec::new());
        for entry in entries {
            if !batch.fits(1, 0) {
                self.write(&mut segment, &mut batch, &mut placed)?;
            }
            let pushed = batch.push(*entry, &[]);
            debug_assert!(pushed, "the batch has room, and records hold such entries");
        }
        self.write(&mut segment, &mut batch, &mut placed)?;
        let trailer = at(seal::close(&segment, frames, std::iter::empty()), "closing", name)?;
        info.heal();
        info.enter(State::Closed);
        info.enter(State::Sealed);
        info.leave_crcs(Some(&trailer), frames);
        for (volume, extent) in placed {
            volume.recovered(self.table, extent);
        }
        Ok(())
    }

    /// Appends `batch`, and adds the place of each entry to `placed`.
    fn write(
        &self,
        segment: &mut SegmentWriter,
        batch: &mut Batch,
        placed: &mut Vec<(Arc<Volume>, Extent)>,
    ) -> Result<(), CacheError> {
        let number = segment.number;
        if !segment.has_room_for(self.table, batch, 0, 0) {
            return Err(CacheError::Exhausted {
                directory: self.disk.location(),
                what: "records of more exports are lost than one segment can name",
            });
        }
        let appended = segment.append(self.table, batch, std::iter::empty());
        let position = at(appended, "writing", || self.disk.segment_name(number))?;
        for entry in batch.entries() {
            if let (Some(volume), Some(extent)) =
                (self.volumes.get(&entry.export), extent(entry, number, position))
            {
                placed.push((Arc::clone(volume), extent));
            }
        }
        batch.reset();
        Ok(())
    }
}
