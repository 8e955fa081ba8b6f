//! The memory of one pool: a single anonymous mapping, and the record of which of its pages are lent out.
//!
//! Owns the mapping, its residency and every `unsafe` block of the pool. Does not choose who gets which pages: that is
//! the allocator's business, and it is not trusted. Invariant: a page has at most one [`Lease`], whatever the allocator
//! asks for, so that a lease may hand out `&mut` to its bytes.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use super::buddy::{BLOCK_PAGES, Chunk, PAGE_BYTES, SizeClass};
use super::{BufferError, SLOTS_MAX};
use crate::units::REQUEST_BYTES_MAX;

// One word of the record stands for the pages of one block.
const _: () = assert!(BLOCK_PAGES == u32::BITS && BLOCK_PAGES as usize * PAGE_BYTES == REQUEST_BYTES_MAX);

/// Who decides what is lent out, and is told when it comes back.
pub(super) trait Lender {
    /// The pages of `chunk` are not lent out any more.
    fn returned(&self, chunk: Chunk);
}

/// A mapping of whole blocks, resident from the moment it is made.
#[derive(Debug)]
pub(super) struct Arena<L> {
    memory: Mapping,
    /// One bit a page, one word a block: set while a lease on the page lives.
    leased: Box<[Cell<u32>]>,
    lender: L,
}

impl<L: Lender> Arena<L> {
    /// Maps `blocks` blocks and touches every page from this thread, which decides the NUMA node they are on.
    pub(super) fn new(blocks: usize, lender: L) -> Result<Rc<Self>, BufferError> {
        if blocks == 0 || blocks > SLOTS_MAX {
            return Err(BufferError::SlotCount { slots: blocks });
        }
        let bytes = blocks.checked_mul(REQUEST_BYTES_MAX).ok_or(BufferError::SlotCount { slots: blocks })?;
        let memory = Mapping::new(bytes).map_err(|source| BufferError::Map { arena_bytes: bytes, source })?;
        memory.touch();
        Ok(Rc::new(Self { memory, leased: (0..blocks).map(|_| Cell::new(0)).collect(), lender }))
    }

    /// Address of the first byte, and length in bytes.
    pub(super) fn extent(&self) -> (*const u8, usize) {
        (self.memory.base.as_ptr().cast_const(), self.memory.bytes)
    }

    /// Who decides what is lent out.
    #[inline]
    pub(super) fn lender(&self) -> &L {
        &self.lender
    }

    /// Lends out the pages of `chunk` until the lease is dropped.
    ///
    /// # Panics
    /// When the pages are not all of one block of this arena, or one of them is lent out already: the allocator is
    /// wrong, and going on would let two requests share memory.
    #[inline]
    pub(super) fn lease(self: &Rc<Self>, chunk: Chunk) -> Lease<L> {
        let (block, bits) = place(&chunk);
        let word = &self.leased[block];
        if word.get() & bits != 0 {
            refuse(&chunk, "is lent out already, at least in part");
        }
        word.set(word.get() | bits);
        // SAFETY: `block` indexes `leased`, which has one word for each block of the mapping, and the pages end within
        // the block (`place` checked it), so the offset is inside the mapping.
        let start = unsafe { self.memory.base.add(chunk.first_page() as usize * PAGE_BYTES) };
        // At most REQUEST_BYTES_MAX.
        #[expect(clippy::cast_possible_truncation)]
        let bytes = chunk.class().bytes() as u32;
        Lease { start, bytes, bits, chunk: Some(chunk), arena: Rc::clone(self) }
    }
}

/// Ends the process: two requests would share memory. Takes copies, so that the chunk can stay in registers.
#[cold]
#[inline(never)]
fn refuse_pages(first_page: u32, class: SizeClass, why: &str) -> ! {
    panic!("{class:?} from page {first_page} {why}");
}

#[inline]
fn refuse(chunk: &Chunk, why: &str) -> ! {
    refuse_pages(chunk.first_page(), chunk.class(), why)
}

/// The word of the record that stands for the block of page `page`.
#[inline]
fn word_of(page: u32) -> usize {
    (page / BLOCK_PAGES) as usize
}

/// Where a chunk stands in the record: which word, and which bits of it.
#[inline]
fn place(chunk: &Chunk) -> (usize, u32) {
    let (first, pages) = (chunk.first_page(), chunk.class().pages());
    let at = first % BLOCK_PAGES;
    if at + pages > BLOCK_PAGES {
        refuse(chunk, "is not of one block");
    }
    (word_of(first), (u32::MAX >> (u32::BITS - pages)) << at)
}

/// The sole right to a run of pages. Dropping it returns them to the lender.
#[derive(Debug)]
pub(super) struct Lease<L: Lender> {
    start: NonNull<u8>,
    bytes: u32,
    /// Its bits in the record.
    bits: u32,
    /// `None` only while being dropped.
    chunk: Option<Chunk>,
    /// Keeps the mapping alive.
    arena: Rc<Arena<L>>,
}

impl<L: Lender> Lease<L> {
    /// Distance in bytes from the start of the arena.
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.start.as_ptr().addr() - self.arena.memory.base.as_ptr().addr()
    }
}

impl<L: Lender> Drop for Lease<L> {
    #[inline]
    fn drop(&mut self) {
        let Some(chunk) = self.chunk.take() else { return };
        let word = &self.arena.leased[word_of(chunk.first_page())];
        word.set(word.get() & !self.bits);
        // Last, because the lender may lend the pages out again at once.
        self.arena.lender.returned(chunk);
    }
}

impl<L: Lender> Deref for Lease<L> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + bytes` is inside the mapping, which `arena` keeps alive, and was initialised by the
        // kernel (zeroes) and by `touch`. `Arena::lease` set this lease's bits when none of them was set and only our
        // drop clears them, so no other lease covers these bytes, and mutable access needs `&mut self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes as usize) }
    }
}

impl<L: Lender> DerefMut for Lease<L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only access through the only lease.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes as usize) }
    }
}

/// An anonymous private mapping, zeroed by the kernel, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Writes one byte of every page, so that the page exists and is where this thread runs.
    fn touch(&self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: `offset < bytes`, so the byte is inside the mapping; nothing else refers to it, because touching
            // comes before the first lease. Volatile keeps the compiler from dropping a write that nobody reads.
            unsafe { self.base.add(offset).as_ptr().write_volatile(0) };
        }
    }
}

#[cfg(not(miri))]
impl Mapping {
    fn new(bytes: usize) -> std::io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let Some(base) = NonNull::new(address.cast::<u8>()) else {
            return Err(std::io::Error::other("the kernel mapped the null page"));
        };
        let mapping = Self { base, bytes };
        mapping.advise();
        Ok(mapping)
    }

    /// Tells the kernel how the memory is used. All of it is advice: a kernel that takes none serves as well, slower.
    fn advise(&self) {
        for (advice, name) in [
            // Fewer TLB misses, and fewer pages for a ring to pin.
            (libc::MADV_HUGEPAGE, "huge pages"),
            // A fork would make every page copy-on-write, and the first write to it after that would move it away from
            // its node and from the ring it is registered with.
            (libc::MADV_DONTFORK, "no fork"),
            // What clients store does not belong in a core dump.
            (libc::MADV_DONTDUMP, "no dump"),
        ] {
            // SAFETY: the range is exactly our own mapping, and none of these three changes what it holds.
            let refused = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, advice) } != 0;
            if refused {
                let error = std::io::Error::last_os_error();
                tracing::debug!(advice = name, %error, "the kernel took no advice for a buffer arena");
            }
        }
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped, and every lease keeps the arena alive, so nobody can use it
        // any more. A failure could only leak it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Miri has no `madvise`, and follows provenance best through its own allocator.
#[cfg(miri)]
impl Mapping {
    fn layout(bytes: usize) -> std::io::Result<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes, PAGE_BYTES).map_err(std::io::Error::other)
    }

    fn new(bytes: usize) -> std::io::Result<Self> {
        let layout = Self::layout(bytes)?;
        // SAFETY: the layout is not of size zero, since an arena has at least one block.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(address).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.bytes) {
            // SAFETY: allocated in `new` with this layout; every lease keeps the arena alive.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::SizeClass::{KiB4, KiB16, KiB64, KiB128};
    use super::*;

    #[cfg(not(miri))]
    fn resident_pages(mapping: &Mapping) -> usize {
        let mut pages = vec![0u8; mapping.bytes / PAGE_BYTES];
        // SAFETY: the range is a live mapping and the vector has a byte for each of its pages.
        let result =
            unsafe { libc::mincore(mapping.base.as_ptr().cast(), mapping.bytes, pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[cfg(not(miri))]
    #[test]
    fn touching_makes_every_page_resident_and_mapping_alone_makes_none() {
        let mapping = Mapping::new(16 * REQUEST_BYTES_MAX).expect("map");
        assert_eq!(resident_pages(&mapping), 0);
        mapping.touch();
        assert_eq!(resident_pages(&mapping), 16 * BLOCK_PAGES as usize);
    }

    /// Notes what came back.
    #[derive(Default)]
    struct Shelf(RefCell<Vec<Chunk>>);

    impl Lender for Shelf {
        fn returned(&self, chunk: Chunk) {
            self.0.borrow_mut().push(chunk);
        }
    }

    fn arena(blocks: usize) -> Rc<Arena<Shelf>> {
        Arena::new(blocks, Shelf::default()).expect("arena")
    }

    #[cfg(not(miri))]
    #[test]
    fn a_new_arena_is_wholly_resident() {
        assert_eq!(resident_pages(&arena(8).memory), 8 * BLOCK_PAGES as usize);
    }

    #[test]
    fn leases_of_neighbouring_pages_are_written_without_disturbing_each_other() {
        let arena = arena(2);
        let chunks = [(0, KiB4), (1, KiB4), (4, KiB16), (16, KiB64), (32, KiB128)];
        let mut leases = chunks.map(|(first, class)| arena.lease(Chunk::new(first, class)));
        for (mark, lease) in (1..).zip(&mut leases) {
            lease.fill(mark);
        }
        for (mark, (lease, (first, class))) in (1..).zip(leases.iter().zip(chunks)) {
            assert_eq!((lease.offset(), lease.len()), (first as usize * PAGE_BYTES, class.bytes()));
            assert!(lease.iter().all(|&byte| byte == mark));
        }
    }

    #[test]
    fn a_lease_keeps_its_memory_after_the_arena_was_dropped() {
        let arena = arena(1);
        let mut lease = arena.lease(Chunk::new(4, KiB16));
        drop(arena);
        lease.fill(7);
        assert_eq!(lease[4 * PAGE_BYTES - 1], 7);
    }

    #[test]
    fn pages_come_back_to_the_lender_and_can_be_lent_again() {
        let arena = arena(1);
        drop(arena.lease(Chunk::new(0, KiB128)));
        drop(arena.lease(Chunk::new(31, KiB4)));
        assert_eq!(arena.leased[0].get(), 0);
        assert_eq!(arena.lender().0.take(), [Chunk::new(0, KiB128), Chunk::new(31, KiB4)]);
    }

    #[test]
    #[should_panic(expected = "lent out already")]
    fn a_page_is_never_lent_twice() {
        let arena = arena(1);
        let _first = arena.lease(Chunk::new(4, KiB16));
        let _second = arena.lease(Chunk::new(7, KiB4));
    }

    #[test]
    #[should_panic(expected = "not of one block")]
    fn a_lease_never_crosses_the_end_of_a_block() {
        let _lease = arena(2).lease(Chunk::new(30, KiB16));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_lease_never_lies_outside_the_arena() {
        let _lease = arena(1).lease(Chunk::new(32, KiB4));
    }
}
