//! Ranges of sectors with the place of their content in the log.
//!
//! Owns the vocabulary that the index, the layers and the readers share. Does not own which extent is the newest (`index`).

use crate::cache::log::format::{Entry, EntryKind};
use crate::units::{FRAME_SECTORS, SectorRange, Seq};

/// Where the content of an extent comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Bytes in a segment.
    Data {
        /// Number of the segment.
        number: u32,
        /// Sector in the segment with the extent's first sector. The extent ends below sector `u32::MAX` of the segment.
        sector: u32,
    },
    /// Zeroes. The segment holds the entry of the zeroes, and keeps the entry for as long as older data may be found elsewhere.
    Zero {
        /// Number of the segment.
        number: u32,
    },
    /// Nothing: the content was lost to the disk, and reads fail. The segment holds the entry of the damage.
    Damaged {
        /// Number of the segment.
        number: u32,
    },
    /// No content: a statement that no content of the export as old as this extent can be relied on. Never in an `Index`. The
    /// segment holds the entry of the doubt.
    Doubt {
        /// Number of the segment.
        number: u32,
    },
}

impl Backing {
    /// Number of the segment to be kept for this content.
    pub fn number(self) -> u32 {
        match self {
            Self::Data { number, .. }
            | Self::Zero { number }
            | Self::Damaged { number }
            | Self::Doubt { number } => number,
        }
    }

    /// The place `sectors` later.
    pub(super) fn skip(self, sectors: u32) -> Self {
        match self {
            // Saturates only for an extent against the rule of `Data::sector`, and then at a place no segment has.
            Self::Data { number, sector } => Self::Data { number, sector: sector.saturating_add(sectors) },
            Self::Zero { .. } | Self::Damaged { .. } | Self::Doubt { .. } => self,
        }
    }
}

/// Sectors with content of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The sectors.
    pub range: SectorRange,
    /// The write.
    pub seq: Seq,
    /// Place of the content.
    pub backing: Backing,
}

impl Extent {
    /// The part of the extent in `range`; `None` when `range` goes beyond the extent.
    pub fn part(&self, range: SectorRange) -> Option<Self> {
        let skipped = range.start().checked_sub(self.range.start())?;
        let backing = self.backing.skip(u32::try_from(skipped).ok()?);
        (range.end() <= self.range.end()).then_some(Self { range, backing, ..*self })
    }
}

/// Part of the answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The sectors.
    pub range: SectorRange,
    /// Their content; `None` for sectors never written.
    pub backing: Option<Backing>,
    /// The write that gave the content; 0 for sectors never written.
    pub seq: Seq,
}

/// The extent of `entry`, which belongs to the record at frame `position` of segment `number`; `None` for an entry without
/// content.
pub(in crate::cache) fn extent(entry: &Entry, number: u32, position: u32) -> Option<Extent> {
    let backing = match entry.kind {
        EntryKind::Announced => return None,
        EntryKind::Zero => Backing::Zero { number },
        EntryKind::Damaged => Backing::Damaged { number },
        EntryKind::Doubt => Backing::Doubt { number },
        EntryKind::Data { first_frame } => {
            let frame = u64::from(position) + 1 + u64::from(first_frame);
            // A segment has fewer than 2^32 sectors: checked when the cache was opened.
            let sector = u32::try_from(frame * FRAME_SECTORS).unwrap_or(u32::MAX);
            Backing::Data { number, sector }
        }
    };
    Some(Extent { range: entry.range, seq: entry.seq, backing })
}
