//! The body of a page of extents: numbers as differences from the extent before, in as few bytes as possible.
//!
//! Does not own the page. Invariants: the extents of a body ascend by first sector, and none reaches beyond the last sector or the
//! last place of a segment; each list of extents has one encoding.

use super::{CHECKPOINT_BODY_BYTES, FormatError, field};
use crate::units::{ExportId, SectorRange, Seq};

// Body of a page of extents.
//
//    0        4             12
//   ┌────────┬─────────────┬──────────┬──────────┬────┐
//   │ export │ last number │ extent 0 │ extent 1 │ .. │
//   └────────┴─────────────┴──────────┴──────────┴────┘
//
// Extent: varints, each a difference from the extent before, from zeroes in the first extent. A signed difference d is 2d, or
// -2d - 1 if d is negative.
//
//   ┌───────────────────┬──────────────┬───────┬────────────────┬───────────────────────────────────────────────────────┐
//   │ 4 × segment + kind│ first sector │ count │ sequence number│ kind data: sector in the segment − end of the one before│
//   └───────────────────┴──────────────┴───────┴────────────────┴───────────────────────────────────────────────────────┘
const ROWS_AT: usize = 12;
const VARINT_BYTES: usize = 10;
const EXTENT_BYTES: usize = 5 * VARINT_BYTES;
const KIND_DATA: u64 = 0;
const KIND_ZERO: u64 = 1;
const KIND_DAMAGED: u64 = 2;

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Bytes from this sector of the segment on.
    Data(u32),
    /// The sectors read as zeroes.
    Zero,
    /// Content lost by the disk.
    Damaged,
}

/// An extent in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptExtent {
    /// The sectors: 1 to `u32::MAX` of them.
    pub range: SectorRange,
    /// The write that gave the content.
    pub seq: Seq,
    /// Number of the segment with the write's entry.
    pub number: u32,
    /// Where the content is, if there is any.
    pub content: Kept,
}

/// The numbers from which the next extent differs.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    number: u32,
    start: u64,
    seq: u64,
    /// Sector behind the data of the last extent with data.
    sector: u32,
}

/// Gathers the extents of one export for a page.
#[derive(Debug)]
pub struct ExtentRows {
    body: Vec<u8>,
    before: Before,
}

impl ExtentRows {
    /// No extents of `export`, whose last sequence number given out is `last`.
    pub fn new(export: ExportId, last: Seq) -> Self {
        let mut body = Vec::with_capacity(CHECKPOINT_BODY_BYTES);
        body.extend_from_slice(&export.0.to_le_bytes());
        body.extend_from_slice(&last.0.to_le_bytes());
        Self { body, before: Before::default() }
    }

    /// Whether one more extent fits, whatever the extent.
    pub fn has_room(&self) -> bool {
        self.body.len() + EXTENT_BYTES <= CHECKPOINT_BODY_BYTES
    }

    /// Adds `extent`. `false`, and nothing is added, when there is no room, when `extent` starts before the last one, or when no
    /// decoder would accept `extent`.
    pub fn push(&mut self, extent: &KeptExtent) -> bool {
        let (before, start) = (self.before, extent.range.start());
        let Ok(count) = u32::try_from(extent.range.count()) else { return false };
        if !self.has_room() || start < before.start || !is_sound(extent) {
            return false;
        }
        let (kind, place) = match extent.content {
            Kept::Data(sector) => (KIND_DATA, Some(sector)),
            Kept::Zero => (KIND_ZERO, None),
            Kept::Damaged => (KIND_DAMAGED, None),
        };
        let number = i64::from(extent.number) - i64::from(before.number);
        put_varint(&mut self.body, fold(number) << 2 | kind);
        put_varint(&mut self.body, start - before.start);
        put_varint(&mut self.body, count.into());
        put_varint(&mut self.body, fold(extent.seq.0.wrapping_sub(before.seq).cast_signed()));
        if let Some(sector) = place {
            put_varint(&mut self.body, fold(i64::from(sector) - i64::from(before.sector)));
        }
        self.before = next(before, extent, count);
        true
    }

    /// The body of the page so far.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether no extent was added.
    pub fn is_empty(&self) -> bool {
        self.body.len() == ROWS_AT
    }
}

#[inline]
fn is_sound(extent: &KeptExtent) -> bool {
    let count = extent.range.count();
    let fits = match extent.content {
        Kept::Data(sector) => u32::try_from(u64::from(sector) + count).is_ok(),
        Kept::Zero | Kept::Damaged => true,
    };
    (1..=u64::from(u32::MAX)).contains(&count) && extent.seq > Seq(0) && fits
}

#[inline]
fn next(before: Before, extent: &KeptExtent, count: u32) -> Before {
    let sector = match extent.content {
        Kept::Data(sector) => sector.saturating_add(count),
        Kept::Zero | Kept::Damaged => before.sector,
    };
    Before { number: extent.number, start: extent.range.start(), seq: extent.seq.0, sector }
}

const SHORT: FormatError =
    FormatError::Malformed("an extent that is cut short, or not encoded as short as possible");
const RANGE: FormatError = FormatError::Malformed("an extent beyond the last sector, segment or place");
const KIND: FormatError = FormatError::Malformed("an extent of an unknown kind");

/// The extents in a body, by first sector. After an error nothing of the body is worth anything.
#[derive(Debug)]
pub struct ExtentReader<'b> {
    export: ExportId,
    last: Seq,
    body: &'b [u8],
    at: usize,
    before: Before,
}

impl<'b> ExtentReader<'b> {
    /// Reads the beginning of `body`, and no extent yet.
    pub fn new(body: &'b [u8]) -> Result<Self, FormatError> {
        if body.len() < ROWS_AT {
            return Err(FormatError::Length { found: body.len(), needed: ROWS_AT });
        }
        let export = ExportId(u32::from_le_bytes(field(body, 0)));
        let last = Seq(u64::from_le_bytes(field(body, 4)));
        Ok(Self { export, last, body, at: ROWS_AT, before: Before::default() })
    }

    /// The export, to which all extents of the body belong.
    pub fn export(&self) -> ExportId {
        self.export
    }

    /// The last sequence number that the export had given out.
    pub fn last_seq(&self) -> Seq {
        self.last
    }

    /// The numbers of the next extent, the place as 0 where there is none.
    #[inline]
    fn numbers(&mut self) -> Result<[u64; 5], FormatError> {
        // Most extents lie near the extent before: each number is a byte.
        if let Some(bytes) = self.body.get(self.at..).and_then(|rest| rest.first_chunk::<5>())
            && let [number_kind, start, count, seq, place] = bytes.map(u64::from)
            && (number_kind | start | count | seq | place) < 0x80
            && number_kind & 3 == KIND_DATA
        {
            self.at += bytes.len();
            return Ok([number_kind, start, count, seq, place]);
        }
        let mut varint = || take_varint(self.body, &mut self.at).ok_or(SHORT);
        let [number_kind, start, count, seq] = [varint()?, varint()?, varint()?, varint()?];
        let place = match number_kind & 3 {
            KIND_DATA => varint()?,
            KIND_ZERO | KIND_DAMAGED => 0,
            _ => return Err(KIND),
        };
        Ok([number_kind, start, count, seq, place])
    }

    #[inline]
    fn extent(&mut self) -> Result<KeptExtent, FormatError> {
        let [number_kind, start, count, seq, place] = self.numbers()?;
        let before = self.before;
        let number = i64::from(before.number).checked_add(unfold(number_kind >> 2));
        let number = number.and_then(|number| u32::try_from(number).ok()).ok_or(RANGE)?;
        let content = match number_kind & 3 {
            KIND_DATA => {
                let sector = i64::from(before.sector).checked_add(unfold(place));
                Kept::Data(sector.and_then(|sector| u32::try_from(sector).ok()).ok_or(RANGE)?)
            }
            KIND_ZERO => Kept::Zero,
            _ => Kept::Damaged,
        };
        let start = before.start.checked_add(start).ok_or(RANGE)?;
        let range = SectorRange::new(start, count).ok_or(RANGE)?;
        let seq = Seq(before.seq.wrapping_add_signed(unfold(seq)));
        let extent = KeptExtent { range, seq, number, content };
        let count = u32::try_from(count).map_err(|_| RANGE)?;
        if !is_sound(&extent) {
            return Err(RANGE);
        }
        self.before = next(before, &extent, count);
        Ok(extent)
    }
}

impl Iterator for ExtentReader<'_> {
    type Item = Result<KeptExtent, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.body.len()).then(|| self.extent())
    }
}

/// A signed number as an unsigned one, small if the number is near zero.
fn fold(number: i64) -> u64 {
    (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()
}

#[inline]
fn unfold(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The number at `at`, in the shortest encoding; `None` for any other bytes.
///
/// A byte at a time: the lengths of the numbers of one kind are much alike, so the branches are guessed and the next number is begun
/// before this one is known. To take a word and to count the bytes of the number in the word has no branch, and takes twice the time,
/// because the place of the next number waits for the count.
#[inline]
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(first.into());
    }
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return (byte != 0).then_some(number);
        }
    }
    None
}
