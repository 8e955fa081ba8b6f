//! A packed leaf: extents in one block of memory, each number as the low bytes that differ within the leaf.
//!
//! Owns the memory layout. An extent of a log full of writes of 16 KiB mostly takes 6 bytes where the writes came in order, and 12 where
//! the writes came in any order; an open leaf takes 32. Invariants: a packed leaf is not empty, and never changes; every extent is found
//! by the place alone, without a look at the others; the block takes no more memory than an open leaf of the same extents.

use allocator_api2::vec::Vec;

use super::{Item, LEAF_ITEMS_MAX};
use crate::cache::volume::cells::{CELL_BYTES_MAX, Cells, cell_bytes};
use crate::cache::volume::extent::Backing;
use crate::units::Seq;

// Block. Integers are little-endian. A column has `width` bytes for each extent, the low ones of the number; all else of the number is
// the column's base, alike in all extents of the leaf. A column of width 0 is not there: all numbers are the base.
//
//    0        1        7       8                  56
//   ┌────────┬────────┬───────┬──────────────────┬────────┬────────┬────┬───────┐
//   │ number │ 6      │ 0     │ 6 bases, 8 bytes │ column │ column │ .. │ slack │
//   │ of ext.│ widths │       │ each             │ 0      │ 1      │    │       │
//   └────────┴────────┴───────┴──────────────────┴────────┴────────┴────┴───────┘
//
// The slack lets each number be loaded as 8 bytes.
const COLUMNS: usize = 6;
const WIDTHS_AT: usize = 1;
const BASES_AT: usize = 8;
const COLUMNS_AT: usize = BASES_AT + COLUMNS * WORD_BYTES;
const WORD_BYTES: usize = 8;
/// Start and sequence number have 64 bits each, count, segment and sector 32 bits each, and the kind has 8 at most.
const ITEM_BYTES_MAX: usize = 2 * 8 + 3 * 4 + 1;
/// From so many extents on the widest numbers take no more memory than in an open leaf.
pub(super) const ITEMS_MIN: usize = 24;
const BYTES_MAX: usize = COLUMNS_AT + LEAF_ITEMS_MAX * ITEM_BYTES_MAX + WORD_BYTES;
const _: () = assert!(BYTES_MAX <= CELL_BYTES_MAX, "the heap serves no leaf");

const START: usize = 0;
const SEQ: usize = 1;
const COUNT: usize = 2;
const NUMBER: usize = 3;
const SECTOR: usize = 4;
const KIND: usize = 5;

const KIND_DATA: u64 = 0;
const KIND_ZERO: u64 = 1;
const KIND_DAMAGED: u64 = 2;
const KIND_DOUBT: u64 = 3;

/// Number of starts of which the last one is looked at first.
const GROUP_STARTS: usize = 8;

fn sector_of(item: &Item) -> u64 {
    if let Backing::Data { sector, .. } = item.backing { sector.into() } else { 0 }
}

fn kind_of(item: &Item) -> u64 {
    match item.backing {
        Backing::Data { .. } => KIND_DATA,
        Backing::Zero { .. } => KIND_ZERO,
        Backing::Damaged { .. } => KIND_DAMAGED,
        Backing::Doubt { .. } => KIND_DOUBT,
    }
}

/// Bytes of `number` without zeroes at the high end.
fn width_of(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()).div_ceil(u8::BITS) as usize
}

/// `number` without the low `width` bytes.
fn high_of(number: u64, width: usize) -> u64 {
    number & !low_mask(width)
}

/// The bits of the low `width` bytes.
fn low_mask(width: usize) -> u64 {
    let unused_bits = WORD_BYTES.saturating_sub(width).saturating_mul(8);
    u32::try_from(unused_bits).ok().and_then(|bits| u64::MAX.checked_shr(bits)).unwrap_or(0)
}

#[derive(Debug)]
pub(in crate::cache::volume::index) struct Packed(Vec<u8, Cells>);

/// A block that is made.
struct Block<'a> {
    items: &'a [Item],
    bytes: [u8; BYTES_MAX],
    /// End of the last column.
    end: usize,
}

impl Block<'_> {
    /// Adds the column of the numbers that `number` gives.
    #[inline]
    fn add(&mut self, column: usize, number: impl Fn(&Item) -> u64) {
        let first = self.items.first().map_or(0, &number);
        let differing = self.items.iter().fold(0, |bits, item| bits | (number(item) ^ first));
        let width = width_of(differing);
        let base = high_of(first, width);
        self.bytes[WIDTHS_AT + column] = width.to_le_bytes()[0];
        self.bytes[BASES_AT + column * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&base.to_le_bytes());
        // `BYTES_MAX` is room for the widest numbers of all columns, and the slack.
        let end = self.end + self.items.len() * width;
        put(&mut self.bytes[self.end..end], width, self.items.iter().map(number));
        self.end = end;
    }
}

/// Writes the low `width` bytes of each of `numbers` into `column`.
#[inline]
fn put(column: &mut [u8], width: usize, numbers: impl Iterator<Item = u64>) {
    #[inline]
    fn each<const WIDTH: usize>(column: &mut [u8], numbers: impl Iterator<Item = u64>) {
        for (place, number) in column.as_chunks_mut::<WIDTH>().0.iter_mut().zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes()[..WIDTH]);
        }
    }
    match width {
        0 => {}
        1 => each::<1>(column, numbers),
        2 => each::<2>(column, numbers),
        3 => each::<3>(column, numbers),
        4 => each::<4>(column, numbers),
        5 => each::<5>(column, numbers),
        6 => each::<6>(column, numbers),
        7 => each::<7>(column, numbers),
        _ => each::<8>(column, numbers),
    }
}

impl Packed {
    /// A leaf of `items`, by ascending start. `None` of fewer items than [`ITEMS_MIN`], or of more than [`LEAF_ITEMS_MAX`].
    pub(super) fn of(items: &[Item]) -> Option<Self> {
        let count =
            u8::try_from(items.len()).ok().filter(|_| (ITEMS_MIN..=LEAF_ITEMS_MAX).contains(&items.len()))?;
        let mut block = Block { items, bytes: [0; BYTES_MAX], end: COLUMNS_AT };
        block.bytes[0] = count;
        block.add(START, |item| item.start);
        block.add(SEQ, |item| item.seq.0);
        block.add(COUNT, |item| item.count.into());
        block.add(NUMBER, |item| item.backing.number().into());
        block.add(SECTOR, sector_of);
        block.add(KIND, kind_of);
        let used = &block.bytes[..block.end + WORD_BYTES];
        let mut bytes = Vec::with_capacity_in(used.len(), Cells);
        // `extend_from_slice` of this crate copies byte by byte.
        bytes.resize(used.len(), 0);
        bytes.copy_from_slice(used);
        Some(Self(bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.0.first().copied().unwrap_or(0).into()
    }

    /// Memory that the block takes.
    pub(super) fn bytes(&self) -> usize {
        cell_bytes(self.0.len())
    }

    pub(super) fn view(&self) -> View<'_> {
        let (bytes, len) = (&*self.0, self.len());
        let mut at = COLUMNS_AT;
        let columns = std::array::from_fn(|column| {
            let width = usize::from(bytes.get(WIDTHS_AT + column).copied().unwrap_or(0));
            let found = Column { at, width };
            at += len * width;
            found
        });
        View { bytes, len, columns }
    }
}

#[derive(Clone, Copy)]
struct Column {
    at: usize,
    width: usize,
}

/// Finds the numbers of a packed leaf.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    bytes: &'a [u8],
    len: usize,
    columns: [Column; COLUMNS],
}

impl View<'_> {
    fn word(self, at: usize) -> u64 {
        // Every place asked for is in the block, with the slack.
        let word = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk::<WORD_BYTES>());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// The number of extent `at` in `column`.
    fn number(self, column: usize, at: usize) -> u64 {
        let base = self.word(BASES_AT + column * WORD_BYTES);
        let Column { at: first, width } = self.columns[column];
        base | (self.word(first + at * width) & low_mask(width))
    }

    pub(super) fn get(self, at: usize) -> Option<Item> {
        if at >= self.len {
            return None;
        }
        // The numbers were of 32 bits when the leaf was packed.
        let short = |column| u32::try_from(self.number(column, at)).unwrap_or(u32::MAX);
        let number = short(NUMBER);
        let backing = match self.number(KIND, at) {
            KIND_DATA => Backing::Data { number, sector: short(SECTOR) },
            KIND_ZERO => Backing::Zero { number },
            KIND_DOUBT => Backing::Doubt { number },
            _ => Backing::Damaged { number },
        };
        let (start, seq) = (self.number(START, at), Seq(self.number(SEQ, at)));
        Some(Item { start, seq, count: short(COUNT), backing })
    }

    pub(super) fn count_before(self, sector: u64) -> usize {
        let before = |at| usize::from(self.number(START, at) < sector);
        // As in an open leaf, no branch is guessed.
        let last_of = |group: usize| group * GROUP_STARTS + GROUP_STARTS - 1;
        let whole: usize = (0..self.len / GROUP_STARTS).map(|group| before(last_of(group))).sum();
        let first = whole * GROUP_STARTS;
        first + (first..self.len.min(first + GROUP_STARTS)).map(before).sum::<usize>()
    }
}
