//! The checksums of a segment's frames in memory: all of a segment that is not sealed, or pages of those on the disk.
//!
//! Does not own the bytes on the disk (`format/sums`), or which segment keeps checksums in memory (`info`). Invariant: a
//! checksum given out was made when the data of the frame was acknowledged, or is refused as missing.

pub mod pages;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::format::FooterRecord;

/// Result of comparing frames with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Verdict {
    Right,
    /// This frame has other bytes than the bytes acknowledged.
    Wrong(u32),
    /// The checksum of this frame is lost.
    Missing(u32),
}

impl Verdict {
    /// Compares the CRCs `read` of frames from frame `first` on with the checksums given by `crc`.
    pub fn of(
        first: u32,
        read: impl IntoIterator<Item = u32>,
        mut crc: impl FnMut(u32) -> Option<u32>,
    ) -> Self {
        for (frame, read) in (first..).zip(read) {
            match crc(frame) {
                Some(crc) if crc == read => {}
                Some(_) => return Self::Wrong(frame),
                None => return Self::Missing(frame),
            }
        }
        Self::Right
    }
}

/// The CRC-32C of every data frame of one segment.
#[derive(Debug)]
pub(in crate::cache) struct Crcs {
    cells: Box<[AtomicU32]>,
    /// The frames whose CRC is known, in ascending order; `None` while the segment is appended to: then each CRC is known before
    /// anybody can find the frame.
    known: Option<Vec<Range<u32>>>,
}

impl Crcs {
    /// Room for the CRCs of a new segment of `frames` frames.
    pub fn new(frames: u32) -> Self {
        // Memory fresh from the kernel is zeroed already: then a page is taken with its first CRC.
        let zeroes = Box::into_raw(vec![0_u32; frames as usize].into_boxed_slice());
        // SAFETY: an `AtomicU32` has the size, the alignment and the values of a `u32`, as its documentation says, and nobody else has the
        // box.
        let cells = unsafe { Box::from_raw(zeroes as *mut [AtomicU32]) };
        Self { cells, known: None }
    }

    /// Checksums of a segment, `None` where the checksum of a frame is not known.
    pub fn of(found: &[Option<u32>]) -> Self {
        let cells = found.iter().map(|crc| AtomicU32::new(crc.unwrap_or(0))).collect();
        let mut known: Vec<Range<u32>> = Vec::new();
        for (frame, _) in (0u32..).zip(found).filter(|(_, crc)| crc.is_some()) {
            match known.last_mut() {
                Some(last) if last.end == frame => last.end += 1,
                _ => known.push(frame..frame + 1),
            }
        }
        Self { cells, known: Some(known) }
    }

    /// CRC of `frame`; `None` when the segment has no such frame, or the CRC is lost.
    pub fn get(&self, frame: u32) -> Option<u32> {
        if let Some(known) = &self.known {
            let behind = known.partition_point(|frames| frames.start <= frame);
            known.get(behind.checked_sub(1)?).filter(|frames| frames.contains(&frame))?;
        }
        Some(self.cells.get(frame as usize)?.load(Ordering::Relaxed))
    }

    /// Sets the CRCs of the frames from `first` on. An index insert or `SegmentInfo::set_appended` publishes the CRCs.
    pub fn set(&self, first: u32, crcs: &[u32]) {
        let cells = self.cells.get(first as usize..).unwrap_or_default();
        debug_assert!(cells.len() >= crcs.len(), "a record reaches beyond its segment");
        for (cell, crc) in cells.iter().zip(crcs) {
            cell.store(*crc, Ordering::Relaxed);
        }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.cells) as u64
    }
}

/// The checksums in `records`, in ascending order, of a segment of `frames` frames.
pub(in crate::cache) fn crcs_in(records: &[FooterRecord], frames: u32) -> Vec<Option<u32>> {
    let mut found = vec![None; frames as usize];
    for record in records {
        let first = (record.position_frames as usize).saturating_add(1);
        for (cell, crc) in found.iter_mut().skip(first).zip(&record.crcs) {
            *cell = Some(*crc);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::log::format::frame_crc;
    use crate::units::FRAME_BYTES;

    #[test]
    fn checksums_of_lost_records_are_missing_and_not_zero() {
        let record = |position_frames, crcs: &[u32]| FooterRecord {
            position_frames,
            entries: Vec::new(),
            crcs: crcs.to_vec(),
        };
        let crcs = Crcs::of(&crcs_in(&[record(1, &[5, 6]), record(4, &[]), record(7, &[9])], 16));
        let found: Vec<_> = (0..20).map(|frame| crcs.get(frame)).collect();
        let mut expected = vec![None; 20];
        (expected[2], expected[3], expected[8]) = (Some(5), Some(6), Some(9));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_frame_that_is_not_right_is_named() {
        let frames = [[0; FRAME_BYTES], [1; FRAME_BYTES], [2; FRAME_BYTES]];
        let right = |frame: u32| Some(frame_crc(&frames[frame as usize - 7]));
        let verdict = |crc: &dyn Fn(u32) -> Option<u32>| {
            Verdict::of(7, frames.iter().map(|frame| frame_crc(frame)), crc)
        };
        assert_eq!(verdict(&right), Verdict::Right);
        assert_eq!(verdict(&|frame| right(frame).map(|crc| crc ^ u32::from(frame > 7))), Verdict::Wrong(8));
        assert_eq!(verdict(&|frame| right(frame).filter(|_| frame < 9)), Verdict::Missing(9));
    }
}
