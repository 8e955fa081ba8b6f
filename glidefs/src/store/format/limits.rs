//! Lengths and limits that several structures of a store share.
//!
//! Owns the numbers. Does not own the layouts that use the numbers.

use crate::units::SECTOR_BYTES;

/// Version of every structure in a store, except for a manifest with sections. Another version is refused, never guessed at.
pub const FORMAT_VERSION: u16 = 1;
/// Most data in a block of a pack, bytes. A block is compressed, checked and fetched as a whole.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Most sectors in a block. A block does not cross a multiple of this number.
pub const BLOCK_SECTORS_MAX: u64 = BLOCK_BYTES_MAX as u64 / SECTOR_BYTES;
/// Usual length of a pack, bytes: a longer pack is complete.
pub const PACK_BYTES_TARGET: u64 = 32 << 20;
/// Longest pack, bytes. One PUT carries a pack, and stores take 5 GiB in one.
pub const PACK_BYTES_MAX: u64 = 4 << 30;
/// Most entries in a pack's index.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Length of a BLAKE3 hash.
pub const HASH_BYTES: usize = blake3::OUT_LEN;
/// Most packs a manifest lists.
pub const PACKS_MAX: usize = 1 << 18;
/// Highest number of a manifest, and highest epoch.
pub(super) const NUMBER_MAX: u64 = (1 << 62) - 1;
/// Largest volume that a manifest describes, sectors: no block device of Linux has 2^63 bytes.
pub(super) const SIZE_SECTORS_MAX: u64 = (1 << 63) / SECTOR_BYTES;
/// Latest date, milliseconds since 1970-01-01 UTC: the end of the year 9999.
pub(super) const UNIX_MILLIS_MAX: u64 = 253_402_300_799_999;
/// Length of a pack's header, bytes.
pub(super) const PACK_HEADER_BYTES: usize = 48;
/// Length of a pack's trailer, bytes.
pub const TRAILER_BYTES: usize = 176;
/// Bytes of an index in a pack besides the compressed columns: magic, version, two counts and the BLAKE3.
pub(super) const INDEX_OVERHEAD_BYTES: usize = 20 + HASH_BYTES;
