//! Frames of which a READ wants only a part: read and verified once for all pieces of the READ.
//!
//! Owns the memory of the frames, and which frames are verified. Does not own reading and verifying (`read`). A write of a few sectors
//! in the middle of a frame leaves two pieces of the older frame, so the same READ comes back to a frame. Invariant: bytes are given
//! out as verified only within the READ that verified the bytes.

use crate::cache::log::format::Frame;
use crate::units::FRAME_BYTES;

/// Frames kept at once: between two pieces of a frame lie pieces of three others at most, or the frame is read again.
const FRAMES: usize = 4;

/// A frame of a segment: the number of the segment, and the place in the segment.
pub(super) type Place = (u32, u32);

/// The frames of one READ.
#[derive(Debug)]
pub(super) struct PartFrames {
    frames: Vec<Frame>,
    /// The verified content of each frame.
    verified: [Option<Place>; FRAMES],
    /// When each frame was last used, counted in uses.
    used: [u64; FRAMES],
    uses: u64,
}

impl PartFrames {
    pub fn new() -> Self {
        Self { frames: vec![[0; FRAME_BYTES]; FRAMES], verified: [None; FRAMES], used: [0; FRAMES], uses: 0 }
    }

    /// Begins another READ, for which nothing is verified yet.
    pub fn begin(&mut self) {
        self.verified = [None; FRAMES];
    }

    /// Where the verified frame `place` is kept.
    pub fn find(&mut self, place: Place) -> Option<usize> {
        let slot = self.verified.iter().position(|verified| *verified == Some(place))?;
        self.touch(slot);
        Some(slot)
    }

    /// The memory used least recently, for another frame.
    pub fn take(&mut self) -> usize {
        let oldest = self.used.iter().enumerate().min_by_key(|(_, used)| **used);
        let slot = oldest.map_or(0, |(slot, _)| slot);
        self.verified[slot] = None;
        self.touch(slot);
        slot
    }

    /// Notes that the bytes of `slot` are the verified frame `place`.
    pub fn verified(&mut self, slot: usize, place: Place) {
        self.verified[slot] = Some(place);
    }

    pub fn bytes(&mut self, slot: usize) -> &mut Frame {
        &mut self.frames[slot]
    }

    fn touch(&mut self, slot: usize) {
        self.uses += 1;
        self.used[slot] = self.uses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(frames: &mut PartFrames, place: Place) -> usize {
        let slot = frames.take();
        frames.verified(slot, place);
        slot
    }

    #[test]
    fn a_frame_in_use_is_found_again_until_its_read_ends() {
        let mut frames = PartFrames::new();
        let first = keep(&mut frames, (1, 7));
        for other in 0..20 {
            keep(&mut frames, (2, other));
            assert_eq!(frames.find((1, 7)), Some(first), "pieces of one other frame lie between");
        }
        assert_eq!(frames.find((1, 8)), None);
        frames.begin();
        assert_eq!(frames.find((1, 7)), None);
    }

    #[test]
    fn bytes_are_not_taken_for_verified_before_they_are() {
        let mut frames = PartFrames::new();
        (0..8).for_each(|frame| _ = keep(&mut frames, (1, frame)));
        let slot = frames.take();
        assert_eq!(frames.find((1, 4)), None, "the frame used least recently made room");
        assert!((5..8).all(|frame| frames.find((1, frame)).is_some_and(|kept| kept != slot)));
    }
}
