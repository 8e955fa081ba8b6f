//! Packs: the data of one cut or one compaction, in one immutable object.
//!
//! Owns header and trailer, and the checks on blocks and whole packs. Does not own the index, or how a pack is made.
//! Invariant: each block can be fetched and checked by itself.

use bytes::Bytes;

use super::cursor::Cursor;
use super::envelope::begin;
use super::error::FormatError;
#[cfg(any(test, fuzzing))]
use super::index::PackIndex;
use super::index::{Codec, IndexEntry};
#[cfg(any(test, fuzzing))]
use super::limits::PACK_HEADER_BYTES;
use super::limits::{FORMAT_VERSION, HASH_BYTES, TRAILER_BYTES};
use super::pack_ref::PackRef;
use super::zstd;
use crate::checksum::crc32c;
use crate::store::ids::{PackId, VolumeId};
use crate::units::Seq;

// Pack.
//
//    0        48                               index offset              end - 176
//   ┌────────┬───────┬───────┬───────┬─────────┬────────────────────────┬─────────┐
//   │ header │ block │ block │ block │ …       │ index                  │ trailer │
//   └────────┴───────┴───────┴───────┴─────────┴────────────────────────┴─────────┘
//
// Header.
//
//    0     8    10   16          32        48
//   ┌─────┬─────┬────┬───────────┬─────────┐
//   │magic│vers.│ .. │ volume id │ pack id │
//   └─────┴─────┴────┴───────────┴─────────┘
//
// Trailer.
//
//    0     8    10   12        16          32        48             56             60
//   ┌─────┬─────┬────┬─────────┬───────────┬─────────┬──────────────┬──────────────┬──────────────┐
//   │magic│vers.│ .. │ entries │ volume id │ pack id │ index offset │ index stored │ index plain  │
//   └─────┴─────┴────┴─────────┴───────────┴─────────┴──────────────┴──────────────┴──────────────┘
//    64              72               80          88           96           104            136
//   ┌───────────────┬────────────────┬───────────┬────────────┬────────────┬──────────────┬───────┐
//   │ lowest sector │ highest sector │ first seq │ last seq   │ data bytes │ index BLAKE3 │ level │
//   └───────────────┴────────────────┴───────────┴────────────┴────────────┴──────────────┴───────┘
//    137  140                     144
//   ┌────┬───────────────────────┬────────────────────────────────────────────────────────────────┐
//   │ .. │ CRC of trailer so far │ BLAKE3 of the whole pack so far                                │
//   └────┴───────────────────────┴────────────────────────────────────────────────────────────────┘

pub(super) const HEADER_MAGIC: [u8; 8] = *b"GLIDEPAK";
pub(super) const TRAILER_MAGIC: [u8; 8] = *b"GLIDEPKT";
/// Where the CRC of a trailer is; the CRC covers all bytes before.
pub(super) const TRAILER_CRC_AT: usize = TRAILER_BYTES - HASH_BYTES - 4;

/// First bytes of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackHeader {
    /// The volume of the data.
    pub volume: VolumeId,
    /// Identity of the pack.
    pub pack: PackId,
}

impl PackHeader {
    /// The 48 bytes of the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(HEADER_MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&self.pack.0);
        bytes
    }

    /// Decodes the first bytes of a pack. The header has no checksum of its own: the checksum of the pack covers the header.
    #[cfg(any(test, fuzzing))]
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(bytes);
        check_begin(&mut cursor, HEADER_MAGIC)?;
        cursor.zeroes(4)?;
        Ok(Self { volume: VolumeId(cursor.array()?), pack: PackId(cursor.array()?) })
    }
}

/// Last bytes of a pack: the whole description of the pack, for a reader without a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackTrailer {
    /// The description, as a manifest has one.
    pub pack: PackRef,
    /// BLAKE3 of the index, whole.
    pub index_hash: [u8; HASH_BYTES],
    /// First sequence number of the data, or a lower one.
    pub first_seq: Seq,
    /// Last sequence number of the data, or a higher one.
    pub last_seq: Seq,
}

impl PackTrailer {
    /// The trailer without the BLAKE3 of the pack.
    pub(super) fn encode(&self) -> Vec<u8> {
        let pack = &self.pack;
        let mut bytes = begin(TRAILER_MAGIC);
        bytes.extend_from_slice(&pack.entries.to_le_bytes());
        bytes.extend_from_slice(&pack.volume.0);
        bytes.extend_from_slice(&pack.pack.0);
        bytes.extend_from_slice(&pack.index_offset_bytes.to_le_bytes());
        bytes.extend_from_slice(&pack.index_stored_bytes.to_le_bytes());
        bytes.extend_from_slice(&pack.index_plain_bytes.to_le_bytes());
        let numbers =
            [pack.lowest_sector, pack.highest_sector, self.first_seq.0, self.last_seq.0, pack.data_bytes];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend_from_slice(&self.index_hash);
        bytes.extend_from_slice(&[pack.level, 0, 0, 0]);
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes the last [`TRAILER_BYTES`] of a pack of `total_bytes`, and checks the CRC. The BLAKE3 at the end covers the whole
    /// pack, see `verify_pack`.
    pub fn decode(bytes: &[u8], total_bytes: u64) -> Result<Self, FormatError> {
        if bytes.len() != TRAILER_BYTES {
            return Err(FormatError::Length { found: bytes.len() as u64, needed: TRAILER_BYTES as u64 });
        }
        let mut cursor = Cursor::new(bytes);
        if cursor.array()? != TRAILER_MAGIC {
            return Err(FormatError::Magic);
        }
        let mut check = Cursor::new(&bytes[TRAILER_CRC_AT..]);
        if check.u32()? != crc32c(&bytes[..TRAILER_CRC_AT]) {
            return Err(FormatError::Checksum);
        }
        let mut cursor = Cursor::new(bytes);
        check_begin(&mut cursor, TRAILER_MAGIC)?;
        let entries = cursor.u32()?;
        let (volume, pack) = (VolumeId(cursor.array()?), PackId(cursor.array()?));
        let index_offset_bytes = cursor.u64()?;
        let (index_stored_bytes, index_plain_bytes) = (cursor.u32()?, cursor.u32()?);
        let (lowest_sector, highest_sector) = (cursor.u64()?, cursor.u64()?);
        let (first_seq, last_seq) = (Seq(cursor.u64()?), Seq(cursor.u64()?));
        let data_bytes = cursor.u64()?;
        let index_hash: [u8; HASH_BYTES] = cursor.array()?;
        let level = cursor.u8()?;
        cursor.zeroes(3)?;
        let pack = PackRef {
            volume,
            pack,
            total_bytes,
            index_offset_bytes,
            index_stored_bytes,
            index_plain_bytes,
            index_hash: PackRef::truncated(&index_hash),
            lowest_sector,
            highest_sector,
            level,
            data_bytes,
            entries,
        };
        pack.check()?;
        if first_seq > last_seq || last_seq > Seq::MAX {
            return Err(FormatError::Malformed("sequence numbers of a pack"));
        }
        Ok(Self { pack, index_hash, first_seq, last_seq })
    }
}

fn check_begin(cursor: &mut Cursor<'_>, magic: [u8; 8]) -> Result<(), FormatError> {
    if cursor.array()? != magic {
        return Err(FormatError::Magic);
    }
    match cursor.u16()? {
        FORMAT_VERSION => cursor.zeroes(2),
        found => Err(FormatError::Version { found }),
    }
}

/// The data of `entry`. `stored` is the fetched block. Uncompressed data is not copied.
pub fn decode_block(entry: &IndexEntry, stored: &Bytes) -> Result<Bytes, FormatError> {
    let needed = u64::from(entry.stored_bytes);
    if stored.len() as u64 != needed {
        return Err(FormatError::Length { found: stored.len() as u64, needed });
    }
    if entry.codec == Codec::Zero {
        return Err(FormatError::Malformed("zeroes have no block"));
    }
    if crc32c(stored) != entry.stored_crc {
        return Err(FormatError::Checksum);
    }
    if entry.codec == Codec::Stored {
        return Ok(stored.clone());
    }
    let plain = zstd::decompress(stored, entry.plain_bytes())?;
    if crc32c(&plain) == entry.plain_crc { Ok(plain.into()) } else { Err(FormatError::Checksum) }
}

/// Checks every byte of a whole pack. Readers do not need this check: they check each fetched block.
#[cfg(any(test, fuzzing))]
#[expect(clippy::arithmetic_side_effects, reason = "only tests check a whole pack")]
pub fn verify_pack(bytes: &Bytes) -> Result<(PackTrailer, PackIndex), FormatError> {
    const SHORT: u64 = (PACK_HEADER_BYTES + TRAILER_BYTES) as u64;
    let found = bytes.len() as u64;
    let trailer_at = bytes.len().checked_sub(TRAILER_BYTES);
    let trailer_at = trailer_at.ok_or(FormatError::Length { found, needed: SHORT })?;
    let trailer = PackTrailer::decode(&bytes[trailer_at..], found)?;
    let (body, hash) = bytes.split_at(bytes.len() - HASH_BYTES);
    if blake3::hash(body) != *hash {
        return Err(FormatError::Checksum);
    }
    let pack = &trailer.pack;
    if PackHeader::decode(bytes)? != (PackHeader { volume: pack.volume, pack: pack.pack }) {
        return Err(FormatError::Elsewhere("pack"));
    }
    // `PackRef::check` has put the index between header and trailer.
    let index_at = pack.index_offset_bytes as usize;
    let index = PackIndex::decode(&bytes[index_at..trailer_at], pack)?;
    if bytes[trailer_at - HASH_BYTES..trailer_at] != trailer.index_hash {
        return Err(FormatError::Elsewhere("pack"));
    }
    let mut data_bytes = 0;
    for entry in index.entries().iter().filter(|entry| entry.codec != Codec::Zero) {
        // Blocks end where the index begins, so the range lies inside of the pack.
        let block = bytes.slice(entry.block().start as usize..entry.block().end as usize);
        data_bytes += decode_block(entry, &block)?.len() as u64;
    }
    if data_bytes != pack.data_bytes {
        return Err(FormatError::Malformed("data bytes of a pack"));
    }
    Ok((trailer, index))
}
