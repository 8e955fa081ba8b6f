//! Packs: the data of one cut or one compaction, in one immutable object.
//!
//! Owns the layout, and the checks on blocks. Does not own the index, how a pack is made, nor reading header and trailer: readers have
//! the manifest, so only the checks of whole packs in `verify` do that. Invariant: each block can be fetched and checked by itself.

use bytes::Bytes;

use super::envelope::begin;
use super::error::FormatError;
use super::index::{Codec, IndexEntry};
use super::limits::HASH_BYTES;
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

/// The 48 bytes of the header. It has no checksum of its own: that of the pack covers it.
pub(super) fn encode_header(volume: VolumeId, pack: PackId) -> Vec<u8> {
    let mut bytes = begin(HEADER_MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&volume.0);
    bytes.extend_from_slice(&pack.0);
    bytes
}

/// The trailer without the BLAKE3 of the pack: the whole description of the pack, for a reader without a manifest. `index_hash`: the
/// whole BLAKE3 of the index. `seqs`: first sequence number of the data, or a lower one, and last one, or a higher one.
pub(super) fn encode_trailer(pack: &PackRef, index_hash: &[u8; HASH_BYTES], seqs: [Seq; 2]) -> Vec<u8> {
    let mut bytes = begin(TRAILER_MAGIC);
    bytes.extend_from_slice(&pack.entries.to_le_bytes());
    bytes.extend_from_slice(&pack.volume.0);
    bytes.extend_from_slice(&pack.pack.0);
    bytes.extend_from_slice(&pack.index_offset_bytes.to_le_bytes());
    bytes.extend_from_slice(&pack.index_stored_bytes.to_le_bytes());
    bytes.extend_from_slice(&pack.index_plain_bytes.to_le_bytes());
    let numbers = [pack.lowest_sector, pack.highest_sector, seqs[0].0, seqs[1].0, pack.data_bytes];
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend_from_slice(index_hash);
    bytes.extend_from_slice(&[pack.level, 0, 0, 0]);
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    bytes
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
