//! What a commit stores: the extents of a cut, and zeroes behind the end of a volume that becomes smaller.
//!
//! Owns the order of these extents, and their fingerprint. Does not own how they become packs (`packing`).

use std::sync::Arc;

use crate::store::volume::cut::{CutExtent, CutSource};
use crate::store::volume::ranges::between;
use crate::units::Seq;

/// Which sectors a source has, of which writes: as a write has a number of its own, the data as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct ContentHash([u8; 32]);

/// What is stored: a cut, and zeroes behind the end of a volume that becomes smaller.
#[derive(Clone)]
pub(in crate::store::volume) struct CutContent {
    pub cut: Arc<dyn CutSource>,
    pub zero_from: Option<u64>,
}

impl CutContent {
    pub fn first_seq(&self) -> Seq {
        self.cut.extents().iter().map(|extent| extent.seq).min().unwrap_or(self.cut.seq())
    }

    /// Data in it.
    pub fn data_bytes(&self) -> u64 {
        let data = self.cut.extents().iter().filter(|extent| !extent.zero);
        data.filter_map(|extent| extent.range.bytes()).fold(0, u64::saturating_add)
    }

    /// A fingerprint of everything that decides what is in packs of it. Extents that were split since have the same one.
    pub fn hash(&self) -> ContentHash {
        let mut hasher = blake3::Hasher::new();
        let mut hash = |extent: CutExtent| {
            hasher.update(&extent.range.start().to_le_bytes());
            hasher.update(&extent.range.count().to_le_bytes());
            hasher.update(&extent.seq.0.to_le_bytes());
            hasher.update(&[extent.zero.into()]);
        };
        let mut joined: Option<CutExtent> = None;
        for extent in (0..).map_while(|at| self.extent(at)) {
            let continues = |last: &CutExtent| {
                (last.range.end(), last.seq, last.zero) == (extent.range.start(), extent.seq, extent.zero)
            };
            joined = match joined {
                Some(last) if continues(&last) => {
                    Some(CutExtent { range: between(last.range.start(), extent.range.end()), ..last })
                }
                last => {
                    last.into_iter().for_each(&mut hash);
                    Some(extent)
                }
            };
        }
        joined.into_iter().for_each(&mut hash);
        hasher.update(&self.cut.seq().0.to_le_bytes());
        ContentHash(*hasher.finalize().as_bytes())
    }

    /// Its extents, the zeroes at the end as the last.
    pub fn extent(&self, at: usize) -> Option<CutExtent> {
        let extents = self.cut.extents();
        let tail = || {
            let from = self.zero_from.filter(|from| at == extents.len() && *from < u64::MAX)?;
            Some(CutExtent { range: between(from, u64::MAX), seq: self.cut.seq(), zero: true })
        };
        extents.get(at).copied().or_else(tail)
    }
}
