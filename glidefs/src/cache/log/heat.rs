//! How often the parts of segments are READ from their files, out of the page cache or from the disk.
//!
//! Owns the division of a segment into parts, and the counts. Does not own what follows from a count (`keeper/mapped`). The counts are
//! approximate where several workers count at once, and nothing but speed depends on them. Invariant: what a worker does here is bounded
//! by the parts of one READ; the keeper looks at segments with a part that is read often, and at a few others.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Most parts of a segment.
const PARTS_MAX: u32 = 64;

/// The parts of a segment: up to 64 of the same number of frames, a power of two. Of a segment of 64 MiB a part has 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The number of frames is 2 to this power.
    power: u32,
}

impl Parts {
    /// The parts of a segment with `segment_frames` frames.
    pub fn of(segment_frames: u32) -> Self {
        // The next power of two of at most 2^26 is a `u32`.
        Self { power: segment_frames.div_ceil(PARTS_MAX).next_power_of_two().ilog2() }
    }

    /// Number of frames of a part.
    pub fn frames(self) -> u32 {
        1 << self.power
    }

    /// The parts that have the frames `first..first + count`, a bit each; `None` where there are none such.
    pub fn of_frames(self, first: u32, count: u32) -> Option<u64> {
        let last = first.checked_add(count.checked_sub(1)?)? >> self.power;
        let first = first >> self.power;
        let before_last = u64::MAX.checked_shr(PARTS_MAX.checked_sub(1)?.checked_sub(last)?)?;
        Some(before_last & (u64::MAX << first))
    }
}

/// The numbers of the bits that are set in `parts`, in order.
pub fn each(parts: u64) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(parts), |left| Some(left & left.checked_sub(1)?))
        .take_while(|left| *left != 0)
        .map(u64::trailing_zeros)
}

/// The counts of one segment.
#[derive(Debug)]
struct Counts {
    /// Frames read of each part.
    frames: [AtomicU16; PARTS_MAX as usize],
    /// The parts that are read often, a bit each.
    often: AtomicU64,
}

impl Counts {
    fn new() -> Self {
        Self { frames: [const { AtomicU16::new(0) }; PARTS_MAX as usize], often: AtomicU64::new(0) }
    }
}

/// The counts of all segments.
#[derive(Debug)]
pub struct Heat {
    parts: Parts,
    segments: Box<[Counts]>,
    /// The segments with parts that are read often, a bit each.
    often: Box<[AtomicU64]>,
    /// So many frames read make a part one that is read often.
    price: AtomicU16,
}

impl Heat {
    /// Counts for `segments` segments of `segment_frames` frames each; without segments nothing is counted.
    pub fn new(segments: u32, segment_frames: u32) -> Self {
        let parts = Parts::of(segment_frames);
        Self {
            parts,
            segments: (0..segments).map(|_| Counts::new()).collect(),
            often: (0..segments.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            price: AtomicU16::new(u16::try_from(parts.frames()).unwrap_or(u16::MAX)),
        }
    }

    pub fn parts(&self) -> Parts {
        self.parts
    }

    /// Memory of the counts, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.segments) + size_of_val(&*self.often)
    }

    /// Counts the frames `first..first + count` of segment `number`, which a READ took from the file.
    pub fn count(&self, number: u32, first: u32, count: u32) {
        let Some(counts) = self.segments.get(number as usize) else { return };
        let Some(parts) = self.parts.of_frames(first, count) else { return };
        let price = self.price.load(Ordering::Relaxed);
        let (mut at, end) = (first, first + count);
        for part in each(parts) {
            let next = ((at >> self.parts.power) + 1) << self.parts.power;
            let more = u16::try_from(next.min(end) - at).unwrap_or(u16::MAX);
            at = next;
            let frames = &counts.frames[part as usize];
            let now = frames.load(Ordering::Relaxed).saturating_add(more);
            frames.store(now, Ordering::Relaxed);
            if now >= price {
                self.announce(number, 1 << part);
            }
        }
    }

    /// Has [`Self::take`] find `parts` of segment `number`.
    pub fn announce(&self, number: u32, parts: u64) {
        let Some(counts) = self.segments.get(number as usize) else { return };
        let (word, bit) = (&self.often[number as usize / u64::BITS as usize], 1 << (number % u64::BITS));
        if counts.often.load(Ordering::Relaxed) & parts != parts || word.load(Ordering::Relaxed) & bit == 0 {
            counts.often.fetch_or(parts, Ordering::Relaxed);
            // Whoever takes the segment finds the parts.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// The segments with parts that were read often, and these parts, a bit each. They are announced again with the next READ.
    pub fn take(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(&self.often).flat_map(move |(index, word)| {
            let segments =
                if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
            each(segments).filter_map(move |bit| {
                let number = index * u64::BITS + bit;
                Some((number, self.segments.get(number as usize)?.often.swap(0, Ordering::Relaxed)))
            })
        })
    }

    /// So many frames of a part of segment `number` were read.
    pub fn frames(&self, number: u32, part: u32) -> u32 {
        let counts = self.segments.get(number as usize);
        counts.map_or(0, |counts| u32::from(counts.frames[part as usize].load(Ordering::Relaxed)))
    }

    /// Begins the counts of some parts of segment `number` again.
    pub fn forget(&self, number: u32, parts: u64) {
        if let Some(counts) = self.segments.get(number as usize) {
            each(parts).for_each(|part| counts.frames[part as usize].store(0, Ordering::Relaxed));
            counts.often.fetch_and(!parts, Ordering::Relaxed);
        }
    }

    /// Halves the counts of one segment in `of`, by turns, so that a READ counts less as time goes by.
    pub fn halve(&self, turn: usize, of: usize) {
        let at = |turn| self.segments.len().saturating_mul(turn) / of.max(1);
        let segments = self.segments.get(at(turn)..at(turn.saturating_add(1)));
        for frames in segments.unwrap_or_default().iter().flat_map(|counts| &counts.frames) {
            let now = frames.load(Ordering::Relaxed);
            if now > 0 {
                frames.store(now / 2, Ordering::Relaxed);
            }
        }
    }

    /// From now on a part is read often when `frames` frames were read.
    pub fn set_price(&self, frames: u32) {
        self.price.store(u16::try_from(frames).unwrap_or(u16::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_of_64_mib_has_64_parts_of_1_mib() {
        let parts = Parts::of(16_384);
        assert_eq!(parts.frames(), 256);
        assert_eq!(parts.of_frames(0, 16_384), Some(u64::MAX));
        assert_eq!(parts.of_frames(255, 2), Some(0b11));
        assert_eq!(parts.of_frames(16_383, 2), None);
        assert_eq!(parts.of_frames(5, 0), None);
        assert_eq!(parts.of_frames(u32::MAX, 2), None);
    }

    proptest! {
        #[test]
        fn every_frame_of_a_segment_is_in_one_part(frames in 1..1_u32 << 20, at in 0..1_u32 << 20, count in 1..600_u32) {
            let parts = Parts::of(frames);
            let at = at % frames;
            let count = count.min(frames - at);
            let wanted = (at..at + count).fold(0, |mask, frame| mask | 1_u64 << (frame / parts.frames()));
            prop_assert_eq!(parts.of_frames(at, count), Some(wanted));
            prop_assert_eq!(each(wanted).fold(0, |mask, part| mask | 1_u64 << part), wanted);
        }

        #[test]
        fn a_part_is_announced_once_it_was_read_as_often_as_asked(reads in prop::collection::vec((0..4_u32, 0..200_u32, 1..40_u32), 1..60)) {
            let heat = Heat::new(4, 256);
            heat.set_price(64);
            let mut counts = [[0_u32; 64]; 4];
            for (number, first, count) in reads {
                heat.count(number, first, count);
                for frame in first..first + count {
                    counts[number as usize][frame as usize / 4] += 1;
                }
            }
            let found: Vec<(u32, u64)> = heat.take().collect();
            for (number, counts) in (0..).zip(&counts) {
                let wanted = (0..64).filter(|part| counts[*part] >= 64).fold(0, |mask, part| mask | 1_u64 << part);
                let parts = found.iter().find(|(other, _)| *other == number).map_or(0, |(_, parts)| *parts);
                prop_assert_eq!(parts, wanted);
            }
            prop_assert_eq!(heat.take().count(), 0);
        }
    }

    #[test]
    fn a_count_is_halved_and_begun_again() {
        let heat = Heat::new(2, 64);
        heat.count(1, 7, 1);
        heat.count(1, 7, 1);
        heat.count(1, 7, 1);
        assert_eq!(heat.frames(1, 7), 3);
        (0..9).for_each(|turn| heat.halve(turn, 10));
        assert_eq!(heat.frames(1, 7), 3);
        heat.halve(9, 10);
        assert_eq!(heat.frames(1, 7), 1);
        heat.forget(1, 1 << 7);
        assert_eq!(heat.frames(1, 7), 0);
    }
}
