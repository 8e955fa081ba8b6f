//! The free parts of an arena: tiles of 128 KiB which split into 2 × 64, 8 × 16 or 32 × 4 KiB and merge again.
//!
//! Owns the free lists, as indices: taking and giving back allocate nothing. Does not own memory, and deals in page numbers.
//! Invariants: a chunk of a class can be had exactly when an aligned run of that many free pages exists; the chunk given back
//! last is the first one taken; otherwise a split tile is used up before another tile is split.
//!
//! # How it works
//!
//! The chunks of one class which came from splitting the same larger chunk are a *group*. A group is in the list of its class
//! while some, but not all, of its chunks are free; when the last chunk comes back the group leaves the list and the larger chunk
//! is given back one class up. The list is in order of use: the group which was split, or to which a chunk was given back, last
//! is first, and inside a group a stack of two-bit numbers keeps the order in which chunks came back, even while chunks are
//! merged. So warm chunks are taken before cold ones, and the number of steps is bounded by the four classes.
//!
//! The chunk given back last is kept aside: a worker which serves one request at a time takes the same chunk again at once, and
//! would otherwise merge and split a tile for each request. The chunk is merged before anything else is taken or given.

use super::limits::BufferError;
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Bytes in a page, the unit of the arena and the smallest chunk.
pub(super) const PAGE_BYTES: usize = FRAME_BYTES;
/// Pages in a tile, the largest chunk.
pub(super) const TILE_PAGES: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SizeClass {
    // The number is the base-2 logarithm of the pages in a chunk, which saves a look-up.
    KiB4 = 0,
    KiB16 = 2,
    KiB64 = 4,
    KiB128 = 5,
}

const _: () = assert!(SizeClass::KiB128.bytes() == REQUEST_BYTES_MAX);

impl SizeClass {
    /// All classes, smallest first.
    pub(super) const ALL: [Self; 4] = [Self::KiB4, Self::KiB16, Self::KiB64, Self::KiB128];

    /// The smallest class that holds `len` bytes.
    #[inline]
    pub(super) fn for_len(len: usize) -> Result<Self, BufferError> {
        match len {
            0 => Err(BufferError::SlotLength { len }),
            _ if len <= Self::KiB4.bytes() => Ok(Self::KiB4),
            _ if len <= Self::KiB16.bytes() => Ok(Self::KiB16),
            _ if len <= Self::KiB64.bytes() => Ok(Self::KiB64),
            _ if len <= Self::KiB128.bytes() => Ok(Self::KiB128),
            _ => Err(BufferError::SlotLength { len }),
        }
    }

    /// Pages in a chunk, as a power of two.
    #[inline]
    const fn pages_log2(self) -> u32 {
        self as u32
    }

    /// Index of the class in [`Self::ALL`].
    const fn level(self) -> usize {
        match self {
            Self::KiB4 => 0,
            Self::KiB16 => 1,
            Self::KiB64 => 2,
            Self::KiB128 => 3,
        }
    }

    #[inline]
    pub(super) const fn pages(self) -> u32 {
        1 << self.pages_log2()
    }

    #[inline]
    pub(super) const fn bytes(self) -> usize {
        PAGE_BYTES << self.pages_log2()
    }

    /// The class from which a chunk of this class is split. A tile stands alone in its group.
    const fn parent(self) -> Self {
        match self {
            Self::KiB4 => Self::KiB16,
            Self::KiB16 => Self::KiB64,
            Self::KiB64 | Self::KiB128 => Self::KiB128,
        }
    }
}

/// A part of the arena which was taken. The owner of the chunk has the pages; a chunk cannot be copied, so no chunk is given
/// back twice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Number of the chunk's first page in the arena.
    pub(super) first_page: u32,
    pub(super) class: SizeClass,
}

#[cfg(test)]
impl Chunk {
    /// A chunk out of thin air.
    pub(super) fn new(first_page: u32, class: SizeClass) -> Self {
        Self { first_page, class }
    }
}

/// No group.
const NIL: u32 = u32::MAX;
/// Order of the four chunks of an unused group: number 0 is on top, number 3 at the bottom.
const ORDER_NEW: u8 = 0b11_10_01_00;
const ORDER_BITS: u32 = 2;
const ORDER_MASK: u8 = 0b11;

/// The chunks of one class inside one chunk of the next.
#[derive(Clone, Copy, Debug)]
struct Group {
    prev: u32,
    next: u32,
    /// Number of free chunks of the class.
    free: u8,
    /// The numbers of the free ones, two bits each, the one given back last in the lowest bits.
    order: u8,
}

/// All groups of one class.
#[derive(Debug)]
struct Level {
    groups: Box<[Group]>,
    /// The group used last of those in the list, or `NIL`.
    head: u32,
    /// Pages of a chunk and of a group, as powers of two.
    chunk_log2: u32,
    group_log2: u32,
    /// Selects the number of a chunk in its group.
    number_mask: u32,
    /// Number of free chunks at which a group merges; 0 for tiles, which never merge.
    whole: u8,
}

impl Level {
    fn new(class: SizeClass, tiles: u32) -> Self {
        let chunk_log2 = class.pages_log2();
        let group_log2 = class.parent().pages_log2();
        let fanout = 1u8 << (group_log2 - chunk_log2);
        let groups = tiles << (SizeClass::KiB128.pages_log2() - group_log2);
        let group = Group { prev: NIL, next: NIL, free: fanout, order: ORDER_NEW };
        Self {
            groups: vec![group; groups as usize].into_boxed_slice(),
            head: NIL,
            chunk_log2,
            group_log2,
            number_mask: u32::from(fanout) - 1,
            whole: if fanout == 1 { 0 } else { fanout },
        }
    }

    #[inline]
    fn group(&mut self, index: u32) -> &mut Group {
        &mut self.groups[index as usize]
    }

    /// Takes the chunk of a group which came back last: the chunk's first page, and the number of free chunks left.
    #[inline]
    fn pop(&mut self, index: u32) -> (u32, u8) {
        let (group_log2, chunk_log2) = (self.group_log2, self.chunk_log2);
        let group = self.group(index);
        let number = u32::from(group.order & ORDER_MASK);
        group.order >>= ORDER_BITS;
        group.free -= 1;
        ((index << group_log2) | (number << chunk_log2), group.free)
    }

    /// Puts a chunk back into its group: the group, and the number of free chunks now.
    #[inline]
    fn push(&mut self, first_page: u32) -> (u32, u8) {
        let index = first_page >> self.group_log2;
        // The mask leaves two bits at most.
        #[expect(clippy::cast_possible_truncation)]
        let number = ((first_page >> self.chunk_log2) & self.number_mask) as u8;
        let group = self.group(index);
        group.order = (group.order << ORDER_BITS) | number;
        group.free += 1;
        (index, group.free)
    }

    #[inline]
    fn link_first(&mut self, index: u32) {
        let next = self.head;
        let group = self.group(index);
        group.prev = NIL;
        group.next = next;
        if next != NIL {
            self.group(next).prev = index;
        }
        self.head = index;
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let Group { prev, next, .. } = *self.group(index);
        if next != NIL {
            self.group(next).prev = prev;
        }
        if prev == NIL {
            self.head = next;
        } else {
            self.group(prev).next = next;
        }
    }
}

/// The free parts of an arena of whole tiles.
#[derive(Debug)]
pub(super) struct Buddy {
    levels: [Level; 4],
    /// The chunk given back last, unless taken again.
    last: Option<Chunk>,
}

impl Buddy {
    /// An arena of `tiles` tiles, all free, the first one taken first.
    pub(super) fn new(tiles: u32) -> Self {
        let mut levels = SizeClass::ALL.map(|class| Level::new(class, tiles));
        for tile in (0..tiles).rev() {
            levels[SizeClass::KiB128.level()].link_first(tile);
        }
        Self { levels, last: None }
    }

    /// Takes a chunk of `class`, or `None` when no free part of the arena holds one.
    #[inline]
    pub(super) fn take(&mut self, class: SizeClass) -> Option<Chunk> {
        match self.last.take() {
            Some(last) if last.class == class => return Some(last),
            Some(last) => self.merge(last),
            None => {}
        }
        self.split(class)
    }

    #[inline]
    pub(super) fn give(&mut self, chunk: Chunk) {
        if let Some(last) = self.last.replace(chunk) {
            self.merge(last);
        }
    }

    /// Takes a chunk from the smallest free chunk which is large enough.
    fn split(&mut self, class: SizeClass) -> Option<Chunk> {
        let wanted = class.level();
        let found = (wanted..self.levels.len()).find(|&level| self.levels[level].head != NIL)?;
        let level = &mut self.levels[found];
        let group = level.head;
        let (mut first_page, left) = level.pop(group);
        if left == 0 {
            level.unlink(group);
        }
        // The chunk taken is a whole group of the class below. One chunk of the group is passed down.
        for level in self.levels[wanted..found].iter_mut().rev() {
            let group = first_page >> level.group_log2;
            (first_page, _) = level.pop(group);
            level.link_first(group);
        }
        Some(Chunk { first_page, class })
    }

    /// Merges a chunk with its siblings as far as the siblings are free.
    fn merge(&mut self, Chunk { mut first_page, class }: Chunk) {
        for level in &mut self.levels[class.level()..] {
            let (group, free) = level.push(first_page);
            if free == level.whole {
                level.unlink(group);
                first_page = group << level.group_log2;
                continue;
            }
            if free > 1 {
                if level.head == group {
                    return;
                }
                level.unlink(group);
            }
            level.link_first(group);
            return;
        }
    }
}

#[cfg(test)]
mod tests;
