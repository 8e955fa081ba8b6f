//! A sample of the writes of a volume since its last cut: do the writes replace content of cuts, or add content?
//!
//! Owns which writes are looked at.

use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::layers::{Dirty, Layers};

/// One of so many extents is looked at, which one by a hash of the sequence number: writers have habits.
const SAMPLE_EVERY: u64 = 8;
/// 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
const SAMPLE_HASH: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sectors of the extents that were looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Those that a cut has too.
    again: u64,
    /// Those that are nowhere else.
    new: u64,
}

impl Sample {
    /// Takes a look at an extent that is about to be inserted, if it is the turn of that one.
    pub fn look_at(&mut self, layers: &Layers, extent: &Extent) {
        let is_its_turn = extent.seq.0.wrapping_mul(SAMPLE_HASH) < u64::MAX / SAMPLE_EVERY;
        if layers.cuts().is_empty() || !is_its_turn || !matches!(extent.backing, Backing::Data { .. }) {
            return;
        }
        let sectors = extent.range.count();
        match layers.where_dirty(extent.range) {
            // What is active does not grow.
            Dirty::Active => {}
            Dirty::Cut => self.again = self.again.saturating_add(sectors),
            Dirty::Not => self.new = self.new.saturating_add(sectors),
        }
    }

    /// Whether the writes mostly replace content of cuts.
    pub fn is_mostly_again(&self) -> bool {
        self.again > self.new
    }
}
