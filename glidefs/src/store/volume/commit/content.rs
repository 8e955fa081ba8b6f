//! The content of a commit: extents of a cut, and zeroes from the new end of a shrinking volume.
//!
//! Owns the order of the extents, and their fingerprint. Does not own how extents become packs (`packing`).

use std::sync::Arc;

use crate::store::volume::cut::{CutExtent, CutSource};
use crate::store::volume::types::between;
use crate::units::Seq;

/// A fingerprint of content by ranges and sequence numbers: each write has its own sequence number, so equal numbers mean equal
/// data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct ContentHash([u8; 32]);

/// The content of a commit.
#[derive(Clone)]
pub(in crate::store::volume) struct CutContent {
    pub cut: Arc<dyn CutSource>,
    pub zero_from: Option<u64>,
}

impl CutContent {
    pub fn first_seq(&self) -> Seq {
        self.cut.extents().iter().map(|extent| extent.seq).min().unwrap_or(self.cut.seq())
    }

    /// Bytes of data, without zeroes.
    pub fn data_bytes(&self) -> u64 {
        let data = self.cut.extents().iter().filter(|extent| !extent.zero);
        data.filter_map(|extent| extent.range.bytes()).fold(0, u64::saturating_add)
    }

    /// A fingerprint of everything that decides the content of packs. Extents split since have the same fingerprint.
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

    /// Extent number `at`; the zeroes at the end of the volume are the last extent.
    pub fn extent(&self, at: usize) -> Option<CutExtent> {
        let extents = self.cut.extents();
        let tail = || {
            let from = self.zero_from.filter(|from| at == extents.len() && *from < u64::MAX)?;
            Some(CutExtent { range: between(from, u64::MAX), seq: self.cut.seq(), zero: true })
        };
        extents.get(at).copied().or_else(tail)
    }
}
