//! Pages of a checkpoint: the sealed segments of a log, and the extents of each export in these segments.
//!
//! Owns the bytes of a page and the order of pages by number and chain. Does not own the file (`disk`), which segments and extents
//! a checkpoint may list (`keeper/checkpoint`), or which of these a start may use (`recovery/checkpoint`). Invariants: a decoder
//! answers an error for any bytes that the encoder did not produce for this cache, this place and the pages before; a page is
//! decoded without any other page; a page decodes to no more than a small multiple of the page's bytes.

mod extents;

pub use extents::{ExtentReader, ExtentRows, Kept, KeptExtent};

use super::{FORMAT_VERSION, FormatError, field, frame_crc};

/// Most bytes of a page.
pub const CHECKPOINT_PAGE_BYTES: usize = 64 * 1024;

const MAGIC: [u8; 8] = *b"GLIDECKP";

// Page. Integers are little-endian; the chain is the CRC of the page before, 0 in the first page.
//
//    0     8      10     12       16         32       36      40    ...
//   ┌─────┬──────┬──────┬────────┬──────────┬────────┬───────┬──────┬─────┐
//   │magic│vers. │ kind │ length │ cache id │ number │ chain │ body │ CRC │
//   └─────┴──────┴──────┴────────┴──────────┴────────┴───────┴──────┴─────┘
const KIND_AT: usize = 10;
const LEN_AT: usize = 12;
const CACHE_ID_AT: usize = 16;
const NUMBER_AT: usize = 32;
const CHAIN_AT: usize = 36;
const BODY_AT: usize = 40;
const CRC_BYTES: usize = 4;
/// Bytes of a page before the body: enough to know the length of the page.
pub const CHECKPOINT_HEADER_BYTES: usize = BODY_AT;
/// Most bytes of a body.
pub const CHECKPOINT_BODY_BYTES: usize = CHECKPOINT_PAGE_BYTES - BODY_AT - CRC_BYTES;

const TOO_LONG: FormatError = FormatError::Malformed("a page of a length that no page has");

/// The subject of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PageKind {
    /// The cache at the time of the checkpoint. The first page, and no other.
    Head = 1,
    /// Segments covered by the checkpoint.
    Covered = 2,
    /// Extents of one export in covered segments.
    Extents = 3,
    /// How far other segments were stable when the checkpoint was complete.
    Others = 4,
    /// The end of the checkpoint. The last page, and no other.
    End = 5,
}

impl PageKind {
    fn of(kind: u16) -> Option<Self> {
        [Self::Head, Self::Covered, Self::Extents, Self::Others, Self::End]
            .into_iter()
            .find(|known| *known as u16 == kind)
    }
}

/// The place of the next page in a checkpoint, for a writer and for a reader.
#[derive(Clone, Copy, Debug)]
pub struct PageChain {
    cache_id: [u8; 16],
    number: u32,
    chain: u32,
}

impl PageChain {
    /// The place of the first page of a checkpoint of cache `cache_id`.
    pub fn new(cache_id: [u8; 16]) -> Self {
        Self { cache_id, number: 0, chain: 0 }
    }

    /// The next page, with `body`. `None` for a body longer than [`CHECKPOINT_BODY_BYTES`], or after the last number.
    pub fn seal(&mut self, kind: PageKind, body: &[u8]) -> Option<Vec<u8>> {
        let len = BODY_AT.checked_add(body.len())?.checked_add(CRC_BYTES)?;
        let field = u32::try_from(len).ok().filter(|_| len <= CHECKPOINT_PAGE_BYTES)?;
        let mut page = Vec::with_capacity(len);
        page.extend_from_slice(&MAGIC);
        page.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        page.extend_from_slice(&(kind as u16).to_le_bytes());
        page.extend_from_slice(&field.to_le_bytes());
        page.extend_from_slice(&self.cache_id);
        page.extend_from_slice(&self.number.to_le_bytes());
        page.extend_from_slice(&self.chain.to_le_bytes());
        page.extend_from_slice(body);
        let crc = frame_crc(&page);
        page.extend_from_slice(&crc.to_le_bytes());
        self.number = self.number.checked_add(1)?;
        self.chain = crc;
        Some(page)
    }

    /// Length of the page that begins with `header`. Nothing else of the page is checked.
    pub fn page_len(header: &[u8; CHECKPOINT_HEADER_BYTES]) -> Result<usize, FormatError> {
        if header[..MAGIC.len()] != MAGIC {
            return Err(FormatError::Magic);
        }
        let len = u32::from_le_bytes(field(header, LEN_AT)) as usize;
        if (BODY_AT + CRC_BYTES..=CHECKPOINT_PAGE_BYTES).contains(&len) { Ok(len) } else { Err(TOO_LONG) }
    }

    /// The subject of the page that begins with `header`, which is not checked.
    pub fn page_kind(header: &[u8; CHECKPOINT_HEADER_BYTES]) -> Option<PageKind> {
        PageKind::of(u16::from_le_bytes(field(header, KIND_AT)))
    }

    /// The place of the page behind `page`, which is not checked.
    pub fn behind(&self, page: &[u8]) -> Result<Self, FormatError> {
        let chain = page.last_chunk::<CRC_BYTES>().map_or(0, |crc| u32::from_le_bytes(*crc));
        let number = self.number.checked_add(1).ok_or(TOO_LONG)?;
        Ok(Self { cache_id: self.cache_id, number, chain })
    }

    /// The body of a page that was checked.
    pub fn body(page: &[u8]) -> &[u8] {
        page.get(BODY_AT..page.len().saturating_sub(CRC_BYTES)).unwrap_or_default()
    }

    /// Checks `page`, which is to be the next page, and returns kind and body.
    pub fn open<'p>(&mut self, page: &'p [u8]) -> Result<(PageKind, &'p [u8]), FormatError> {
        let Some(header) = page.first_chunk::<CHECKPOINT_HEADER_BYTES>() else {
            return Err(FormatError::Length { found: page.len(), needed: CHECKPOINT_HEADER_BYTES });
        };
        let needed = Self::page_len(header)?;
        let Some((content, crc)) = page.split_last_chunk::<CRC_BYTES>().filter(|_| page.len() == needed)
        else {
            return Err(FormatError::Length { found: page.len(), needed });
        };
        let crc = u32::from_le_bytes(*crc);
        if frame_crc(content) != crc {
            return Err(FormatError::Checksum);
        }
        let version = u16::from_le_bytes(field(header, 8));
        if version != FORMAT_VERSION {
            return Err(FormatError::Version { found: version });
        }
        if field::<16>(header, CACHE_ID_AT) != self.cache_id {
            return Err(FormatError::Malformed("the page belongs to another cache"));
        }
        let found = u32::from_le_bytes(field(header, NUMBER_AT));
        if found != self.number {
            return Err(FormatError::Position { found, expected: self.number });
        }
        if u32::from_le_bytes(field(header, CHAIN_AT)) != self.chain {
            return Err(FormatError::Malformed("the page belongs to another checkpoint"));
        }
        let kind = Self::page_kind(header).ok_or(FormatError::Malformed("a page of an unknown kind"))?;
        *self = self.behind(page)?;
        Ok((kind, Self::body(page)))
    }
}

/// Bytes of a head that proves no losses.
const HEAD_BYTES: usize = 12;
/// The last byte of a head that does.
const PROVES_LOSSES: u8 = 1;

/// The body of the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Length of each segment of the cache in bytes.
    pub segment_bytes: u64,
    /// Number of the start which made the checkpoint.
    pub start: u32,
    /// The checkpoint is taken away before the file of a segment listed is put out of use. A version which did not do so wrote a shorter
    /// head.
    pub proves_losses: bool,
}

impl Head {
    /// The body of the first page, for this head.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEAD_BYTES + 1);
        body.extend_from_slice(&self.segment_bytes.to_le_bytes());
        body.extend_from_slice(&self.start.to_le_bytes());
        if self.proves_losses {
            body.push(PROVES_LOSSES);
        }
        body
    }

    /// Reads the body of the first page.
    pub fn decode(body: &[u8]) -> Result<Self, FormatError> {
        let (head, proves_losses) = match body.split_last() {
            Some((&PROVES_LOSSES, head)) if head.len() == HEAD_BYTES => (head, true),
            _ => (body, false),
        };
        let head = exactly::<HEAD_BYTES>(head)?;
        let (segment_bytes, start) = (field(head, 0), field(head, 8));
        let (segment_bytes, start) = (u64::from_le_bytes(segment_bytes), u32::from_le_bytes(start));
        Ok(Self { segment_bytes, start, proves_losses })
    }
}

/// A sealed segment, as the trailer describes the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoveredSegment {
    /// Which file, as a segment number.
    pub number: u32,
    /// Which use of the file, as a segment id.
    pub segment_id: u64,
    /// First frame of the footer, behind all records.
    pub footer_frame: u32,
    /// Length of the footer in bytes, padding included.
    pub footer_bytes: u32,
    /// CRC-32C of all bytes of the footer.
    pub footer_crc: u32,
}

/// The end of some frames in a segment. In a checkpoint: how far a segment was stable whose records the checkpoint does not cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file, as a segment number.
    pub number: u32,
    /// Which use of the file, as a segment id.
    pub segment_id: u64,
    /// One past the last frame.
    pub end: u32,
}

/// A row of fixed length in the body of a page.
pub trait Row: Sized {
    /// Bytes that each row takes in a body.
    const BYTES: usize;
    /// Adds the bytes of the row to `body`.
    fn put(&self, body: &mut Vec<u8>);
    /// Reads a row of [`Self::BYTES`] bytes.
    fn get(bytes: &[u8]) -> Self;
}

impl Row for CoveredSegment {
    const BYTES: usize = 24;

    fn put(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.number.to_le_bytes());
        body.extend_from_slice(&self.segment_id.to_le_bytes());
        for field in [self.footer_frame, self.footer_bytes, self.footer_crc] {
            body.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn get(bytes: &[u8]) -> Self {
        let short = |at| u32::from_le_bytes(field(bytes, at));
        Self {
            number: short(0),
            segment_id: u64::from_le_bytes(field(bytes, 4)),
            footer_frame: short(12),
            footer_bytes: short(16),
            footer_crc: short(20),
        }
    }
}

impl Row for Place {
    const BYTES: usize = 16;

    fn put(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.number.to_le_bytes());
        body.extend_from_slice(&self.segment_id.to_le_bytes());
        body.extend_from_slice(&self.end.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        let short = |at| u32::from_le_bytes(field(bytes, at));
        Self { number: short(0), segment_id: u64::from_le_bytes(field(bytes, 4)), end: short(12) }
    }
}

/// Bodies for `rows`, as many rows in each as fit.
pub fn encode_rows<R: Row>(rows: &[R]) -> impl Iterator<Item = Vec<u8>> {
    rows.chunks(CHECKPOINT_BODY_BYTES / R::BYTES).map(|rows| {
        let mut body = Vec::with_capacity(rows.len().saturating_mul(R::BYTES));
        for row in rows {
            row.put(&mut body);
        }
        body
    })
}

/// The rows in the body of a page.
pub fn decode_rows<R: Row>(body: &[u8]) -> Result<impl Iterator<Item = R>, FormatError> {
    if body.is_empty() || !body.len().is_multiple_of(R::BYTES) {
        return Err(FormatError::Malformed("a page without rows, or with a part of a row"));
    }
    Ok(body.chunks_exact(R::BYTES).map(R::get))
}

/// The body of the last page: the number of extents in the checkpoint.
pub fn encode_end(extents: u64) -> [u8; 8] {
    extents.to_le_bytes()
}

/// Reads the body of the last page.
pub fn decode_end(body: &[u8]) -> Result<u64, FormatError> {
    Ok(u64::from_le_bytes(*exactly::<8>(body)?))
}

fn exactly<const N: usize>(body: &[u8]) -> Result<&[u8; N], FormatError> {
    body.try_into().map_err(|_| FormatError::Length { found: body.len(), needed: N })
}

#[cfg(test)]
mod tests;
