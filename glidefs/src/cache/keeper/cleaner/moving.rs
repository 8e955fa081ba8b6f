//! Moving live data to another segment, and giving up the frames that cannot move.
//!
//! Does not own which segment is cleaned. Invariants: a frame moves only when the frame's checksum is right, and moves unchanged;
//! in the place of a frame lost by the disk moves an entry that says so, so nothing older takes the place of the frame's sectors.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gain::move_bytes;
use super::{Cleaner, FAILURES_MAX, Halt};
use crate::cache::handoff::Way;
use crate::cache::keeper::prepare::Preparer;
use crate::cache::keeper::runs::{Run, part_of};
use crate::cache::log::format::CLEANER;
use crate::cache::log::format::{Entry, EntryKind, frame_crc};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::scan::{offset, read_again};
use crate::cache::log::sums::Verdict;
use crate::cache::shared::Shared;
use crate::cache::verify::compare;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::extent;
use crate::units::FRAME_BYTES;

impl Cleaner {
    /// Puts `run` into the batch, and an entry of damage in the place of each lost frame.
    pub(super) fn add(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        info: &SegmentInfo,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
    ) -> Result<(), Halt> {
        if run.frames == 0 {
            return self.add_without_data(shared, preparer, number, run, run.entry.kind, volume);
        }
        let Some(file) = info.file() else { return Ok(()) };
        let bytes = run.frames as usize * FRAME_BYTES;
        if !self.batch.fits(1, run.frames as usize) || self.data.len() + bytes > move_bytes(shared) {
            self.append(shared, preparer, number)?;
        }
        let at = self.data.len();
        self.data.resize(at + bytes, 0);
        if let Err(error) = read_again(&**file, &mut self.data[at..], offset(run.first)) {
            self.data.truncate(at);
            if run.frames == 1 {
                return self.unread(shared, preparer, info, number, run, volume, &error);
            }
            // A frame the disk does not read must not cost the frames beside: each is read alone.
            for frame in (0..run.frames).filter_map(|frame| part_of(run, frame, frame + 1)) {
                self.add(shared, preparer, info, number, &frame, volume)?;
            }
            return Ok(());
        }
        let crcs_of = |data: &[u8]| data.chunks_exact(FRAME_BYTES).map(frame_crc).collect::<Vec<u32>>();
        let mut crcs = crcs_of(&self.data[at..]);
        let mut verdict = compare(shared, number, run.first, &crcs);
        // The copy in the page cache may be wrong, and the disk right. A mapped page would stay.
        if run.frames == 1 && matches!(verdict, Verdict::Wrong(_)) {
            drop(info.set_mapping(None));
            if let Err(error) = file.read_from_disk(&mut self.data[at..], offset(run.first)) {
                self.data.truncate(at);
                return self.unread(shared, preparer, info, number, run, volume, &error);
            }
            crcs = crcs_of(&self.data[at..]);
            verdict = compare(shared, number, run.first, &crcs);
        }
        if verdict != Verdict::Right {
            self.data.truncate(at);
            if run.frames == 1 && matches!(verdict, Verdict::Missing(_)) {
                // Perhaps the disk reads the checksum later.
                let error = io::Error::other("the checksum of the data cannot be read");
                return self.unread(shared, preparer, info, number, run, volume, &error);
            }
            if run.frames == 1 {
                shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                let reason = "the data does not match its checksum";
                return self.lose(shared, preparer, number, run, volume, reason);
            }
            // A long read may have gone past the page cache, and a frame not written by a failed sync is in the page cache alone:
            // each is read alone.
            for frame in (0..run.frames).filter_map(|frame| part_of(run, frame, frame + 1)) {
                self.add(shared, preparer, info, number, &frame, volume)?;
            }
            return Ok(());
        }
        if self.batch.push_data(run.entry.export, run.entry.seq, run.range, &crcs) {
            self.volumes.push(Arc::clone(volume));
        } else {
            self.data.truncate(at);
        }
        Ok(())
    }

    /// Puts an entry of `kind`, without data, for the sectors of `run` into the batch.
    fn add_without_data(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        run: &Run,
        kind: EntryKind,
        volume: &Arc<Volume>,
    ) -> Result<(), Halt> {
        if !self.batch.fits(1, 0) {
            self.append(shared, preparer, number)?;
        }
        if self.batch.push(Entry { range: run.range, kind, ..run.entry }, &[]) {
            self.volumes.push(Arc::clone(volume));
        }
        Ok(())
    }

    /// Counts the frame of `run`, which the disk did not read, and gives the frame up after enough tries.
    #[expect(clippy::too_many_arguments, reason = "a frame, and where it goes")]
    fn unread(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        info: &SegmentInfo,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
        error: &io::Error,
    ) -> Result<(), Halt> {
        self.unread_frames += 1;
        if self.gives_up {
            info.retire();
            return self.lose(shared, preparer, number, run, volume, "the disk does not read the data");
        }
        if self.unread_frames == 1 {
            shared.report(
                number,
                error,
                "reading data that must move failed; the data is read again in a second",
            );
        }
        Ok(())
    }

    /// Puts an entry into the batch that says that the frame of `run` is lost.
    fn lose(
        &mut self,
        shared: &Shared,
        preparer: &mut Preparer,
        number: u32,
        run: &Run,
        volume: &Arc<Volume>,
        reason: &'static str,
    ) -> Result<(), Halt> {
        if let Err(error) = shared.expect_damage() {
            shared.report(number, &error, "writing cache.meta failed; damaged data stays where it is");
            return Err(Halt::NoRoom);
        }
        shared.figures.lost_frames.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            export = run.entry.export.0,
            first_sector = run.range.start(),
            sectors = run.range.count(),
            file = shared.disk.segment_name(number),
            offset_bytes = offset(run.first),
            reason,
            "data in the cache is lost: these sectors fail until they are written again or discarded"
        );
        self.add_without_data(shared, preparer, number, run, EntryKind::Damaged, volume)
    }

    /// Appends the batch, which comes from segment number `from`, and makes the indexes refer to the copies.
    pub(super) fn append(&mut self, shared: &Shared, preparer: &mut Preparer, from: u32) -> Result<(), Halt> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let table = &shared.table;
        let fits = self.segment.as_ref().is_some_and(|segment| {
            segment.has_room_for(table, &self.batch, 0, 0)
                && (self.failures < FAILURES_MAX)
                && !table.get(segment.number).is_poisoned()
        });
        if !fits {
            if let Some(full) = self.segment.take() {
                shared.close(full);
            }
            self.failures = 0;
            self.segment = preparer.prepare(shared, CLEANER, 0, Way::Common);
        }
        let Some(mut segment) = self.segment.take() else { return Err(Halt::NoRoom) };
        debug_assert_ne!(segment.number, from, "a segment is not emptied into itself");
        let position = match segment.append(table, &mut self.batch, std::iter::once(&self.data[..])) {
            Ok(position) => position,
            Err(error) => {
                // The next try is in the same place: another segment would be one more of the few free ones.
                if self.failures == 0 {
                    shared.report(
                        segment.number,
                        &error,
                        "moving data to another segment failed; trying again",
                    );
                }
                self.failures += 1;
                self.segment = Some(segment);
                return Err(Halt::NoRoom);
            }
        };
        self.failures = 0;
        for (entry, volume) in self.batch.entries().iter().zip(&self.volumes) {
            if let Some(copy) = extent(entry, segment.number, position) {
                volume.relocated(table, copy, from);
            }
        }
        shared.figures.cleaned_bytes.fetch_add(self.data.len() as u64, Ordering::Relaxed);
        self.segment = Some(segment);
        self.batch.reset();
        self.volumes.clear();
        self.data.clear();
        Ok(())
    }
}
