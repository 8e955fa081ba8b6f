//! `cache.meta`: identifies a cache directory and fixes the layout of the cache.
//!
//! Owns the bytes and the checks of the bytes; `Disk` replaces the file atomically. Invariant: a cache is never opened with
//! another cache's id or segment length.

use super::error::CacheError;
use super::format::{field, frame_crc};

/// Highest version of a whole cache that this program reads.
pub(in crate::cache) const CACHE_VERSION: u16 = 2;
/// Version of a new cache, for as long as the disk lost nothing of the cache.
pub(in crate::cache) const VERSION_SOUND: u16 = 1;
/// Version of a cache whose log may have entries of damage or doubt. A glidefs that knows only [`VERSION_SOUND`] would take such
/// entries for a torn tail.
pub(in crate::cache) const VERSION_DAMAGED: u16 = 2;

const MAGIC: [u8; 8] = *b"GLIDEMTA";

// Superblock, 48 bytes. Integers are little-endian; `..` are zero.
//
//    0     8    10   16         32              40      44    48
//   ┌─────┬─────┬────┬──────────┬───────────────┬───────┬─────┐
//   │magic│vers.│ .. │ cache id │ segment bytes │ start │ CRC │
//   └─────┴─────┴────┴──────────┴───────────────┴───────┴─────┘
const VERSION_AT: usize = 8;
const CACHE_ID_AT: usize = 16;
const SEGMENT_BYTES_AT: usize = 32;
const START_AT: usize = 40;
const CRC_AT: usize = 44;
const BYTES: usize = 48;

/// The fields of `cache.meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Superblock {
    /// A version from [`VERSION_SOUND`] to [`CACHE_VERSION`].
    pub version: u16,
    /// Random identity of the cache directory.
    pub cache_id: [u8; 16],
    /// Length of every segment file.
    pub segment_bytes: u64,
    /// Number of the last start; 0 before the first counted start.
    pub start: u32,
}

impl Superblock {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..VERSION_AT].copy_from_slice(&MAGIC);
        bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&self.version.to_le_bytes());
        bytes[CACHE_ID_AT..SEGMENT_BYTES_AT].copy_from_slice(&self.cache_id);
        bytes[SEGMENT_BYTES_AT..SEGMENT_BYTES_AT + 8].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[START_AT..CRC_AT].copy_from_slice(&self.start.to_le_bytes());
        let crc = frame_crc(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes `bytes`, which were read from the cache at `directory`.
    pub fn decode(bytes: &[u8], directory: &str) -> Result<Self, CacheError> {
        let damaged = |what: &str| CacheError::Damaged {
            file: format!("{directory}/cache.meta"),
            offset_bytes: 0,
            what: what.into(),
        };
        // The version is judged before the length, because the length may differ in another version.
        let (Some(magic), Some(version)) =
            (bytes.first_chunk::<8>(), bytes.get(VERSION_AT..).and_then(<[u8]>::first_chunk::<2>))
        else {
            return Err(damaged("superblock: too short"));
        };
        if *magic != MAGIC {
            return Err(damaged("superblock: not a glidefs cache"));
        }
        let found = u16::from_le_bytes(*version);
        let body = bytes.get(..BYTES);
        let intact = body.is_some_and(|body| body[CRC_AT..] == frame_crc(&body[..CRC_AT]).to_le_bytes());
        if found > CACHE_VERSION && (intact || bytes.len() != BYTES) {
            return Err(CacheError::TooNew { directory: directory.into(), found, known: CACHE_VERSION });
        }
        let Some(body) = body.filter(|_| intact) else {
            return Err(damaged("superblock: checksum mismatch"));
        };
        if found < VERSION_SOUND {
            return Err(damaged("superblock: version 0"));
        }
        let segment_bytes = u64::from_le_bytes(field(body, SEGMENT_BYTES_AT));
        let start = u32::from_le_bytes(field(body, START_AT));
        Ok(Self { version: found, cache_id: field(body, CACHE_ID_AT), segment_bytes, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERBLOCK: Superblock =
        Superblock { version: VERSION_SOUND, cache_id: [7; 16], segment_bytes: 64 << 20, start: 9 };

    #[test]
    fn a_superblock_reads_back_as_it_was_written() {
        for version in [VERSION_SOUND, VERSION_DAMAGED] {
            let superblock = Superblock { version, ..SUPERBLOCK };
            assert_eq!(Superblock::decode(&superblock.encode(), "d").unwrap(), superblock);
        }
    }

    #[test]
    fn every_changed_bit_and_every_missing_byte_is_noticed() {
        let bytes = SUPERBLOCK.encode();
        for bit in 0..BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&changed, "d").is_err(), "bit {bit}");
        }
        for len in 0..BYTES {
            assert!(Superblock::decode(&bytes[..len], "d").is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_newer_version_is_named_and_not_called_damage() {
        let mut bytes = SUPERBLOCK.encode();
        bytes[VERSION_AT] = 9;
        let crc = frame_crc(&bytes[..CRC_AT]).to_le_bytes();
        bytes[CRC_AT..].copy_from_slice(&crc);
        assert!(matches!(
            Superblock::decode(&bytes, "d"),
            Err(CacheError::TooNew { found: 9, known: CACHE_VERSION, .. })
        ));
    }
}
