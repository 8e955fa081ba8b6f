//! Which of two copies of one write counts, whatever the order in which a start finds the copies.
//!
//! Owns the order of segments only. Does not own who decides the order (`recovery`). Invariant: of extents of one sequence number, the
//! one in the segment of the highest rank has the sector, in whatever order the extents are put back.

use super::extent::Extent;
use super::index::Index;
use crate::cache::log::table::Refs;
use crate::units::Seq;

/// The rank of each segment, by number.
#[derive(Debug, Default)]
pub(in crate::cache) struct Ranks(Vec<u32>);

impl Ranks {
    /// Ranks of the segments `numbers`, lowest first.
    pub fn ascending(numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut ranks = Self::default();
        for (rank, number) in (1..).zip(numbers) {
            let at = number as usize;
            if at >= ranks.0.len() {
                ranks.0.resize(at.saturating_add(1), 0);
            }
            if let Some(place) = ranks.0.get_mut(at) {
                *place = rank;
            }
        }
        ranks
    }

    /// Gives segment `number` the lowest rank.
    pub fn put_last(&mut self, number: u32) {
        if let Some(rank) = self.0.get_mut(number as usize) {
            *rank = 0;
        }
    }

    fn of(&self, number: u32) -> u32 {
        self.0.get(number as usize).copied().unwrap_or(0)
    }

    /// Whether content of write `seq` in segment `number` stays beside `other`.
    pub fn is_newer(&self, (seq, number): (Seq, u32), other: &Extent) -> bool {
        let of_other = other.backing.number();
        seq > other.seq || (seq == other.seq && self.of(number) > self.of(of_other))
    }
}

impl Index {
    /// As [`Index::insert`], but of two extents of an equal sequence number the one in the segment of the higher rank counts.
    pub(in crate::cache) fn put_back(&mut self, extent: Extent, ranks: &Ranks, refs: &mut impl FnMut(Refs)) {
        let may_be_older = extent.seq <= self.max_seq();
        self.insert_beside(extent, may_be_older, |seq, number| ranks.is_newer((seq, number), &extent), refs);
    }
}
