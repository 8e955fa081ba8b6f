//! The description of a pack in a manifest.
//!
//! Owns the encoding, and the check of the fields. Does not own the pack. Invariant: the fields of a decoded description do not
//! contradict each other.

use super::cursor::Cursor;
use super::error::FormatError;
use super::index::{ENTRY_BYTES_MAX, ENTRY_BYTES_MIN};
use super::limits::{
    BLOCK_BYTES_MAX, ENTRIES_MAX, HASH_BYTES, INDEX_OVERHEAD_BYTES, PACK_BYTES_MAX, PACK_HEADER_BYTES,
    TRAILER_BYTES,
};
use super::zstd;
use crate::store::ids::{PackId, VolumeId};

/// Length of an encoded [`PackRef`], bytes.
pub(super) const PACK_REF_BYTES: usize = 101;

/// A pack, as a manifest lists the pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackRef {
    /// The volume for which the pack was written: for a fork, the origin.
    pub volume: VolumeId,
    /// Identity of the pack.
    pub pack: PackId,
    /// Length of the pack, bytes.
    pub total_bytes: u64,
    /// Where the index begins, bytes from the start of the pack.
    pub index_offset_bytes: u64,
    /// Length of the index in the pack.
    pub index_stored_bytes: u32,
    /// Length of the index's columns before compression.
    pub index_plain_bytes: u32,
    /// First half of the index's BLAKE3.
    pub index_hash: [u8; 16],
    /// Lowest sector with content in the pack.
    pub lowest_sector: u64,
    /// Highest sector with content in the pack.
    pub highest_sector: u64,
    /// How often the data was compacted.
    pub level: u8,
    /// Data of the pack before compression, bytes; zeroes do not count.
    pub data_bytes: u64,
    /// Number of entries in the index.
    pub entries: u32,
}

impl PackRef {
    /// Where the index lies in the pack, to fetch the index.
    pub fn index(&self) -> std::ops::Range<u64> {
        self.index_offset_bytes..self.index_offset_bytes.saturating_add(self.index_stored_bytes.into())
    }

    pub(super) fn truncated(hash: &[u8; HASH_BYTES]) -> [u8; 16] {
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        half
    }

    /// Whether the fields can be those of a pack. The lengths fit the number of entries, so whoever can write into the bucket cannot
    /// make a reader take more memory than an index of [`ENTRIES_MAX`] entries needs.
    pub(super) fn check(&self) -> Result<(), FormatError> {
        let index_end = self.index_offset_bytes.checked_add(self.index_stored_bytes.into());
        let total_bytes = index_end.and_then(|end| end.checked_add(TRAILER_BYTES as u64));
        let (entries, plain_bytes) = (self.entries as usize, self.index_plain_bytes as usize);
        let stored_bytes_max =
            zstd::compressed_bytes_max(plain_bytes).saturating_add(INDEX_OVERHEAD_BYTES) as u64;
        let columns = entries.saturating_mul(ENTRY_BYTES_MIN)..=entries.saturating_mul(ENTRY_BYTES_MAX);
        let data_bytes_max = entries.saturating_mul(BLOCK_BYTES_MAX) as u64;
        let possible = total_bytes == Some(self.total_bytes)
            && self.total_bytes <= PACK_BYTES_MAX
            && self.index_offset_bytes >= PACK_HEADER_BYTES as u64
            && self.index_stored_bytes as usize > INDEX_OVERHEAD_BYTES
            && u64::from(self.index_stored_bytes) <= stored_bytes_max
            && (1..=ENTRIES_MAX).contains(&entries)
            && columns.contains(&plain_bytes)
            && self.data_bytes <= data_bytes_max
            && self.lowest_sector <= self.highest_sector
            && self.highest_sector < u64::MAX;
        if possible { Ok(()) } else { Err(FormatError::Malformed("description of a pack")) }
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&self.pack.0);
        bytes.extend_from_slice(&self.index_hash);
        let numbers = [
            self.total_bytes,
            self.index_offset_bytes,
            self.lowest_sector,
            self.highest_sector,
            self.data_bytes,
        ];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let numbers = [self.index_stored_bytes, self.index_plain_bytes, self.entries];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.push(self.level);
    }

    pub(super) fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        // In the order of the bytes.
        let pack = Self {
            volume: VolumeId(cursor.array()?),
            pack: PackId(cursor.array()?),
            index_hash: cursor.array()?,
            total_bytes: cursor.u64()?,
            index_offset_bytes: cursor.u64()?,
            lowest_sector: cursor.u64()?,
            highest_sector: cursor.u64()?,
            data_bytes: cursor.u64()?,
            index_stored_bytes: cursor.u32()?,
            index_plain_bytes: cursor.u32()?,
            entries: cursor.u32()?,
            level: cursor.u8()?,
        };
        pack.check().map(|()| pack)
    }
}
