//! How a cut becomes packs.
//!
//! Owns which sectors of a cut go into which pack. Does not own when packs are made, nor where they go. Invariant: every sector of a
//! cut is in exactly one pack, or was in one that is kept.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::content::CutContent;
use super::upload::Span;
use crate::store::format::{EncodedPack, PackBuilder, PackOptions};
use crate::store::volume::cut::CutExtent;
use crate::store::volume::error::{VolumeError, bad_cut};
use crate::store::volume::ranges::between;
use crate::units::SECTOR_BYTES;

/// How much of a cut is read at once, sectors: whole blocks.
pub(in crate::store::volume) const READ_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;

/// A source, of which the beginning is packed.
pub(in crate::store::volume) struct Packing {
    content: CutContent,
    /// The first extent of which something is not packed, or the one before.
    extent: usize,
    /// Everything before this sector is packed.
    at: u64,
    /// Sectors behind that are in packs already: ascending, without overlaps.
    kept: VecDeque<(u64, u64)>,
    /// Data that is neither packed nor known to be.
    left_bytes: u64,
}

/// A pack that was made.
pub(in crate::store::volume) struct CutPack {
    pub pack: EncodedPack,
    /// Sectors of the source that it has all of.
    pub sectors: Range<u64>,
    /// Data in it, bytes.
    pub data_bytes: u64,
}

impl Packing {
    /// Of all of `content` except what `kept` has.
    pub fn new(content: CutContent, kept: &[Span]) -> Self {
        let kept_bytes = kept.iter().fold(0, |bytes, span| span.data_bytes.saturating_add(bytes));
        let left_bytes = content.data_bytes().saturating_sub(kept_bytes);
        let kept = kept.iter().map(|span| (span.from, span.to)).collect();
        Self { content, extent: 0, at: 0, kept, left_bytes }
    }

    pub fn hash(&self) -> &CutContent {
        &self.content
    }

    /// Data that may still have to be packed.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// The next pack; `None` when everything is packed.
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

    /// Goes to the first sector that is not packed.
    fn skip_kept(&mut self) {
        while let Some(extent) = self.extent_here()
            && let Some(&(from, to)) = self.kept.front()
            && extent.range.start().max(self.at) >= from
        {
            self.at = self.at.max(to);
            self.kept.pop_front();
        }
    }

    /// The first extent of which something is not packed.
    fn extent_here(&mut self) -> Option<CutExtent> {
        loop {
            let extent = self.content.extent(self.extent)?;
            if extent.range.end() > self.at {
                return Some(extent);
            }
            self.extent += 1;
        }
    }

    /// What to pack next: up to a boundary between blocks, and to what is kept.
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
            self.content.cut.read(piece.range, &mut data).map_err(VolumeError::cut)?;
            self.left_bytes = self.left_bytes.saturating_sub(data.len() as u64);
            builder.push_data(piece.range.start(), Bytes::from(data)).map_err(bad_cut)?;
        }
        self.at = piece.range.end();
        Ok(())
    }
}
