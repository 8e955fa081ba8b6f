//! The index of a pack: the sectors of the pack, and the place of each block.
//!
//! Owns the encoding and the look-up. Does not own the blocks. Invariant: the entries of a decoded index ascend and do not
//! overlap, and the blocks lie one behind the other between the header and the index of the pack.

use super::cursor::{Cursor, put_varint};
use super::envelope::{begin, open, seal};
use super::error::FormatError;
use super::limits::{BLOCK_SECTORS_MAX, ENTRIES_MAX, HASH_BYTES, PACK_HEADER_BYTES};
use super::pack_ref::PackRef;
use super::zstd;
use crate::units::{SECTOR_BYTES, SectorRange};

pub(super) const MAGIC: [u8; 8] = *b"GLIDEIDX";
/// Fewest bytes of an entry in the columns: gap, count, codec.
pub(super) const ENTRY_BYTES_MIN: usize = 3;
/// Most bytes of an entry: two varints of a sector, the codec, a varint of a length, two CRCs.
pub(super) const ENTRY_BYTES_MAX: usize = 10 + 10 + 1 + 3 + 4 + 4;

// Index. The plain columns have no padding; a column has one value for each entry to which the column applies.
//
//    0     8    10   12        16             20
//   ┌─────┬─────┬────┬─────────┬──────────────┬──────────────────────┬────────┐
//   │magic│vers.│ .. │ entries │ plain length │ columns, zstd        │ BLAKE3 │
//   └─────┴─────┴────┴─────────┴──────────────┴──────────────────────┴────────┘
//   columns: gap to the end of the entry before · sectors · codec · stored length (zstd) · stored CRC (data) ·
//            plain CRC (zstd)

/// How an entry's content is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// There is no block: the sectors are zero.
    Zero = 0,
    /// The block is the data.
    Stored = 1,
    /// The block is the data, compressed.
    Zstd = 2,
}

/// A run of sectors in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The sectors of the entry. Not empty.
    pub range: SectorRange,
    /// How the pack keeps the sectors.
    pub codec: Codec,
    /// Where the block is, bytes from the start of the pack. For zeroes: where a block would be.
    pub offset_bytes: u64,
    /// Length of the block, bytes; 0 for zeroes.
    pub stored_bytes: u32,
    /// CRC-32C of the block; 0 for zeroes.
    pub stored_crc: u32,
    /// CRC-32C of the data; 0 for zeroes.
    pub plain_crc: u32,
}

impl IndexEntry {
    /// Where the block lies in the pack, to fetch the block.
    pub fn block(&self) -> std::ops::Range<u64> {
        self.offset_bytes..self.offset_bytes.saturating_add(self.stored_bytes.into())
    }

    /// Whether the entry is data of all sectors that a block there can have: then no neighbour could be joined with the block.
    pub fn is_whole_block(&self) -> bool {
        self.codec != Codec::Zero
            && self.range.count() == BLOCK_SECTORS_MAX
            && self.range.start().is_multiple_of(BLOCK_SECTORS_MAX)
    }

    /// The entry for a reader who wants the bytes of the block as they are, compressed or not.
    pub fn as_stored(&self) -> Self {
        Self { codec: Codec::Stored, plain_crc: self.stored_crc, ..*self }
    }

    /// Length of the data, bytes; 0 for zeroes, which may be longer than memory.
    pub fn plain_bytes(&self) -> usize {
        match self.codec {
            Codec::Zero => 0,
            // At most BLOCK_BYTES_MAX.
            Codec::Stored | Codec::Zstd => self.range.count().saturating_mul(SECTOR_BYTES) as usize,
        }
    }
}

/// A part of a looked-up range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The sectors of the part.
    pub range: SectorRange,
    /// Content of these sectors in the pack.
    pub kind: PieceKind<'a>,
}

/// Content of some sectors in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind<'a> {
    /// The sectors are in this block, which may begin before and end behind the sectors.
    Data(&'a IndexEntry),
    /// The sectors are zero in this pack.
    Zero,
    /// The pack has nothing for the sectors: look in an older pack.
    Absent,
}

/// The decoded entries of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackIndex {
    entries: Box<[IndexEntry]>,
}

/// The encoded index, and the length of the columns before compression.
pub(super) fn encode(entries: &[IndexEntry]) -> (Vec<u8>, u32) {
    let columns = columns(entries);
    // Neither can be longer: a builder holds at most ENTRIES_MAX entries.
    let (count, plain_bytes) = (entries.len() as u32, columns.len() as u32);
    let mut bytes = begin(MAGIC);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&plain_bytes.to_le_bytes());
    bytes.extend_from_slice(&zstd::compress(&columns));
    seal(&mut bytes);
    (bytes, plain_bytes)
}

pub(super) fn columns(entries: &[IndexEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len().saturating_mul(12));
    let mut end = 0;
    for entry in entries {
        // Entries ascend: the builder refuses others.
        put_varint(&mut bytes, entry.range.start().saturating_sub(end));
        end = entry.range.end();
    }
    for entry in entries {
        put_varint(&mut bytes, entry.range.count());
    }
    bytes.extend(entries.iter().map(|entry| entry.codec as u8));
    let of = |codecs: &'static [Codec]| entries.iter().filter(|entry| codecs.contains(&entry.codec));
    of(&[Codec::Zstd]).for_each(|entry| put_varint(&mut bytes, entry.stored_bytes.into()));
    bytes.extend(of(&[Codec::Stored, Codec::Zstd]).flat_map(|entry| entry.stored_crc.to_le_bytes()));
    bytes.extend(of(&[Codec::Zstd]).flat_map(|entry| entry.plain_crc.to_le_bytes()));
    bytes
}

/// The entries of `count` rows of columns, and the end of the last block.
pub(super) fn decode_columns(columns: &[u8], count: usize) -> Result<(Box<[IndexEntry]>, u64), FormatError> {
    const RANGE: FormatError = FormatError::Malformed("range of an index entry");
    let mut cursor = Cursor::new(columns);
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let range = SectorRange::new(cursor.varint()?, 0).ok_or(RANGE)?;
        entries.push(IndexEntry {
            range,
            codec: Codec::Zero,
            offset_bytes: 0,
            stored_bytes: 0,
            stored_crc: 0,
            plain_crc: 0,
        });
    }
    let mut end = 0_u64;
    for entry in &mut entries {
        let start = end.checked_add(entry.range.start()).ok_or(RANGE)?;
        let sectors = cursor.varint()?;
        entry.range = SectorRange::new(start, sectors).filter(|range| !range.is_empty()).ok_or(RANGE)?;
        end = entry.range.end();
    }
    for entry in &mut entries {
        entry.codec = match cursor.u8()? {
            0 => Codec::Zero,
            1 => Codec::Stored,
            2 => Codec::Zstd,
            _ => return Err(FormatError::Malformed("codec of an index entry")),
        };
        let [first, last] = [entry.range.start(), entry.range.end().saturating_sub(1)];
        let block = |sector: u64| sector.checked_div(BLOCK_SECTORS_MAX);
        if entry.codec != Codec::Zero && block(first) != block(last) {
            return Err(FormatError::Malformed("length of a block"));
        }
    }
    let mut offset_bytes = PACK_HEADER_BYTES as u64;
    for entry in &mut entries {
        let plain_bytes = entry.plain_bytes();
        let stored_bytes = match entry.codec {
            Codec::Zero => 0,
            Codec::Stored => plain_bytes as u64,
            Codec::Zstd => cursor.varint()?,
        };
        let shrank = (1..plain_bytes as u64).contains(&stored_bytes);
        if entry.codec == Codec::Zstd && !shrank {
            return Err(FormatError::Malformed("stored length of a block"));
        }
        entry.offset_bytes = offset_bytes;
        // At most BLOCK_BYTES_MAX.
        entry.stored_bytes = stored_bytes as u32;
        let end = offset_bytes.checked_add(stored_bytes);
        offset_bytes = end.ok_or(FormatError::Malformed("stored length of a block"))?;
    }
    for entry in entries.iter_mut().filter(|entry| entry.codec != Codec::Zero) {
        entry.stored_crc = cursor.u32()?;
        entry.plain_crc = entry.stored_crc;
    }
    for entry in entries.iter_mut().filter(|entry| entry.codec == Codec::Zstd) {
        entry.plain_crc = cursor.u32()?;
    }
    cursor.end()?;
    Ok((entries.into_boxed_slice(), offset_bytes))
}

impl PackIndex {
    /// Decodes the index of `pack`, and compares the index with the description `pack` from the manifest or the trailer.
    pub fn decode(bytes: &[u8], pack: &PackRef) -> Result<Self, FormatError> {
        let needed = u64::from(pack.index_stored_bytes);
        if bytes.len() as u64 != needed {
            return Err(FormatError::Length { found: bytes.len() as u64, needed });
        }
        let mut cursor = open(bytes, MAGIC)?;
        let hash = bytes.last_chunk::<HASH_BYTES>().ok_or(FormatError::Checksum)?;
        if !hash.starts_with(&pack.index_hash) {
            return Err(FormatError::Elsewhere("pack"));
        }
        let (count, plain_bytes) = (cursor.u32()?, cursor.u32()?);
        if count != pack.entries || plain_bytes != pack.index_plain_bytes {
            return Err(FormatError::Malformed("index and manifest disagree"));
        }
        let (count, plain_bytes) = (count as usize, plain_bytes as usize);
        let possible = count.saturating_mul(ENTRY_BYTES_MIN)..=count.saturating_mul(ENTRY_BYTES_MAX);
        if !(1..=ENTRIES_MAX).contains(&count) || !possible.contains(&plain_bytes) {
            return Err(FormatError::Malformed("length of the index"));
        }
        let columns = zstd::decompress(cursor.rest(), plain_bytes)?;
        let (entries, blocks_end) = decode_columns(&columns, count)?;
        let lowest = entries.first().map(|entry| entry.range.start());
        let highest = entries.last().map(|entry| entry.range.end().saturating_sub(1));
        if blocks_end != pack.index_offset_bytes
            || (lowest, highest) != (Some(pack.lowest_sector), Some(pack.highest_sector))
        {
            return Err(FormatError::Malformed("index and manifest disagree"));
        }
        Ok(Self { entries })
    }

    /// Memory for fetching and decoding the index of `pack`, bytes.
    pub fn load_bytes(pack: &PackRef) -> u64 {
        let decoded = u64::from(pack.entries).saturating_mul(size_of::<IndexEntry>() as u64);
        [pack.index_stored_bytes, pack.index_plain_bytes]
            .into_iter()
            .map(u64::from)
            .fold(decoded, u64::saturating_add)
    }

    /// The entries for sectors of `range`, at most `count_max` of these, and the sector from which on entries were left out.
    pub fn part(&self, range: SectorRange, count_max: usize) -> (Self, u64) {
        let first = self.entries.partition_point(|entry| entry.range.end() <= range.start());
        let entries = self.entries.get(first..).unwrap_or_default();
        let wanted = entries.partition_point(|entry| entry.range.start() < range.end());
        let (part, rest) = entries.split_at(wanted.min(count_max));
        let end = rest.first().map_or(u64::MAX, |entry| entry.range.start());
        (Self { entries: part.into() }, end)
    }

    /// All entries of the index, ascending.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Whether each sector from the first to the last has an entry.
    pub fn is_gapless(&self) -> bool {
        self.entries.windows(2).all(|pair| pair[0].range.end() == pair[1].range.start())
    }

    /// Memory of the index for caches, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>().saturating_add(size_of_val::<[IndexEntry]>(&self.entries))
    }

    /// Looks up `range`: pieces that ascend and cover the whole range.
    pub fn lookup(&self, range: SectorRange) -> impl Iterator<Item = Piece<'_>> {
        let mut next = self.entries.partition_point(|entry| entry.range.end() <= range.start());
        let mut at = range.start();
        std::iter::from_fn(move || {
            if at >= range.end() {
                return None;
            }
            let entry = self.entries.get(next).filter(|entry| entry.range.start() < range.end());
            let (end, kind) = match entry {
                None => (range.end(), PieceKind::Absent),
                Some(entry) if entry.range.start() > at => (entry.range.start(), PieceKind::Absent),
                Some(entry) => {
                    next = next.saturating_add(1);
                    let kind =
                        if entry.codec == Codec::Zero { PieceKind::Zero } else { PieceKind::Data(entry) };
                    (entry.range.end().min(range.end()), kind)
                }
            };
            let piece = SectorRange::new(at, end.saturating_sub(at)).map(|range| Piece { range, kind });
            at = end;
            piece
        })
    }
}
