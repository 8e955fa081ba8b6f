//! Pages of the sums of sealed segments, as many as fit into some memory.
//!
//! Does not own how a page is read. Invariants: each page kept was checked; memory never exceeds the bound. A slot gets its memory
//! with the first page, and keeps the memory.
//!
//! ```text
//! (segment id, page) ─hash─▶ set of WAYS slots ─▶ the slot with the page, or the one to be given up: the first one in turn which
//!                                                was not used since its last turn
//! ```

use crate::cache::log::format::Frame;
use crate::units::FRAME_BYTES;

/// Slots in which a page may be.
const WAYS: usize = 4;
/// Bit of a slot's tag: the page was used since the slot's last turn, and gets a second chance. The page number is above.
const USED: u32 = 1;

/// The place of a page in memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Slot(usize);

/// A number of pages in memory.
pub(in crate::cache) struct Pages {
    /// Segment id of each slot's page; 0 in an empty slot.
    ids: Vec<u64>,
    tags: Vec<u32>,
    /// Memory of each slot that ever had a page.
    frames: Vec<Option<Box<Frame>>>,
    /// Number of sets, at least one.
    sets: usize,
    /// The slot of a set whose turn is next.
    turn: usize,
    /// Number of slots with memory.
    allocated: usize,
}

crate::units::debug_by_name!(Pages);

impl Pages {
    /// Room for pages of `bytes_max` bytes in all, but at least for [`WAYS`] pages.
    pub fn new(bytes_max: u64) -> Self {
        let fit = usize::try_from(bytes_max / FRAME_BYTES as u64).unwrap_or(usize::MAX);
        let sets = (fit / WAYS).max(1);
        let slots = sets * WAYS;
        Self {
            ids: vec![0; slots],
            tags: vec![0; slots],
            frames: (0..slots).map(|_| None).collect(),
            sets,
            turn: 0,
            allocated: 0,
        }
    }

    /// Memory of the slots.
    pub fn bytes(&self) -> u64 {
        (self.allocated * FRAME_BYTES) as u64
    }

    /// The slot with page `page` of segment `segment_id`.
    pub fn find(&self, segment_id: u64, page: u32) -> Option<Slot> {
        debug_assert!(segment_id != 0, "an empty slot has this id");
        let first = self.first_slot(segment_id, page);
        (first..first + WAYS)
            .find(|slot| self.ids[*slot] == segment_id && self.tags[*slot] >> 1 == page)
            .map(Slot)
    }

    /// The page in a slot found or filled since the last page came.
    pub fn at(&mut self, slot: Slot) -> &Frame {
        self.tags[slot.0] |= USED;
        self.memory_of(slot.0)
    }

    /// Has `fill` write page `page` of segment `segment_id` into a slot; keeps the page if `fill` says so, and returns the slot.
    pub fn fill(
        &mut self,
        segment_id: u64,
        page: u32,
        fill: impl FnOnce(&mut Frame) -> bool,
    ) -> Option<Slot> {
        let slot = match self.find(segment_id, page) {
            Some(slot) => slot.0,
            None => self.slot_to_give_up(self.first_slot(segment_id, page)),
        };
        self.ids[slot] = 0;
        if !fill(self.memory_of(slot)) {
            return None;
        }
        (self.ids[slot], self.tags[slot]) = (segment_id, page << 1);
        Some(Slot(slot))
    }

    fn memory_of(&mut self, slot: usize) -> &mut Frame {
        self.frames[slot].get_or_insert_with(|| {
            self.allocated += 1;
            Box::new([0; FRAME_BYTES])
        })
    }

    fn first_slot(&self, segment_id: u64, page: u32) -> usize {
        // A multiple of the golden ratio spreads numbers in a row evenly. The pages of a segment of 64 MiB have 17 numbers in a row.
        let number = segment_id.wrapping_mul(17).wrapping_add(u64::from(page));
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The upper half, scaled to the number of sets: no division.
        let scaled = (mixed >> 32) * self.sets as u64;
        usize::try_from(scaled >> 32).unwrap_or(0) * WAYS
    }

    fn slot_to_give_up(&mut self, first: usize) -> usize {
        if let Some(empty) = (first..first + WAYS).find(|slot| self.ids[*slot] == 0) {
            return empty;
        }
        loop {
            let slot = first + self.turn;
            self.turn = (self.turn + 1) % WAYS;
            if self.tags[slot] & USED == 0 {
                return slot;
            }
            self.tags[slot] &= !USED;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Pages {
        fn get(&mut self, segment_id: u64, page: u32) -> Option<&Frame> {
            let slot = self.find(segment_id, page)?;
            Some(self.at(slot))
        }
    }

    fn content(segment_id: u64, page: u32) -> Frame {
        let mut frame = [0; FRAME_BYTES];
        frame[..8].copy_from_slice(&segment_id.to_le_bytes());
        frame[8..12].copy_from_slice(&page.to_le_bytes());
        frame
    }

    proptest! {
        #[test]
        fn a_page_is_what_was_last_put_or_is_not_there(
            steps in prop::collection::vec((1..6u64, 0..20u32, 0..3u8), 0..300),
            fit in 0..40u64,
        ) {
            let mut pages = Pages::new(fit * FRAME_BYTES as u64);
            for (id, page, step) in steps {
                match step {
                    0 => prop_assert!(pages.get(id, page).is_none_or(|found| *found == content(id, page))),
                    1 => {
                        let put = pages.fill(id, page, |frame| { *frame = content(id, page); true });
                        prop_assert!(put.is_some());
                        prop_assert_eq!(pages.get(id, page), Some(&content(id, page)));
                    }
                    _ => {
                        let put = pages.fill(id, page, |frame| { frame.fill(9); false });
                        prop_assert!(put.is_none());
                        prop_assert_eq!(pages.get(id, page), None);
                    }
                }
                prop_assert!(pages.bytes() <= fit.max(WAYS as u64) * FRAME_BYTES as u64);
                let filled = pages.ids.iter().filter(|id| **id != 0).count();
                prop_assert!(pages.bytes() >= (filled * FRAME_BYTES) as u64);
            }
        }
    }

    #[test]
    fn a_page_in_use_stays_while_others_come_and_go() {
        let mut pages = Pages::new(0);
        for page in 0..1000 {
            pages.fill(1, page, |frame| {
                *frame = content(1, page);
                true
            });
            assert!(pages.get(1, 0).is_some(), "after page {page}");
        }
    }

    #[test]
    fn neighbours_share_the_memory_evenly() {
        let mut pages = Pages::new(1024 * FRAME_BYTES as u64);
        for id in 1..=43 {
            for page in 0..17 {
                pages.fill(id, page, |_| true);
            }
        }
        let kept = (1..=43).flat_map(|id| (0..17).map(move |page| (id, page)));
        let kept = kept.filter(|(id, page)| pages.find(*id, *page).is_some()).count();
        assert!(kept > 600, "{kept} of 731 pages in 1024 slots");
    }
}
