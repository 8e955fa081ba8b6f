//! Newtypes for the units of the data path: sectors, export ids, sequence numbers. Conversions are named and checked.
//!
//! Owns the few sizes on which several layers must agree. Also times as numbers. Does not own configuration.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// `Debug` which shows no more than the name of a type whose parts say nothing to a reader, or cannot be shown.
macro_rules! debug_by_name {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_by_name;

/// Bytes in a sector, the unit of every block-layer address.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes in a frame. The cache stores and checksums data in frames.
pub const FRAME_BYTES: usize = 4096;
/// Sectors in a frame.
pub const FRAME_SECTORS: u64 = FRAME_BYTES as u64 / SECTOR_BYTES;
/// Largest READ or WRITE a device may send, and the largest slot of a buffer pool, in bytes.
pub const REQUEST_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a piece, whole frames, where a large request is carried out in pieces: a request of another export waits for a piece.
pub const PIECE_BYTES: usize = 32 * 1024;

/// Cost of a request beside its data, bytes. A request without data takes about as long as copying, checking and appending so many
/// bytes.
pub const REQUEST_COST_BYTES: u64 = 8 << 10;
/// Size of a segment of the cache, bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// The whole milliseconds of `span`, at most `u64::MAX`.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The nanoseconds of `span`, at most `u64::MAX`.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The time now, milliseconds since 1970-01-01 UTC.
pub fn unix_millis() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A number of bytes. Its text, such as "10GiB", is made by `config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Identity of an export, unique for the life of a cache directory and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExportId(pub u32);

impl fmt::Display for ExportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Sequence number of a write in its export: 1 for the first, one more for each later write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The last number that a write can have: sums with other counts of writes stay far below 2^64.
    pub const MAX: Self = Self((1 << 62) - 1);
}

/// A run of sectors `[start, start + count)`; the end never exceeds `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectorRange {
    start: u64,
    count: u64,
}

impl SectorRange {
    /// A range of `count` sectors from `start`, or `None` when the end would overflow.
    pub const fn new(start: u64, count: u64) -> Option<Self> {
        match start.checked_add(count) {
            Some(_) => Some(Self { start, count }),
            None => None,
        }
    }

    /// The first sector of the range.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Number of sectors in the range.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// One past the last sector.
    pub const fn end(self) -> u64 {
        // `new` has checked for an overflow.
        self.start + self.count
    }

    /// Whether the range holds no sector.
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether some sector is in both ranges.
    pub const fn overlaps(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end() && other.start < self.end()
    }

    /// Length in bytes, or `None` when the length exceeds `u64::MAX`.
    pub const fn bytes(self) -> Option<u64> {
        self.count.checked_mul(SECTOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_would_end_beyond_the_address_space_is_refused() {
        assert!(SectorRange::new(u64::MAX, 1).is_none());
        assert_eq!(SectorRange::new(u64::MAX, 0).map(SectorRange::end), Some(u64::MAX));
    }
}
