//! How a cut becomes packs.
//!
//! Owns which sectors of a cut go into which pack. Does not own when packs are made, nor where they go. Invariant: every sector of a
//! cut is in exactly one pack, or was in one that is kept.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::upload::Span;
use super::view::between;
use super::{CutExtent, CutSource, VolumeError};
use crate::store::format::{EncodedPack, PackBuilder, PackOptions, PushError};
use crate::units::{SECTOR_BYTES, Seq};

/// How much of a cut is read at once, sectors: whole blocks.
pub(super) const READ_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;

/// Which sectors a source has, of which writes: as a write has a number of its own, the data as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentHash([u8; 32]);

/// What is stored: a cut, and zeroes behind the end of a volume that becomes smaller.
#[derive(Clone)]
pub(super) struct Source {
    pub cut: Arc<dyn CutSource>,
    pub zero_from: Option<u64>,
}

impl Source {
    pub fn first_seq(&self) -> Seq {
        self.cut.extents().iter().map(|extent| extent.seq).min().unwrap_or(self.cut.seq())
    }

    /// Data in it.
    pub fn data_bytes(&self) -> u64 {
        let data = self.cut.extents().iter().filter(|extent| !extent.zero);
        data.filter_map(|extent| extent.range.bytes()).fold(0, u64::saturating_add)
    }

    /// A fingerprint of everything that decides what is in packs of it. Extents that were split since have the same one.
    pub fn content(&self) -> ContentHash {
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
    fn extent(&self, at: usize) -> Option<CutExtent> {
        let extents = self.cut.extents();
        let tail = || {
            let from = self.zero_from.filter(|from| at == extents.len() && *from < u64::MAX)?;
            Some(CutExtent { range: between(from, u64::MAX), seq: self.cut.seq(), zero: true })
        };
        extents.get(at).copied().or_else(tail)
    }
}

/// A source, of which the beginning is packed.
pub(super) struct Packing {
    source: Source,
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
pub(super) struct Packed {
    pub pack: EncodedPack,
    /// Sectors of the source that it has all of.
    pub sectors: Range<u64>,
    /// Data in it, bytes.
    pub data_bytes: u64,
}

impl Packing {
    /// Of all of `source` except what `kept` has.
    pub fn new(source: Source, kept: &[Span]) -> Self {
        let kept_bytes = kept.iter().fold(0, |bytes, span| span.data_bytes.saturating_add(bytes));
        let left_bytes = source.data_bytes().saturating_sub(kept_bytes);
        let kept = kept.iter().map(|span| (span.from, span.to)).collect();
        Self { source, extent: 0, at: 0, kept, left_bytes }
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Data that may still have to be packed.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// The next pack; `None` when everything is packed.
    pub fn next_pack(mut self, options: PackOptions) -> Result<(Option<Packed>, Self), VolumeError> {
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
        Ok((builder.finish().map(|pack| Packed { pack, sectors, data_bytes }), self))
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
            let extent = self.source.extent(self.extent)?;
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
            builder.push_zero(piece.range).map_err(bad)?;
        } else {
            let bytes = usize::try_from(piece.range.count() * SECTOR_BYTES);
            let mut data = vec![0; bytes.unwrap_or_else(|_| unreachable!("at most READ_SECTORS"))];
            self.source.cut.read(piece.range, &mut data).map_err(VolumeError::cut)?;
            self.left_bytes = self.left_bytes.saturating_sub(data.len() as u64);
            builder.push_data(piece.range.start(), Bytes::from(data)).map_err(bad)?;
        }
        self.at = piece.range.end();
        Ok(())
    }
}

/// What cannot happen with a cut that was checked, and packs that end when they are full.
pub(super) fn bad(error: PushError) -> VolumeError {
    VolumeError::BadCut(match error {
        PushError::Order => "its extents do not ascend",
        PushError::Unfit => "an extent is not in whole sectors",
        PushError::Full => "an extent does not fit into a pack",
    })
}
