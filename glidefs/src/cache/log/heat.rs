//! How often the stretches of segments are READ from their files, out of the page cache or from the disk.
//!
//! Owns the division of a segment into stretches, and the counts. Does not own what follows from a count (`keeper/mapped`). The counts are
//! approximate where several workers count at once, and nothing but speed depends on them. Invariant: what a worker does here is bounded
//! by the stretches of one READ; the keeper looks at segments with a stretch that is read often, and at a few others.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Most stretches of a segment.
const STRETCHES_MAX: u32 = 64;

/// The stretches of a segment: up to 64 of the same number of frames, a power of two. Of a segment of 64 MiB a stretch has 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretches {
    /// The number of frames is 2 to this power.
    power: u32,
}

impl Stretches {
    /// The stretches of a segment with `segment_frames` frames.
    pub fn of(segment_frames: u32) -> Self {
        // The next power of two of at most 2^26 is a `u32`.
        Self { power: segment_frames.div_ceil(STRETCHES_MAX).next_power_of_two().ilog2() }
    }

    /// Number of frames of a stretch.
    pub fn frames(self) -> u32 {
        1 << self.power
    }

    /// The stretches that have the frames `first..first + count`, a bit each; `None` where there are none such.
    pub fn of_frames(self, first: u32, count: u32) -> Option<u64> {
        let last = first.checked_add(count.checked_sub(1)?)? >> self.power;
        let first = first >> self.power;
        let before_last = u64::MAX.checked_shr(STRETCHES_MAX.checked_sub(1)?.checked_sub(last)?)?;
        Some(before_last & (u64::MAX << first))
    }
}

/// The numbers of the bits that are set in `stretches`, in order.
pub fn each(stretches: u64) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(stretches), |left| Some(left & left.checked_sub(1)?))
        .take_while(|left| *left != 0)
        .map(u64::trailing_zeros)
}

/// The counts of one segment.
#[derive(Debug)]
struct Counts {
    /// Frames read of each stretch.
    frames: [AtomicU16; STRETCHES_MAX as usize],
    /// The stretches that are read often, a bit each.
    often: AtomicU64,
}

impl Counts {
    fn new() -> Self {
        Self { frames: [const { AtomicU16::new(0) }; STRETCHES_MAX as usize], often: AtomicU64::new(0) }
    }
}

/// The counts of all segments.
#[derive(Debug)]
pub struct Heat {
    stretches: Stretches,
    segments: Box<[Counts]>,
    /// The segments with stretches that are read often, a bit each.
    often: Box<[AtomicU64]>,
    /// So many frames read make a stretch one that is read often.
    price: AtomicU16,
}

impl Heat {
    /// Counts for `segments` segments of `segment_frames` frames each; without segments nothing is counted.
    pub fn new(segments: u32, segment_frames: u32) -> Self {
        let stretches = Stretches::of(segment_frames);
        Self {
            stretches,
            segments: (0..segments).map(|_| Counts::new()).collect(),
            often: (0..segments.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            price: AtomicU16::new(u16::try_from(stretches.frames()).unwrap_or(u16::MAX)),
        }
    }

    pub fn stretches(&self) -> Stretches {
        self.stretches
    }

    /// Memory of the counts, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.segments) + size_of_val(&*self.often)
    }

    /// Counts the frames `first..first + count` of segment `number`, which a READ took from the file.
    pub fn count(&self, number: u32, first: u32, count: u32) {
        let Some(counts) = self.segments.get(number as usize) else { return };
        let Some(stretches) = self.stretches.of_frames(first, count) else { return };
        let price = self.price.load(Ordering::Relaxed);
        let (mut at, end) = (first, first + count);
        for stretch in each(stretches) {
            let next = ((at >> self.stretches.power) + 1) << self.stretches.power;
            let more = u16::try_from(next.min(end) - at).unwrap_or(u16::MAX);
            at = next;
            let frames = &counts.frames[stretch as usize];
            let now = frames.load(Ordering::Relaxed).saturating_add(more);
            frames.store(now, Ordering::Relaxed);
            if now >= price {
                self.announce(number, 1 << stretch);
            }
        }
    }

    /// Has [`Self::take`] find `stretches` of segment `number`.
    pub fn announce(&self, number: u32, stretches: u64) {
        let Some(counts) = self.segments.get(number as usize) else { return };
        let (word, bit) = (&self.often[number as usize / u64::BITS as usize], 1 << (number % u64::BITS));
        if counts.often.load(Ordering::Relaxed) & stretches != stretches
            || word.load(Ordering::Relaxed) & bit == 0
        {
            counts.often.fetch_or(stretches, Ordering::Relaxed);
            // Whoever takes the segment finds the stretches.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// The segments with stretches that were read often, and these stretches, a bit each. They are announced again with the next READ.
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

    /// So many frames of a stretch of segment `number` were read.
    pub fn frames(&self, number: u32, stretch: u32) -> u32 {
        let counts = self.segments.get(number as usize);
        counts.map_or(0, |counts| u32::from(counts.frames[stretch as usize].load(Ordering::Relaxed)))
    }

    /// Begins the counts of some stretches of segment `number` again.
    pub fn forget(&self, number: u32, stretches: u64) {
        if let Some(counts) = self.segments.get(number as usize) {
            each(stretches).for_each(|stretch| counts.frames[stretch as usize].store(0, Ordering::Relaxed));
            counts.often.fetch_and(!stretches, Ordering::Relaxed);
        }
    }

    /// Halves the counts of one segment in `of` a call, round robin, so that a READ counts less as time goes by.
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

    /// From now on a stretch is read often when `frames` frames were read.
    pub fn set_price(&self, frames: u32) {
        self.price.store(u16::try_from(frames).unwrap_or(u16::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_of_64_mib_has_64_stretches_of_1_mib() {
        let stretches = Stretches::of(16_384);
        assert_eq!(stretches.frames(), 256);
        assert_eq!(stretches.of_frames(0, 16_384), Some(u64::MAX));
        assert_eq!(stretches.of_frames(255, 2), Some(0b11));
        assert_eq!(stretches.of_frames(16_383, 2), None);
        assert_eq!(stretches.of_frames(5, 0), None);
        assert_eq!(stretches.of_frames(u32::MAX, 2), None);
    }

    proptest! {
        #[test]
        fn every_frame_of_a_segment_is_in_one_stretch(frames in 1..1_u32 << 20, at in 0..1_u32 << 20, count in 1..600_u32) {
            let stretches = Stretches::of(frames);
            let at = at % frames;
            let count = count.min(frames - at);
            let wanted = (at..at + count).fold(0, |mask, frame| mask | 1_u64 << (frame / stretches.frames()));
            prop_assert_eq!(stretches.of_frames(at, count), Some(wanted));
            prop_assert_eq!(each(wanted).fold(0, |mask, stretch| mask | 1_u64 << stretch), wanted);
        }

        #[test]
        fn a_stretch_is_announced_once_it_was_read_as_often_as_asked(reads in prop::collection::vec((0..4_u32, 0..200_u32, 1..40_u32), 1..60)) {
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
                let wanted = (0..64).filter(|stretch| counts[*stretch] >= 64).fold(0, |mask, stretch| mask | 1_u64 << stretch);
                let stretches = found.iter().find(|(other, _)| *other == number).map_or(0, |(_, stretches)| *stretches);
                prop_assert_eq!(stretches, wanted);
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
