//! Which parts of an arena are free: blocks of 128 KiB that split into 2 × 64, 8 × 16 or 32 × 4 KiB and merge again.
//!
//! Owns the free lists, as indices: taking and giving back allocate nothing. Does not own memory; it deals in page
//! numbers. Invariants: a chunk of a class can be had exactly when an aligned run of that many free pages exists; the
//! chunk given back last is the first one taken; otherwise a block that is split already is used up before another one.
//!
//! # How it works
//!
//! The chunks of one class that came from splitting the same larger chunk are a *group*. A group is in its class's list
//! while some, but not all, of its chunks are free; when the last one comes back the group leaves the list and its chunk
//! is given back one class up. The list is in order of use: the group last given a chunk is first, and inside a group a
//! stack of two-bit numbers keeps the order in which chunks came back, even while they are merged. So warm chunks are
//! taken before cold ones, and the number of steps is bounded by the four classes.
//!
//! The chunk given back last is kept aside, because a worker that serves one request at a time takes it again at once,
//! and would otherwise merge and split a block for each of them. It is merged before anything else is taken or given.

use super::BufferError;
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Bytes in a page, the unit of the arena and the smallest chunk.
pub(super) const PAGE_BYTES: usize = FRAME_BYTES;
/// Pages in a block, the largest chunk.
pub(super) const BLOCK_PAGES: u32 = 32;

/// Sizes that chunks come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SizeClass {
    // The number is how many pages a chunk has, as a power of two, so that it need not be looked up.
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

    /// Its place in [`Self::ALL`].
    const fn level(self) -> usize {
        match self {
            Self::KiB4 => 0,
            Self::KiB16 => 1,
            Self::KiB64 => 2,
            Self::KiB128 => 3,
        }
    }

    /// Pages in a chunk.
    #[inline]
    pub(super) const fn pages(self) -> u32 {
        1 << self.pages_log2()
    }

    /// Bytes in a chunk.
    #[inline]
    pub(super) const fn bytes(self) -> usize {
        PAGE_BYTES << self.pages_log2()
    }

    /// The class a chunk of this one is split from: the largest stands alone in its group.
    const fn parent(self) -> Self {
        match self {
            Self::KiB4 => Self::KiB16,
            Self::KiB16 => Self::KiB64,
            Self::KiB64 | Self::KiB128 => Self::KiB128,
        }
    }
}

/// A part of the arena that was taken. Whoever has it has the pages; it cannot be copied, so not be given back twice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    first_page: u32,
    class: SizeClass,
}

impl Chunk {
    /// A chunk out of thin air.
    #[cfg(test)]
    pub(super) fn new(first_page: u32, class: SizeClass) -> Self {
        Self { first_page, class }
    }

    /// Number of its first page in the arena.
    #[inline]
    pub(super) fn first_page(&self) -> u32 {
        self.first_page
    }

    /// Its size.
    #[inline]
    pub(super) fn class(&self) -> SizeClass {
        self.class
    }
}

/// No group.
const NIL: u32 = u32::MAX;
/// Order of a group that was never used, four chunks: number 0 is on top, number 3 at the bottom.
const ORDER_NEW: u8 = 0b11_10_01_00;
const ORDER_BITS: u32 = 2;
const ORDER_MASK: u8 = 0b11;

/// The chunks of one class inside one chunk of the next.
#[derive(Clone, Copy, Debug)]
struct Group {
    prev: u32,
    next: u32,
    /// How many are free.
    free: u8,
    /// The numbers of the free ones, two bits each, the one given back last in the lowest bits.
    order: u8,
}

/// All groups of one class.
#[derive(Debug)]
struct Level {
    groups: Box<[Group]>,
    /// The group used last of those that are split, or `NIL`.
    head: u32,
    /// Pages of a chunk and of a group, as powers of two.
    chunk_log2: u32,
    group_log2: u32,
    /// Selects a chunk's number in its group.
    number_mask: u32,
    /// How many free chunks make a group whole, so that it merges. Blocks never do.
    whole: u8,
}

impl Level {
    fn new(class: SizeClass, blocks: u32) -> Self {
        let chunk_log2 = class.pages_log2();
        let group_log2 = class.parent().pages_log2();
        let fanout = 1u8 << (group_log2 - chunk_log2);
        let groups = blocks << (SizeClass::KiB128.pages_log2() - group_log2);
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

    /// Takes the chunk of a group that came back last: its first page, and how many are left.
    #[inline]
    fn pop(&mut self, index: u32) -> (u32, u8) {
        let (group_log2, chunk_log2) = (self.group_log2, self.chunk_log2);
        let group = self.group(index);
        let number = u32::from(group.order & ORDER_MASK);
        group.order >>= ORDER_BITS;
        group.free -= 1;
        ((index << group_log2) | (number << chunk_log2), group.free)
    }

    /// Puts a chunk back into its group: the group, and how many chunks of it are free now.
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

/// The free parts of an arena of whole blocks.
#[derive(Debug)]
pub(super) struct Buddy {
    levels: [Level; 4],
    /// The chunk given back last, unless it was taken again.
    last: Option<Chunk>,
}

impl Buddy {
    /// An arena of `blocks` blocks, all free, the first one taken first.
    pub(super) fn new(blocks: u32) -> Self {
        let mut levels = SizeClass::ALL.map(|class| Level::new(class, blocks));
        for block in (0..blocks).rev() {
            levels[SizeClass::KiB128.level()].link_first(block);
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

    /// Gives a chunk back.
    #[inline]
    pub(super) fn give(&mut self, chunk: Chunk) {
        if let Some(last) = self.last.replace(chunk) {
            self.merge(last);
        }
    }

    /// Takes a chunk from the smallest free chunk that holds one.
    fn split(&mut self, class: SizeClass) -> Option<Chunk> {
        let wanted = class.level();
        let found = (wanted..self.levels.len()).find(|&level| self.levels[level].head != NIL)?;
        let level = &mut self.levels[found];
        let group = level.head;
        let (mut first_page, left) = level.pop(group);
        if left == 0 {
            level.unlink(group);
        }
        // What was taken is a whole group of the class below, one chunk of which is passed down.
        for level in self.levels[wanted..found].iter_mut().rev() {
            let group = first_page >> level.group_log2;
            (first_page, _) = level.pop(group);
            level.link_first(group);
        }
        Some(Chunk { first_page, class })
    }

    /// Merges a chunk with its siblings as far as they are free.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plainest allocator: a flag a page.
    struct Model(Vec<bool>);

    impl Model {
        fn has_room(&self, class: SizeClass) -> bool {
            self.0.chunks(class.pages() as usize).any(|pages| pages.iter().all(|&free| free))
        }

        fn set(&mut self, chunk: &Chunk, free: bool) {
            let first = chunk.first_page as usize;
            for page in &mut self.0[first..first + chunk.class.pages() as usize] {
                assert_ne!(*page, free, "{chunk:?} overlaps another chunk");
                *page = free;
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(SizeClass),
        Give(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prop::sample::select(SizeClass::ALL.to_vec()).prop_map(Step::Take),
            2 => any::<prop::sample::Index>().prop_map(Step::Give),
        ]
    }

    fn take_all(buddy: &mut Buddy, class: SizeClass) -> Vec<Chunk> {
        std::iter::from_fn(|| buddy.take(class)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_chunk_can_be_had_exactly_when_an_aligned_run_of_free_pages_exists(
            blocks in 1u32..5,
            steps in prop::collection::vec(step(), 0..300),
        ) {
            let mut buddy = Buddy::new(blocks);
            let mut model = Model(vec![true; (blocks * BLOCK_PAGES) as usize]);
            let mut taken = Vec::new();
            for step in steps {
                match step {
                    Step::Take(class) => {
                        let expected = model.has_room(class);
                        let chunk = buddy.take(class);
                        prop_assert_eq!(chunk.is_some(), expected);
                        if let Some(chunk) = chunk {
                            prop_assert_eq!(chunk.class, class);
                            prop_assert_eq!(chunk.first_page % class.pages(), 0);
                            model.set(&chunk, false);
                            taken.push(chunk);
                        }
                    }
                    Step::Give(index) if !taken.is_empty() => {
                        let chunk = taken.swap_remove(index.index(taken.len()));
                        model.set(&chunk, true);
                        buddy.give(chunk);
                    }
                    Step::Give(_) => {}
                }
            }
            for chunk in taken {
                buddy.give(chunk);
            }
            prop_assert_eq!(take_all(&mut buddy, SizeClass::KiB128).len(), blocks as usize);
        }

        #[test]
        fn the_chunk_given_back_last_is_taken_first(steps in prop::collection::vec(step(), 1..100)) {
            let mut buddy = Buddy::new(3);
            let mut taken = Vec::new();
            for step in steps {
                match step {
                    Step::Take(class) => taken.extend(buddy.take(class)),
                    Step::Give(index) if !taken.is_empty() => {
                        let Chunk { first_page, class } = taken.swap_remove(index.index(taken.len()));
                        buddy.give(Chunk { first_page, class });
                        let again = buddy.take(class).expect("it was just given back");
                        prop_assert_eq!(again.first_page, first_page);
                        buddy.give(again);
                    }
                    Step::Give(_) => {}
                }
            }
        }
    }

    #[test]
    fn each_class_fills_the_arena_with_its_own_count_and_in_order() {
        for (class, count) in SizeClass::ALL.into_iter().zip([64, 16, 4, 2]) {
            let mut buddy = Buddy::new(2);
            let pages: Vec<u32> = take_all(&mut buddy, class).iter().map(Chunk::first_page).collect();
            assert_eq!(pages, (0..count).map(|n| n * class.pages()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn chunks_come_back_in_the_reverse_of_the_order_in_which_they_were_given() {
        for class in SizeClass::ALL {
            let mut buddy = Buddy::new(1);
            let taken = take_all(&mut buddy, class);
            let mut pages: Vec<u32> = taken.iter().map(Chunk::first_page).collect();
            for chunk in taken {
                buddy.give(chunk);
            }
            pages.reverse();
            let again: Vec<u32> = take_all(&mut buddy, class).iter().map(Chunk::first_page).collect();
            assert_eq!(again, pages);
        }
    }

    #[test]
    fn a_block_that_is_split_is_used_up_before_another_is_split() {
        let mut buddy = Buddy::new(4);
        for class in [SizeClass::KiB4, SizeClass::KiB16, SizeClass::KiB64, SizeClass::KiB4, SizeClass::KiB16]
        {
            assert!(buddy.take(class).is_some());
        }
        assert_eq!(take_all(&mut buddy, SizeClass::KiB128).len(), 3);
    }

    #[test]
    fn a_length_gets_the_smallest_class_that_holds_it() {
        for class in SizeClass::ALL {
            assert_eq!(SizeClass::for_len(class.bytes()).ok(), Some(class));
            assert_ne!(SizeClass::for_len(class.bytes() + 1).ok(), Some(class));
        }
        assert_eq!(SizeClass::for_len(1).ok(), Some(SizeClass::KiB4));
        assert!(SizeClass::for_len(0).is_err());
        assert!(SizeClass::for_len(REQUEST_BYTES_MAX + 1).is_err());
        assert!(SizeClass::for_len(usize::MAX).is_err());
    }
}
