//! Chunks: 16 KiB of address space each, in regions which stay mapped as long as the process runs.
//!
//! Owns the layout of a region, and the free cells of a chunk. Does not own which chunk gives a cell. Invariants: the description of a
//! chunk lies apart from the cells, so a chunk without cells in use takes no memory once released; the state of a chunk is touched
//! by one thread at a time, which the callers see to.
//!
//! ```text
//!  region, aligned to 16 MiB
//! ┌────────────────────────────────────────┬──────────────────────────┬─────────┬───
//! │ 1,024 descriptions, the first 4 unused │ chunk 4: cell, cell, ... │ chunk 5 │ …
//! └────────────────────────────────────────┴──────────────────────────┴─────────┴───
//! ```

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::memory::page_bytes;

/// Small, so that a chunk runs empty soon when its cells are freed in random order: see the bound in the head of `cells`.
pub(super) const CHUNK_BYTES: usize = 16 << 10;
const REGION_BYTES: usize = 16 << 20;
const REGION_CHUNKS: usize = REGION_BYTES / CHUNK_BYTES;
const DESCRIPTION_BYTES: usize = 64;
/// The chunks in whose place the descriptions lie.
const FIRST_CHUNK: usize = REGION_CHUNKS * DESCRIPTION_BYTES / CHUNK_BYTES;
/// Chunks of a region with cells.
#[cfg(test)]
pub(super) const USABLE_CHUNKS: usize = REGION_CHUNKS - FIRST_CHUNK;
/// The unit of touched memory. Larger pages of the kernel count as less than they are.
const PAGE_BYTES: u32 = 4096;
/// Place of no cell, as all places are smaller.
const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<Chunk>() <= DESCRIPTION_BYTES && align_of::<Chunk>() <= DESCRIPTION_BYTES);

/// Maps a region of memory that can be written, aligned to its size, which nobody else has and which is never unmapped. `None` when the
/// kernel has no memory.
pub(super) type MapRegion = fn() -> Option<NonNull<u8>>;

/// The description of a chunk.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The first cell; a pointer that may be used for the whole region.
    cells: NonNull<u8>,
    /// The shard's number. Changes only while no cell is in use.
    shard: AtomicUsize,
    state: UnsafeCell<State>,
}

// SAFETY: the state is touched by unsafe functions only, the callers of which promise to be the only ones.
unsafe impl Sync for Chunk {}

#[derive(Debug)]
struct State {
    cell_bytes: u32,
    /// Number of cells in use.
    used: u32,
    /// Place of the first free cell that was in use before, which begins with the place of the next one.
    free: u32,
    /// Place from which on no cell was in use.
    fresh: u32,
    /// Bytes of the pages touched since the chunk came from the kernel.
    touched: u32,
    previous: Option<&'static Chunk>,
    next: Option<&'static Chunk>,
}

/// A thread *holds* a chunk while the thread alone may touch the states of the chunk and of all chunks linked with the chunk: with the
/// lock of the chunk's shard or of [`Spare`] held, or after taking the chunk from [`Spare`].
impl Chunk {
    /// The chunk of a cell.
    ///
    /// # Safety
    ///
    /// [`Self::take`] gave the pointer, so that the pointer may be used for all of the region.
    pub unsafe fn of(cell: NonNull<u8>) -> &'static Self {
        let description = cell.as_ptr().map_addr(|address| {
            let place = address % REGION_BYTES;
            address - place + place / CHUNK_BYTES * DESCRIPTION_BYTES
        });
        // SAFETY: the description of a chunk with cells was written before the first cell was given out, lies at a multiple of
        // `DESCRIPTION_BYTES`, and regions stay mapped. What changes in a description lies in `AtomicUsize` and `UnsafeCell`.
        #[expect(clippy::cast_ptr_alignment, reason = "descriptions are aligned")]
        unsafe {
            &*description.cast::<Self>()
        }
    }

    /// The shard with the chunk; of a chunk with cells in use.
    pub fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// The caller holds the chunk, and uses no other reference from this function.
    #[expect(clippy::mut_from_ref, reason = "the callers see to it that there is one reference at a time")]
    unsafe fn state(&self) -> &mut State {
        // SAFETY: the caller is the only one that touches the state, and each function here makes one reference at a time.
        unsafe { &mut *self.state.get() }
    }

    /// Makes a chunk without cells in use one of `shard`, with cells of `cell_bytes`, linked with none.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk, no cell of which is in use.
    pub unsafe fn begin(&self, shard: usize, cell_bytes: usize) {
        self.shard.store(shard, Ordering::Relaxed);
        // SAFETY: the caller holds the chunk.
        let state = unsafe { self.state() };
        debug_assert_eq!(state.used, 0, "a spare chunk has no cell in use");
        let cell_bytes = u32::try_from(cell_bytes).unwrap_or(u32::MAX);
        *state = State { cell_bytes, ..State::new(state.touched) };
    }

    /// # Safety
    ///
    /// The caller holds the chunk.
    pub unsafe fn cell_bytes(&self) -> usize {
        // SAFETY: the caller holds the chunk.
        unsafe { self.state() }.cell_bytes as usize
    }

    /// # Safety
    ///
    /// The caller holds the chunk.
    pub unsafe fn is_full(&self) -> bool {
        // SAFETY: the caller holds the chunk.
        let state = unsafe { self.state() };
        state.free == NONE && state.fresh.saturating_add(state.cell_bytes) as usize > CHUNK_BYTES
    }

    /// # Safety
    ///
    /// The caller holds the chunk.
    pub unsafe fn is_empty(&self) -> bool {
        // SAFETY: the caller holds the chunk.
        unsafe { self.state() }.used == 0
    }

    /// A cell of a chunk that is not full, and by how many bytes the touched memory has grown.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk.
    pub unsafe fn take(&self) -> (NonNull<u8>, u64) {
        // SAFETY: the caller holds the chunk.
        let state = unsafe { self.state() };
        state.used += 1;
        if state.free != NONE {
            // SAFETY: free cells lie in the chunk, begin with the place of the next one, and belong to the state.
            unsafe {
                let cell = self.cells.add(state.free as usize);
                state.free = cell.cast::<u32>().read();
                return (cell, 0);
            }
        }
        let place = state.fresh;
        state.fresh = place.saturating_add(state.cell_bytes);
        assert!(state.fresh as usize <= CHUNK_BYTES, "the chunk has room");
        let touched = state.fresh.next_multiple_of(PAGE_BYTES).max(state.touched);
        let more = touched - std::mem::replace(&mut state.touched, touched);
        // SAFETY: the cell ends in the chunk.
        (unsafe { self.cells.add(place as usize) }, more.into())
    }

    /// Frees a cell of the chunk in use.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk, and the cell is one of the chunk that nobody uses any more.
    pub unsafe fn free(&self, cell: NonNull<u8>) {
        // SAFETY: the caller holds the chunk.
        let state = unsafe { self.state() };
        // SAFETY: nobody uses the cell, which is as long as a place, and aligned to more.
        unsafe { cell.cast::<u32>().write(state.free) };
        // A place in a chunk takes 16 bits.
        state.free = u32::try_from(cell.addr().get() % CHUNK_BYTES).unwrap_or(NONE);
        state.used -= 1;
    }

    /// Links the chunk, which is linked with none, before `next`.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk, and the list of `next`.
    pub unsafe fn link(&'static self, next: Option<&'static Self>) {
        // SAFETY: the caller holds the chunks; two chunks have two states.
        unsafe {
            self.state().next = next;
            if let Some(next) = next {
                next.state().previous = Some(self);
            }
        }
    }

    /// Takes the chunk out of the list, and returns the next one.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk.
    pub unsafe fn unlink(&self) -> Option<&'static Self> {
        // SAFETY: the caller holds the chunks; the states are those of three chunks.
        unsafe {
            let (previous, next) = (self.state().previous.take(), self.state().next.take());
            if let Some(previous) = previous {
                previous.state().next = next;
            }
            if let Some(next) = next {
                next.state().previous = previous;
            }
            next
        }
    }

    /// Gives the memory of a chunk without cells in use back to the kernel, and returns the number of bytes given back.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk, no cell of which is in use.
    pub unsafe fn release(&self) -> u64 {
        // SAFETY: the caller holds the chunk.
        let state = unsafe { self.state() };
        debug_assert_eq!(state.used, 0, "a spare chunk has no cell in use");
        // The kernel would release whole pages, with the beginning of the next chunks.
        if !CHUNK_BYTES.is_multiple_of(page_bytes()) {
            return 0;
        }
        // SAFETY: the bytes are whole pages of a mapping of this module, and nobody uses any of the bytes: the next use begins
        // afresh.
        let result = unsafe { libc::madvise(self.cells.as_ptr().cast(), CHUNK_BYTES, libc::MADV_DONTNEED) };
        // A refusal, as for locked memory, changes nothing.
        if result == 0 { std::mem::take(&mut state.touched).into() } else { 0 }
    }
}

impl State {
    const fn new(touched: u32) -> Self {
        Self { cell_bytes: 0, used: 0, free: NONE, fresh: 0, touched, previous: None, next: None }
    }
}

/// The chunks that belong to no shard.
#[derive(Debug)]
pub(super) struct Spare {
    /// Used before: the last one given comes first.
    touched: Option<&'static Chunk>,
    touched_count: usize,
    /// Given back to the kernel.
    released: Option<&'static Chunk>,
    /// The newest region, and the next chunk of the region.
    region: Option<NonNull<u8>>,
    next: usize,
    map: MapRegion,
}

// SAFETY: a region does not depend on a thread.
unsafe impl Send for Spare {}

impl Spare {
    pub const fn new(map: MapRegion) -> Self {
        Self { touched: None, touched_count: 0, released: None, region: None, next: 0, map }
    }

    /// A chunk, which is the caller's. `None` when the kernel has no memory.
    pub fn take(&mut self) -> Option<&'static Chunk> {
        self.take_touched(0).or_else(|| Self::pop(&mut self.released)).or_else(|| self.take_new())
    }

    /// A chunk used before, if there are more than `kept`.
    pub fn take_touched(&mut self, kept: usize) -> Option<&'static Chunk> {
        if self.touched_count <= kept {
            return None;
        }
        self.touched_count -= 1;
        Self::pop(&mut self.touched)
    }

    /// Takes a chunk from the caller.
    ///
    /// # Safety
    ///
    /// The caller holds the chunk, which is in no list and has no cell in use, and does not use the chunk any more.
    pub unsafe fn give(&mut self, chunk: &'static Chunk) {
        self.touched_count += 1;
        Self::push(&mut self.touched, chunk);
    }

    /// As [`Self::give`], of a chunk which was given back to the kernel.
    ///
    /// # Safety
    ///
    /// As of [`Self::give`].
    pub unsafe fn give_released(&mut self, chunk: &'static Chunk) {
        Self::push(&mut self.released, chunk);
    }

    fn push(list: &mut Option<&'static Chunk>, chunk: &'static Chunk) {
        // SAFETY: the caller has the chunk, and the lists are those of `self`.
        unsafe { chunk.link(*list) };
        *list = Some(chunk);
    }

    fn pop(list: &mut Option<&'static Chunk>) -> Option<&'static Chunk> {
        let chunk = (*list)?;
        // SAFETY: the lists are those of `self`.
        *list = unsafe { chunk.unlink() };
        Some(chunk)
    }

    fn take_new(&mut self) -> Option<&'static Chunk> {
        let region = match self.region {
            Some(region) if self.next < REGION_CHUNKS => region,
            _ => {
                // Nothing changes where the kernel has no memory: the chunks of the old region are in use.
                let region = (self.map)()?;
                self.next = FIRST_CHUNK;
                *self.region.insert(region)
            }
        };
        let number = self.next;
        self.next += 1;
        // SAFETY: chunk and description lie in the region. Nobody has the description yet, and the region stays mapped.
        unsafe {
            let cells = region.add(number * CHUNK_BYTES);
            let description = region.add(number * DESCRIPTION_BYTES).cast::<Chunk>();
            let state = UnsafeCell::new(State::new(0));
            description.write(Chunk { cells, shard: AtomicUsize::new(0), state });
            Some(description.as_ref())
        }
    }
}

/// Maps a region. The kernel gives memory page by page: a huge page of the kernel would be cleared with a volume's lock held.
pub(super) fn map_region() -> Option<NonNull<u8>> {
    let bytes = 2 * REGION_BYTES;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let mapping = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, kind, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return None;
    }
    let before = mapping.addr().wrapping_neg() % REGION_BYTES;
    // SAFETY: both ends are parts of the mapping outside of the region, the end of which lies in the mapping. Advice may be refused.
    unsafe {
        let region = mapping.add(before);
        if before > 0 {
            libc::munmap(mapping, before);
        }
        libc::munmap(region.add(REGION_BYTES), REGION_BYTES - before);
        if libc::mprotect(region, REGION_BYTES, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::munmap(region, REGION_BYTES);
            return None;
        }
        libc::madvise(region, REGION_BYTES, libc::MADV_NOHUGEPAGE);
        NonNull::new(region.cast())
    }
}
