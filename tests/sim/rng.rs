//! The simulation's only source of chance: small, seeded, the same on every machine and in every version of every crate.
//!
//! Does not own seeds; whoever starts an episode does.

use std::ops::Range;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator which always gives the same numbers for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for one part of the simulation, so parts do not disturb each other.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `range`, which must not be empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// An index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).unwrap()
    }

    /// True in `parts` of 1000 cases.
    pub fn permille(&mut self, parts: u32) -> bool {
        self.next() % 1000 < u64::from(parts)
    }

    /// True in half of all cases.
    pub fn coin(&mut self) -> bool {
        self.permille(500)
    }
}
