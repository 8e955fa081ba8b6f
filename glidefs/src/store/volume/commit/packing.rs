//! How a cut becomes packs.
//!
//! Owns the content of a commit (extents of a cut, and zeroes from the new end of a shrinking volume), and which sectors go into which
//! pack. Does not own when packs are made, nor where packs go. Invariant: every sector of a cut is in exactly one new pack, or in a
//! pack uploaded by an earlier try.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::upload::Span;
use crate::store::format::{EncodedPack, PackBuilder, PackOptions};
use crate::store::volume::cut::{CutExtent, CutSource};
use crate::store::volume::error::{VolumeError, bad_cut};
use crate::store::volume::types::between;
use crate::units::{SECTOR_BYTES, Seq};

/// Sectors of a cut read at once: whole blocks.
const READ_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;

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

/// Content whose beginning is packed.
pub(in crate::store::volume) struct Packing {
    pub content: CutContent,
    /// The first extent with unpacked sectors, or the extent before.
    extent: usize,
    /// Every sector before this one is packed.
    at: u64,
    /// Later sectors that are in packs already, as (first, one past the last): ascending, without overlaps.
    kept: VecDeque<(u64, u64)>,
    /// Bytes of data not packed yet, at most.
    pub left_bytes: u64,
}

/// A pack of a cut.
pub(in crate::store::volume) struct CutPack {
    pub pack: EncodedPack,
    /// The range of which the pack has all sectors of the content.
    pub sectors: Range<u64>,
    /// Bytes of data in the pack, before compression.
    pub data_bytes: u64,
}

impl Packing {
    /// Packs all of `content` except the sectors in `kept`.
    pub fn new(content: CutContent, kept: &[Span]) -> Self {
        let kept_bytes = kept.iter().fold(0, |bytes, span| span.data_bytes.saturating_add(bytes));
        let left_bytes = content.data_bytes().saturating_sub(kept_bytes);
        let kept = kept.iter().map(|span| (span.from, span.to)).collect();
        Self { content, extent: 0, at: 0, kept, left_bytes }
    }

    /// Whether everything is packed.
    pub fn is_done(&mut self) -> bool {
        self.skip_kept();
        self.extent_here().is_none()
    }

    /// Makes the next pack; `None` when everything is packed.
    pub fn next_pack(mut self, options: PackOptions) -> Result<(Option<CutPack>, Self), VolumeError> {
        let builder = PackBuilder::new(options);
        let mut builder = builder.map_err(|error| VolumeError::Compressor(Arc::new(error)))?;
        self.skip_kept();
        let (from, left_bytes) = (self.at, self.left_bytes);
        while !builder.is_full()
            && let Some(piece) = self.next_piece()
        {
            self.push(piece, &mut builder)?;
        }
        let (sectors, data_bytes) = (from..self.at, left_bytes.saturating_sub(self.left_bytes));
        Ok((builder.finish().map(|pack| CutPack { pack, sectors, data_bytes }), self))
    }

    /// Moves on to the first unpacked sector.
    fn skip_kept(&mut self) {
        while let Some(extent) = self.extent_here()
            && let Some(&(from, to)) = self.kept.front()
            && extent.range.start().max(self.at) >= from
        {
            self.at = self.at.max(to);
            self.kept.pop_front();
        }
    }

    /// The first extent with unpacked sectors.
    fn extent_here(&mut self) -> Option<CutExtent> {
        loop {
            let extent = self.content.extent(self.extent)?;
            if extent.range.end() > self.at {
                return Some(extent);
            }
            self.extent += 1;
        }
    }

    /// The next sectors to pack: up to a multiple of [`READ_SECTORS`], and up to sectors already in packs.
    fn next_piece(&mut self) -> Option<CutExtent> {
        let extent = self.extent_here()?;
        let start = extent.range.start().max(self.at);
        let mut end = extent.range.end();
        if let Some(&(from, _)) = self.kept.front() {
            end = end.min(from);
        }
        if !extent.zero {
            end = end.min(start.saturating_add(READ_SECTORS - start % READ_SECTORS));
        }
        let range = between(start, end);
        (!range.is_empty()).then_some(CutExtent { range, ..extent })
    }

    fn push(&mut self, piece: CutExtent, builder: &mut PackBuilder) -> Result<(), VolumeError> {
        if piece.zero {
            builder.push_zero(piece.range).map_err(bad_cut)?;
        } else {
            let bytes = usize::try_from(piece.range.count() * SECTOR_BYTES);
            let mut data = vec![0; bytes.unwrap_or_else(|_| unreachable!("at most READ_SECTORS"))];
            self.content.cut.read(piece.range, &mut data).map_err(|error| VolumeError::Cut(error.into()))?;
            self.left_bytes = self.left_bytes.saturating_sub(data.len() as u64);
            builder.push_data(piece.range.start(), Bytes::from(data)).map_err(bad_cut)?;
        }
        self.at = piece.range.end();
        Ok(())
    }
}
