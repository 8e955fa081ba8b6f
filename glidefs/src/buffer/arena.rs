//! The memory of one pool: a single anonymous mapping, and the map of leased pages.
//!
//! Owns the mapping, the residency of its pages and every `unsafe` of the pool. Does not choose the pages to lend out: the
//! allocator chooses, and is not trusted. Invariant: a page has at most one [`Lease`], whatever the allocator asks for, so a
//! lease may hand out `&mut` to the bytes of its pages.

use std::cell::Cell;
#[cfg(not(miri))]
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use super::buddy::{Chunk, PAGE_BYTES, SizeClass, TILE_PAGES};
use super::limits::{BufferError, SLOTS_MAX};
use crate::units::REQUEST_BYTES_MAX;

// One word of the lease map stands for the pages of one tile.
const _: () = assert!(TILE_PAGES == u32::BITS && TILE_PAGES as usize * PAGE_BYTES == REQUEST_BYTES_MAX);

/// Decides which pages are lent out, and is told when pages come back.
pub(super) trait Lender {
    /// The pages of `chunk` are not lent out any more.
    fn returned(&self, chunk: Chunk);
}

/// A mapping of whole tiles, resident from the start.
#[derive(Debug)]
pub(super) struct Arena<L> {
    memory: Mapping,
    /// One bit a page, one word a tile: set while a lease on the page lives.
    leased: Box<[Cell<u32>]>,
    /// The allocator of the arena.
    pub(super) lender: L,
}

impl<L: Lender> Arena<L> {
    /// Maps `tiles` tiles and touches every page from this thread, which places the pages on this thread's NUMA node.
    pub(super) fn new(tiles: usize, lender: L) -> Result<Rc<Self>, BufferError> {
        if tiles == 0 || tiles > SLOTS_MAX {
            return Err(BufferError::SlotCount { slots: tiles });
        }
        let bytes = tiles.checked_mul(REQUEST_BYTES_MAX).ok_or(BufferError::SlotCount { slots: tiles })?;
        let memory = Mapping::new(bytes).map_err(|source| BufferError::Map { arena_bytes: bytes, source })?;
        memory.touch();
        Ok(Rc::new(Self { memory, leased: (0..tiles).map(|_| Cell::new(0)).collect(), lender }))
    }

    /// Address of the first byte, and length in bytes.
    pub(super) fn extent(&self) -> (*const u8, usize) {
        (self.memory.base.as_ptr().cast_const(), self.memory.bytes)
    }

    /// Lends out the pages of `chunk` until the lease is dropped.
    ///
    /// # Panics
    /// When the pages are not all of one tile of this arena, or one of the pages is lent out already: the allocator is wrong,
    /// and going on would let two requests share memory.
    #[inline]
    pub(super) fn lease(self: &Rc<Self>, chunk: Chunk) -> Lease<L> {
        let (tile, bits) = place(&chunk);
        let word = &self.leased[tile];
        if word.get() & bits != 0 {
            refuse(&chunk, "is lent out already, at least in part");
        }
        word.set(word.get() | bits);
        // SAFETY: `tile` indexes `leased`, which has one word for each tile of the mapping, and the pages end within the tile
        // (`place` checked the end), so the offset is inside the mapping.
        let start = unsafe { self.memory.base.add(chunk.first_page as usize * PAGE_BYTES) };
        // At most REQUEST_BYTES_MAX.
        #[expect(clippy::cast_possible_truncation)]
        let bytes = chunk.class.bytes() as u32;
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
    refuse_pages(chunk.first_page, chunk.class, why)
}

/// The word of the lease map for the tile of page `page`.
#[inline]
fn word_of(page: u32) -> usize {
    (page / TILE_PAGES) as usize
}

/// The word of the lease map for a chunk, and the bits of the word.
#[inline]
fn place(chunk: &Chunk) -> (usize, u32) {
    let (first, pages) = (chunk.first_page, chunk.class.pages());
    let at = first % TILE_PAGES;
    if at + pages > TILE_PAGES {
        refuse(chunk, "is not of one tile");
    }
    (word_of(first), (u32::MAX >> (u32::BITS - pages)) << at)
}

/// The sole right to a run of pages. Dropping the lease returns the pages to the lender.
#[derive(Debug)]
pub(super) struct Lease<L: Lender> {
    start: NonNull<u8>,
    bytes: u32,
    /// The bits of the pages in the lease map.
    bits: u32,
    /// `None` only while being dropped.
    chunk: Option<Chunk>,
    /// Keeps the mapping alive.
    arena: Rc<Arena<L>>,
}

#[cfg(test)]
impl<L: Lender> Lease<L> {
    /// Distance in bytes from the start of the arena.
    pub(super) fn offset(&self) -> usize {
        self.start.as_ptr().addr() - self.arena.memory.base.as_ptr().addr()
    }
}

impl<L: Lender> Drop for Lease<L> {
    #[inline]
    fn drop(&mut self) {
        let Some(chunk) = self.chunk.take() else { return };
        let word = &self.arena.leased[word_of(chunk.first_page)];
        word.set(word.get() & !self.bits);
        // Last, because the lender may lend the pages out again at once.
        self.arena.lender.returned(chunk);
    }
}

impl<L: Lender> Deref for Lease<L> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + bytes` is inside the mapping, which `arena` keeps alive; the kernel (zeroes) and `touch` have
        // initialised the bytes. `Arena::lease` set this lease's bits when none of the bits was set, and only the drop of this
        // lease clears the bits, so no other lease covers these bytes; mutable access needs `&mut self`.
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
    /// Writes one byte of every page, so that the page exists, on the NUMA node of this thread.
    fn touch(&self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: `offset < bytes`, so the byte is inside the mapping; nothing else refers to the byte, because touching
            // comes before the first lease. Volatile keeps the compiler from dropping a write which nobody reads.
            unsafe { self.base.add(offset).as_ptr().write_volatile(0) };
        }
    }
}

#[cfg(not(miri))]
impl Mapping {
    fn new(bytes: usize) -> std::io::Result<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
        let len = NonZeroUsize::new(bytes).ok_or(std::io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_PRIVATE)? };
        let mapping = Self { base: base.cast(), bytes };
        mapping.advise();
        Ok(mapping)
    }

    /// Tells the kernel how the memory is used. All of this is advice: a kernel which takes none serves as well, only slower.
    fn advise(&self) {
        for (advice, name) in [
            // Fewer TLB misses, and fewer pages for a ring to pin.
            (libc::MADV_HUGEPAGE, "huge pages"),
            // A fork would make every page copy-on-write. The next write to a page would move the page away from its node, and
            // from the ring with which the page is registered.
            (libc::MADV_DONTFORK, "no fork"),
            // Clients' data does not belong in a core dump.
            (libc::MADV_DONTDUMP, "no dump"),
        ] {
            // SAFETY: the range is exactly this mapping, and none of the three kinds of advice changes the content.
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
        // SAFETY: the range is exactly the mapping made by `new`. Every lease keeps the arena alive, so nobody can use the
        // mapping any more. A failure could only leak the mapping.
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
        // SAFETY: the layout is not of size zero, since an arena has at least one tile.
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
        // SAFETY: the range is a live mapping and the vector has a byte for each page.
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
        assert_eq!(resident_pages(&mapping), 16 * TILE_PAGES as usize);
    }

    /// Keeps the chunks which came back.
    #[derive(Default)]
    struct Shelf(RefCell<Vec<Chunk>>);

    impl Lender for Shelf {
        fn returned(&self, chunk: Chunk) {
            self.0.borrow_mut().push(chunk);
        }
    }

    fn arena(tiles: usize) -> Rc<Arena<Shelf>> {
        Arena::new(tiles, Shelf::default()).expect("arena")
    }

    #[cfg(not(miri))]
    #[test]
    fn a_new_arena_is_wholly_resident() {
        assert_eq!(resident_pages(&arena(8).memory), 8 * TILE_PAGES as usize);
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
        assert_eq!(arena.lender.0.take(), [Chunk::new(0, KiB128), Chunk::new(31, KiB4)]);
    }

    #[test]
    #[should_panic(expected = "lent out already")]
    fn a_page_is_never_lent_twice() {
        let arena = arena(1);
        let _first = arena.lease(Chunk::new(4, KiB16));
        let _second = arena.lease(Chunk::new(7, KiB4));
    }

    #[test]
    #[should_panic(expected = "not of one tile")]
    fn a_lease_never_crosses_the_end_of_a_tile() {
        let _lease = arena(2).lease(Chunk::new(30, KiB16));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_lease_never_lies_outside_the_arena() {
        let _lease = arena(1).lease(Chunk::new(32, KiB4));
    }
}
