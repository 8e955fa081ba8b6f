//! Encoder of packs: makes a pack of extents.
//!
//! Owns the cut of data into blocks, and compression. Does not own the choice of extents. Invariant: a pack holds every sector at
//! most once, and `verify_pack` accepts the pack.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "`admit` bounds the entries and bytes of a pack, and sectors to those of a `SectorRange`"
)]

use bytes::{Bytes, BytesMut};

use super::index::{self, Codec, IndexEntry};
use super::limits::{
    BLOCK_BYTES_MAX, BLOCK_SECTORS_MAX, ENTRIES_MAX, HASH_BYTES, PACK_BYTES_MAX, PACK_BYTES_TARGET,
    TRAILER_BYTES,
};
use super::pack::{encode_header, encode_trailer};
use super::pack_ref::PackRef;
use crate::checksum::crc32c;
use crate::store::ids::{PackId, VolumeId};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// Shorter pieces of a pack are copied together.
const PART_BYTES_MIN: usize = 16 * 1024;
/// Room for copied pieces, bytes.
const PART_BYTES: usize = 256 * 1024;
/// Level of zstd for data: the fastest.
const ZSTD_LEVEL: i32 = 1;
static ZEROES: [u8; BLOCK_BYTES_MAX] = [0; BLOCK_BYTES_MAX];

/// Options of a new pack.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// The volume of the data.
    pub volume: VolumeId,
    /// Identity of the pack, new and random.
    pub pack: PackId,
    /// How often the data was compacted.
    pub level: u8,
    /// First sequence number of the data, or a lower one.
    pub first_seq: Seq,
    /// Last sequence number of the data, or a higher one; not less than the first.
    pub last_seq: Seq,
}

/// Why the builder refused an extent. The builder is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The extent begins before the end of the last extent.
    #[error("extents of a pack must ascend and not overlap")]
    Order,
    /// The extent is empty, has a part of a sector, or ends beyond the last possible sector.
    #[error("an extent must have one or more whole sectors")]
    Unfit,
    /// The pack has no room for the extent: finish this pack and begin another.
    #[error("the pack is full")]
    Full,
}

/// A pack, ready to be created.
#[derive(Clone, Debug)]
pub struct EncodedPack {
    /// Bytes of the pack, in order.
    pub parts: Vec<Bytes>,
    /// The description for a manifest.
    pub pack: PackRef,
}

/// Makes a pack of extents in ascending order.
///
/// Neighbours are joined into blocks of up to [`BLOCK_BYTES_MAX`] that do not cross multiples of [`BLOCK_BYTES_MAX`]. Zeroed data
/// takes no block.
pub struct PackBuilder {
    options: PackOptions,
    compressor: ::zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
    hasher: blake3::Hasher,
    /// Finished parts, and the part that collects small pieces.
    parts: Vec<Bytes>,
    part: BytesMut,
    /// Bytes of the pack so far.
    offset_bytes: u64,
    entries: Vec<IndexEntry>,
    data_bytes: u64,
    /// Data of the block that may still grow: first sector, pieces, and length of the pieces.
    open_start: u64,
    open: Vec<Bytes>,
    open_bytes: usize,
    /// One past the last pushed sector.
    end: u64,
    /// Length at which the pack is full, bytes.
    full_bytes: u64,
}

crate::units::debug_by_name!(PackBuilder);

impl PackBuilder {
    /// An empty pack.
    ///
    /// # Errors
    /// When zstd does not know the level, or has no memory.
    pub fn new(options: PackOptions) -> std::io::Result<Self> {
        let mut builder = Self {
            options,
            compressor: ::zstd::bulk::Compressor::new(ZSTD_LEVEL)?,
            compressed: Vec::with_capacity(::zstd::zstd_safe::compress_bound(BLOCK_BYTES_MAX)),
            hasher: blake3::Hasher::new(),
            parts: Vec::new(),
            part: BytesMut::new(),
            offset_bytes: 0,
            entries: Vec::new(),
            data_bytes: 0,
            open_start: 0,
            open: Vec::new(),
            open_bytes: 0,
            end: 0,
            full_bytes: PACK_BYTES_TARGET,
        };
        builder.put(&encode_header(options.volume, options.pack));
        Ok(builder)
    }

    /// The same builder, full at `bytes`.
    #[must_use]
    pub fn long(self, bytes: u64) -> Self {
        Self { full_bytes: bytes, ..self }
    }

    /// Adds data from sector `start` on.
    pub fn push_data(&mut self, start: u64, mut data: Bytes) -> Result<(), PushError> {
        let sectors = data.len() as u64 / SECTOR_BYTES;
        let range = self.admit(start, sectors, data.len() as u64)?;
        if !(data.len() as u64).is_multiple_of(SECTOR_BYTES) {
            return Err(PushError::Unfit);
        }
        let mut at = range.start();
        while !data.is_empty() {
            let room_sectors = BLOCK_SECTORS_MAX - at % BLOCK_SECTORS_MAX;
            // A block is far smaller than memory.
            let room = (room_sectors * SECTOR_BYTES) as usize;
            let piece = data.split_to(room.min(data.len()));
            let open_end = self.open_start + self.open_bytes as u64 / SECTOR_BYTES;
            if self.open_bytes > 0 && (open_end != at || at.is_multiple_of(BLOCK_SECTORS_MAX)) {
                self.close_block();
            }
            if self.open_bytes == 0 {
                self.open_start = at;
            }
            at += piece.len() as u64 / SECTOR_BYTES;
            self.open_bytes += piece.len();
            self.open.push(piece);
        }
        self.end = range.end();
        Ok(())
    }

    /// Adds a whole block of another pack, `entry` of that pack's index, as the block is. `stored` are the bytes of the block,
    /// compared with the checksum of the entry.
    pub fn push_block(&mut self, entry: &IndexEntry, stored: Bytes) -> Result<(), PushError> {
        if !entry.is_whole_block() || stored.len() as u64 != u64::from(entry.stored_bytes) {
            return Err(PushError::Unfit);
        }
        let data_bytes = entry.plain_bytes() as u64;
        let range = self.admit(entry.range.start(), entry.range.count(), data_bytes)?;
        self.close_block();
        self.entries.push(IndexEntry { offset_bytes: self.offset_bytes, ..*entry });
        self.put_bytes(stored);
        self.data_bytes += data_bytes;
        self.end = range.end();
        Ok(())
    }

    /// Adds zeroes, or a discarded range.
    pub fn push_zero(&mut self, range: SectorRange) -> Result<(), PushError> {
        let range = self.admit(range.start(), range.count(), 0)?;
        self.close_block();
        self.add_zero(range);
        self.end = range.end();
        Ok(())
    }

    /// Length of the pack so far without the index, bytes. Data that is not compressed yet counts in full.
    pub fn bytes(&self) -> u64 {
        self.offset_bytes + self.open_bytes as u64
    }

    /// Whether the pack is as long as packs should be.
    pub fn is_full(&self) -> bool {
        self.bytes() >= self.full_bytes || self.entries.len() >= ENTRIES_MAX / 2
    }

    /// The pack, or `None` when nothing was pushed.
    pub fn finish(mut self) -> Option<EncodedPack> {
        self.close_block();
        let lowest_sector = self.entries.first()?.range.start();
        let index_offset_bytes = self.offset_bytes;
        let (index, index_plain_bytes) = index::encode(&self.entries);
        self.put(&index);
        let mut index_hash = [0; HASH_BYTES];
        index_hash.copy_from_slice(&index[index.len() - HASH_BYTES..]);
        let pack = PackRef {
            volume: self.options.volume,
            pack: self.options.pack,
            total_bytes: self.offset_bytes + TRAILER_BYTES as u64,
            index_offset_bytes,
            // ENTRIES_MAX bounds both.
            index_stored_bytes: index.len() as u32,
            index_plain_bytes,
            index_hash: PackRef::truncated(&index_hash),
            lowest_sector,
            highest_sector: self.end - 1,
            level: self.options.level,
            data_bytes: self.data_bytes,
            entries: self.entries.len() as u32,
        };
        let PackOptions { first_seq, last_seq, .. } = self.options;
        self.put(&encode_trailer(&pack, &index_hash, [first_seq, last_seq]));
        let hash = self.hasher.finalize();
        self.put(hash.as_bytes());
        self.parts.push(self.part.freeze());
        Some(EncodedPack { parts: self.parts, pack })
    }

    /// Whether an extent may be added, as a range.
    fn admit(&self, start: u64, sectors: u64, data_bytes: u64) -> Result<SectorRange, PushError> {
        let range = SectorRange::new(start, sectors).filter(|range| !range.is_empty());
        let range = range.ok_or(PushError::Unfit)?;
        if start < self.end {
            return Err(PushError::Order);
        }
        // The open block, a block at each end, and those between.
        let entries = self.entries.len() as u64 + 3 + data_bytes / BLOCK_BYTES_MAX as u64;
        let rest_bytes = (ENTRIES_MAX * 40 + TRAILER_BYTES) as u64;
        if entries > ENTRIES_MAX as u64 || self.bytes() + data_bytes > PACK_BYTES_MAX - rest_bytes {
            return Err(PushError::Full);
        }
        Ok(range)
    }

    /// Writes the block that was growing.
    fn close_block(&mut self) {
        let Some(last) = self.open.pop() else { return };
        let plain = if self.open.is_empty() {
            last
        } else {
            let mut joined = BytesMut::with_capacity(self.open_bytes);
            self.open.drain(..).for_each(|piece| joined.extend_from_slice(&piece));
            joined.extend_from_slice(&last);
            joined.freeze()
        };
        self.open_bytes = 0;
        // `admit` has checked the extents of the block.
        let Some(range) = SectorRange::new(self.open_start, plain.len() as u64 / SECTOR_BYTES) else {
            return;
        };
        if plain[..] == ZEROES[..plain.len()] {
            return self.add_zero(range);
        }
        self.compressed.clear();
        let compressed = self.compressor.compress_to_buffer(&plain[..], &mut self.compressed);
        // Saving less than a sixteenth does not pay for the decompression.
        let small = compressed.is_ok_and(|bytes| bytes < plain.len() - plain.len() / 16);
        let (offset_bytes, plain_crc) = (self.offset_bytes, crc32c(&plain));
        self.data_bytes += plain.len() as u64;
        let (codec, stored_crc) = if small {
            let compressed = std::mem::take(&mut self.compressed);
            self.put(&compressed);
            self.compressed = compressed;
            (Codec::Zstd, crc32c(&self.compressed))
        } else {
            self.put_bytes(plain);
            (Codec::Stored, plain_crc)
        };
        // At most BLOCK_BYTES_MAX.
        let stored_bytes = (self.offset_bytes - offset_bytes) as u32;
        self.entries.push(IndexEntry { range, codec, offset_bytes, stored_bytes, stored_crc, plain_crc });
    }

    fn add_zero(&mut self, range: SectorRange) {
        if let Some(last) = self.entries.last_mut()
            && last.codec == Codec::Zero
            && last.range.end() == range.start()
            && let Some(joined) = SectorRange::new(last.range.start(), last.range.count() + range.count())
        {
            last.range = joined;
            return;
        }
        let (codec, offset_bytes) = (Codec::Zero, self.offset_bytes);
        let entry = IndexEntry { range, codec, offset_bytes, stored_bytes: 0, stored_crc: 0, plain_crc: 0 };
        self.entries.push(entry);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.offset_bytes += bytes.len() as u64;
        if self.part.capacity() - self.part.len() < bytes.len() {
            self.close_part();
            self.part.reserve(bytes.len().max(PART_BYTES));
        }
        self.part.extend_from_slice(bytes);
    }

    /// As [`Self::put`], without a copy of long pieces.
    fn put_bytes(&mut self, bytes: Bytes) {
        if bytes.len() < PART_BYTES_MIN {
            return self.put(&bytes);
        }
        self.hasher.update(&bytes);
        self.offset_bytes += bytes.len() as u64;
        self.close_part();
        self.parts.push(bytes);
    }

    fn close_part(&mut self) {
        if !self.part.is_empty() {
            self.parts.push(self.part.split().freeze());
        }
    }
}
