//! A sample of the writes of a volume since the last cut: do the writes replace content of cuts, or add content?
//!
//! Owns the choice of the extents looked at. The answer decides whether data gathers in the active layer or makes a cut behind
//! others.

use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::layers::{Dirty, Layers};

/// One of so many extents is looked at, chosen by a hash of the sequence number: the habits of writers do not bias the sample.
const SAMPLE_EVERY: u64 = 8;
/// 2^64 by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
const SAMPLE_HASH: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sectors of the extents looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Sectors that a cut has too.
    again: u64,
    /// Sectors with no content in cuts nor in the active layer.
    new: u64,
}

impl Sample {
    /// Looks at an extent about to be inserted, if the hash chooses the extent.
    pub fn look_at(&mut self, layers: &Layers, extent: &Extent) {
        let is_its_turn = extent.seq.0.wrapping_mul(SAMPLE_HASH) < u64::MAX / SAMPLE_EVERY;
        if layers.cuts().is_empty() || !is_its_turn || !matches!(extent.backing, Backing::Data { .. }) {
            return;
        }
        let sectors = extent.range.count();
        match layers.where_dirty(extent.range) {
            // The active layer does not grow.
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
