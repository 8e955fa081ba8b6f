//! The check of a whole pack, with its header and trailer, by tests and fuzzers. Does not exist in the daemon.

#![allow(clippy::arithmetic_side_effects, reason = "an overflow is found like any other fault")]

use bytes::Bytes;

use super::cursor::Cursor;
use super::error::FormatError;
use super::index::{Codec, PackIndex};
use super::limits::{FORMAT_VERSION, HASH_BYTES, PACK_HEADER_BYTES, TRAILER_BYTES};
use super::pack::{HEADER_MAGIC, TRAILER_MAGIC, decode_block, encode_header, encode_trailer};
use super::pack_ref::PackRef;
use crate::checksum::crc32c;
use crate::store::ids::{PackId, VolumeId};
use crate::units::Seq;

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
        encode_header(self.volume, self.pack)
    }

    /// Decodes the first bytes of a pack. The header has no checksum of its own: the checksum of the pack covers the header.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(bytes);
        check_begin(&mut cursor, HEADER_MAGIC)?;
        cursor.zeroes(4)?;
        Ok(Self { volume: VolumeId(cursor.array()?), pack: PackId(cursor.array()?) })
    }
}

/// Last bytes of a pack.
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
    pub fn encode(&self) -> Vec<u8> {
        encode_trailer(&self.pack, &self.index_hash, [self.first_seq, self.last_seq])
    }

    /// Decodes the last [`TRAILER_BYTES`] of a pack of `total_bytes`, and checks the CRC. The BLAKE3 at the end covers the whole
    /// pack, see [`verify_pack`].
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

/// Checks every byte of a whole pack. Readers do not need this check: they check each fetched block.
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
