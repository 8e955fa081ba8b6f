//! The layout of the file of the block cache.
//!
//! Owns superblock and headers. Does not own the content of blocks, which is checked against the index of the pack. Invariant: a
//! header that decodes is intact, and every place in the header lies inside of the region.
//!
//! ```text
//!  0          4 KiB                                        4 KiB + region
//! ┌──────────┬───────────────────────────────────────────┬───────────────
//! │superblock│ region 0: header (8 KiB), blocks, nothing │ region 1 ...
//! └──────────┴───────────────────────────────────────────┴───────────────
//!
//!  superblock, header
//!  0     8       10  12              16         24    28   32
//! ┌─────┬───────┬───┬───────────────┬──────────┬─────┬────┬─────────────────────────────
//! │magic│version│ 0 │ region bytes, │ sequence │ CRC │ 0  │ block: digest 8 · at 4 · length 4
//! │     │       │   │ or entries    │ of header│     │    │ (header only)
//! └─────┴───────┴───┴───────────────┴──────────┴─────┴────┴─────────────────────────────
//! ```
//!
//! All numbers are little-endian. The CRC-32C covers all bytes before the CRC, and the entries. A file with another superblock is
//! not read: guests choose the content of blocks, so a block must never stand where a header is looked for.

use crate::checksum::crc32c;
use crate::store::format::BLOCK_BYTES_MAX;

/// Length of the superblock, bytes.
pub(super) const SUPERBLOCK_BYTES: u64 = 4096;
/// Length of a region's header, bytes.
pub(super) const HEADER_BYTES: u32 = 8192;
/// Most blocks in a region.
pub(super) const ENTRIES_MAX: usize = (HEADER_BYTES as usize - FIXED_BYTES) / ENTRY_BYTES;
/// Smallest possible file, bytes.
pub(super) const FILE_BYTES_MIN: u64 = SUPERBLOCK_BYTES + REGIONS_MIN as u64 * REGION_BYTES_MIN as u64;

const FILE_MAGIC: [u8; 8] = *b"GLIDECLF";
const REGION_MAGIC: [u8; 8] = *b"GLIDECLR";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const REGION_BYTES_MIN: u32 = 256 << 10;
const REGION_BYTES_MAX: u32 = 4 << 20;
/// One is filled and one written; the others hold something.
const REGIONS_MIN: u32 = 8;
/// In a file of so many regions or more, the regions have the longest length.
const REGIONS_USUAL: u64 = 64;

/// How a file is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Length of a region including the header, bytes. A power of two.
    pub region_bytes: u32,
    /// Number of regions in the file.
    pub regions: u32,
}

impl Geometry {
    /// The geometry of a file of at most `file_bytes`; `None` when the file would be too small.
    pub fn within(file_bytes: u64) -> Option<Self> {
        let body_bytes = file_bytes.checked_sub(SUPERBLOCK_BYTES)?;
        let wanted = u32::try_from(body_bytes / REGIONS_USUAL).unwrap_or(u32::MAX).max(1);
        let region_bytes = (1_u32 << wanted.ilog2()).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let regions = u32::try_from(body_bytes / u64::from(region_bytes)).unwrap_or(u32::MAX);
        (regions >= REGIONS_MIN).then_some(Self { region_bytes, regions })
    }

    /// Length of the file, bytes.
    pub fn file_bytes(&self) -> u64 {
        // Both are 32 bits wide.
        SUPERBLOCK_BYTES + u64::from(self.regions) * u64::from(self.region_bytes)
    }

    /// Where a region begins, bytes.
    pub fn offset(&self, region: u32) -> u64 {
        SUPERBLOCK_BYTES + u64::from(region) * u64::from(self.region_bytes)
    }

    /// The superblock of such a file.
    pub fn superblock(&self) -> [u8; FIXED_BYTES] {
        fixed(FILE_MAGIC, self.region_bytes, 0, &[])
    }
}

/// A block in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionEntry {
    /// Digest of the block's pack and offset.
    pub digest: u64,
    /// Where the block begins, bytes from the start of the region.
    pub at: u32,
    /// Length of the block, bytes.
    pub len: u32,
}

/// The header of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegionHeader {
    /// Regions with a higher one were filled later.
    pub sequence: u64,
    pub entries: Vec<RegionEntry>,
}

impl RegionHeader {
    /// As bytes, at most [`HEADER_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let listed = self.entries.get(..ENTRIES_MAX).unwrap_or(&self.entries);
        let entries: Vec<u8> = listed.iter().flat_map(entry_bytes).collect();
        // ENTRIES_MAX fits.
        let count = u32::try_from(listed.len()).unwrap_or(0);
        let mut bytes = fixed(REGION_MAGIC, count, self.sequence, &entries).to_vec();
        bytes.extend_from_slice(&entries);
        bytes
    }

    /// Reads a header. `None`: the header is damaged, or no header was written.
    pub fn decode(bytes: &[u8], region_bytes: u32) -> Option<Self> {
        let (begin, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let count = u32::from_le_bytes(*begin[12..].first_chunk()?);
        let sequence = u64::from_le_bytes(*begin[16..].first_chunk()?);
        let entries = rest.get(..usize::try_from(count).ok()?.checked_mul(ENTRY_BYTES)?)?;
        if *begin != fixed(REGION_MAGIC, count, sequence, entries) {
            return None;
        }
        let places = HEADER_BYTES..=region_bytes;
        let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter().map(|bytes| {
            let entry = RegionEntry {
                digest: u64::from_le_bytes(*bytes.first_chunk()?),
                at: u32::from_le_bytes(*bytes[8..].first_chunk()?),
                len: u32::from_le_bytes(*bytes[12..].first_chunk()?),
            };
            let end = entry.at.checked_add(entry.len)?;
            let length_is_good = (1..=BLOCK_BYTES_MAX).contains(&(entry.len as usize));
            (length_is_good && places.contains(&entry.at) && places.contains(&end)).then_some(entry)
        });
        Some(Self { sequence, entries: entries.collect::<Option<_>>()? })
    }
}

fn entry_bytes(entry: &RegionEntry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(&entry.digest.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.at.to_le_bytes());
    bytes[12..].copy_from_slice(&entry.len.to_le_bytes());
    bytes
}

/// The fields that both structures begin with. The checksum covers these fields and `rest`.
fn fixed(magic: [u8; 8], number: u32, sequence: u64, rest: &[u8]) -> [u8; FIXED_BYTES] {
    let mut bytes = [0; FIXED_BYTES];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32c(&[&bytes[..24], rest].concat());
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// `bytes` as a header with a matching count and checksum: the sequence number, then as many entries as fit.
#[cfg(any(test, fuzzing))]
pub(super) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (sequence, entries) = bytes.split_at(bytes.len().min(8));
    let sequence = sequence.iter().fold(0, |sequence, byte| sequence << 8 | u64::from(*byte));
    let count = (entries.len() / ENTRY_BYTES).min(ENTRIES_MAX);
    let entries = entries.get(..count * ENTRY_BYTES).unwrap_or_default();
    [&fixed(REGION_MAGIC, u32::try_from(count).unwrap_or(0), sequence, entries)[..], entries].concat()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::fuzzing::check_region;
    use super::*;

    const REGION: u32 = 1 << 20;

    fn header() -> impl Strategy<Value = RegionHeader> {
        let entry = (any::<u64>(), HEADER_BYTES..REGION - BLOCK_BYTES_MAX as u32, 1..=BLOCK_BYTES_MAX as u32);
        let entry = entry.prop_map(|(digest, at, len)| RegionEntry { digest, at, len });
        (any::<u64>(), vec(entry, 0..ENTRIES_MAX))
            .prop_map(|(sequence, entries)| RegionHeader { sequence, entries })
    }

    proptest! {
        #[test]
        fn a_header_reads_back_and_no_flipped_bit_passes(header in header(), bit: proptest::sample::Index) {
            let mut bytes = header.encode();
            prop_assert!(bytes.len() <= HEADER_BYTES as usize);
            let bit = bit.index(bytes.len() * 8);
            bytes.resize(HEADER_BYTES as usize, 0xa5);
            prop_assert_eq!(RegionHeader::decode(&bytes, REGION), Some(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(RegionHeader::decode(&bytes, REGION), None);
        }

        #[test]
        fn any_bytes_may_be_read(bytes in vec(any::<u8>(), 0..200), header in header()) {
            prop_assert_eq!(RegionHeader::decode(&bytes, REGION), None);
            check_region(&bytes);
            let bytes = header.encode();
            prop_assert!(check_region(&[&header.sequence.to_be_bytes()[..], &bytes[FIXED_BYTES..]].concat()));
        }

        #[test]
        fn a_place_outside_of_the_region_is_refused(at: u32, len: u32) {
            let good = at >= HEADER_BYTES
                && (1..=BLOCK_BYTES_MAX as u32).contains(&len)
                && u64::from(at) + u64::from(len) <= u64::from(REGION);
            let bytes = RegionHeader { sequence: 1, entries: vec![RegionEntry { digest: 7, at, len }] }.encode();
            prop_assert_eq!(RegionHeader::decode(&bytes, REGION).is_some(), good);
        }

        #[test]
        fn a_file_is_never_longer_than_it_may_be(file_bytes in 0_u64..1 << 46) {
            match Geometry::within(file_bytes) {
                None => prop_assert!(file_bytes < FILE_BYTES_MIN),
                Some(geometry) => {
                    prop_assert!(geometry.file_bytes() <= file_bytes);
                    prop_assert!(geometry.file_bytes() + u64::from(geometry.region_bytes) > file_bytes);
                }
            }
        }
    }
}
