//! The memory of the leaves of all indexes, and of short lists made with a volume's lock held: cells of a few sizes, in chunks.
//!
//! The heap of the C library is not for these: a call may join, sort or give back whatever was freed before, of any volume, which
//! takes milliseconds. Here taking and freeing a cell take the same few steps, but for one in hundreds of thousands, which maps the next
//! region of address space. Owns which chunk gives a cell, and when free chunks go back to the kernel. Does not own the content of
//! cells. Invariants: a chunk has cells of one size, and belongs to one shard while a cell of the chunk is in use; the locks here are
//! held for a few steps, and for the page faults of these.
//!
//! A chunk with one cell in use stays in memory, and serves its size only. So memory that is not in use any more may stay (`heap_free`
//! of the memory by category): for each size and shard at most the chunks that the largest number of cells of that size ever in use at
//! once fills. The worst load known is an index loaded from a checkpoint, in packed leaves of many sizes, most of which are opened by writes
//! in random order: by a model with 10,000,000 extents, 27 % more than what the index counts, and 6 % once all are open (glibc: 13 % and
//! 14 %; with chunks of 64 KiB 37 %).

mod chunk;
#[cfg(test)]
mod tests;

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use allocator_api2::alloc::{AllocError, Allocator, Global};

use self::chunk::{Chunk, MapRegion, Spare, map_region};
use crate::locks::MutexExt;

/// Sizes of cells are multiples of this, and cells are aligned to as much.
const UNIT_BYTES: usize = 64;
/// Largest cell: room for the largest array of a leaf, and for a list of what is evicted with one hold. What is larger lies on the heap.
pub(super) const CELL_BYTES_MAX: usize = 4096;
const SIZES: usize = CELL_BYTES_MAX / UNIT_BYTES;
/// Each thread takes cells from one shard, assigned in turn at the thread's first cell, so that workers seldom wait for one another. A
/// cell goes back to its own chunk, whichever thread frees the cell.
const SHARDS: usize = 8;
/// Free chunks kept for the next use: 256 KiB.
const KEPT_CHUNKS: usize = 16;

static POOL: Pool = Pool::new(map_region);
/// Threads that ever took a cell.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// Memory of a value of `payload` bytes; 0 for an empty one.
pub(super) const fn cell_bytes(payload: usize) -> usize {
    payload.next_multiple_of(UNIT_BYTES)
}

/// The memory of all cells, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellBytes {
    /// In cells which are in use.
    pub used: u64,
    /// In RAM, and in no cell in use.
    pub free: u64,
}

impl CellBytes {
    /// The memory of this moment.
    pub fn now() -> Self {
        POOL.bytes()
    }
}

/// Gives back to the kernel up to `chunks` free chunks, but for a few. No lock of a shard or of the spare chunks is held during the
/// calls of the kernel.
pub(in crate::cache) fn release(chunks: usize) {
    POOL.release_some(chunks);
}

/// Takes memory from the cells of the process, for vectors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cells;

// SAFETY: the memory given out is `Pool`'s, aligned to `UNIT_BYTES`, or the heap's. Which of both is told by the layout alone, and a
// vector gives the layout with which the memory was asked for, as the memory given out is not longer than asked for. A cell stays where
// it is until freed, whoever holds a copy of `Cells`: all copies stand for the one pool, which lives as long as the process.
unsafe impl Allocator for Cells {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if !is_cell(layout) {
            return Global.allocate(layout);
        }
        let cell = POOL.take(layout.size()).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(cell, layout.size()))
    }

    unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
        if is_cell(layout) {
            // SAFETY: memory of such a layout is a cell that `allocate` took from the pool, and the caller gives the cell up.
            unsafe { POOL.free(memory) };
        } else {
            // SAFETY: memory of such a layout is from the heap, and the caller gives the memory up.
            unsafe { Global.deallocate(memory, layout) };
        }
    }
}

fn is_cell(layout: Layout) -> bool {
    (1..=CELL_BYTES_MAX).contains(&layout.size()) && layout.align() <= UNIT_BYTES
}

/// The chunks of all shards, and those of none. Order of locks: a volume's, a shard's, `spare`. Nobody holds two shards.
#[derive(Debug)]
struct Pool {
    shards: [Mutex<Shard>; SHARDS],
    spare: Mutex<Spare>,
    /// Bytes of the pages touched in all chunks since these came from the kernel.
    touched_bytes: AtomicU64,
}

/// The chunks of some threads.
#[derive(Debug)]
struct Shard {
    /// The first chunk with room of each size.
    first: [Option<&'static Chunk>; SIZES],
    used_bytes: u64,
}

impl Pool {
    const fn new(map: MapRegion) -> Self {
        Self {
            shards: [const { Mutex::new(Shard { first: [None; SIZES], used_bytes: 0 }) }; SHARDS],
            spare: Mutex::new(Spare::new(map)),
            touched_bytes: AtomicU64::new(0),
        }
    }

    /// A cell for `1..=CELL_BYTES_MAX` bytes. `None` when the kernel has no memory.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let number = SHARD.with(|shard| *shard);
        let size = bytes.checked_sub(1)? / UNIT_BYTES;
        let mut shard = self.shards.get(number)?.lock_whole();
        let first = shard.first.get_mut(size)?;
        let chunk = if let Some(chunk) = *first {
            chunk
        } else {
            let chunk = self.spare.lock_whole().take()?;
            // SAFETY: the chunk was spare, so nobody else has the chunk, and no cell is in use.
            unsafe { chunk.begin(number, (size + 1) * UNIT_BYTES) };
            *first = Some(chunk);
            chunk
        };
        // SAFETY: chunks in a list of a shard are the shard's, whose lock is held; so is the next one.
        let (cell, touched_bytes) = unsafe {
            let taken = chunk.take();
            if chunk.is_full() {
                *first = chunk.unlink();
            }
            taken
        };
        shard.used_bytes += ((size + 1) * UNIT_BYTES) as u64;
        if touched_bytes > 0 {
            self.touched_bytes.fetch_add(touched_bytes, Ordering::Relaxed);
        }
        Some(cell)
    }

    /// Frees a cell.
    ///
    /// # Safety
    ///
    /// The cell was taken from this pool, and nobody uses the cell any more.
    unsafe fn free(&self, cell: NonNull<u8>) {
        // SAFETY: the cell is in a chunk, by the promise of the caller.
        let chunk = unsafe { Chunk::of(cell) };
        // A chunk with a cell in use stays with the shard.
        let Some(mut shard) = self.shards.get(chunk.shard()).map(MutexExt::lock_whole) else { return };
        let shard = &mut *shard;
        // SAFETY: the chunk is the shard's, whose lock is held, and the cell is in use until now.
        unsafe {
            let bytes = chunk.cell_bytes();
            let was_full = chunk.is_full();
            chunk.free(cell);
            debug_assert!(shard.used_bytes >= bytes as u64, "a cell in use is counted");
            shard.used_bytes = shard.used_bytes.saturating_sub(bytes as u64);
            let Some(first) = shard.first.get_mut(bytes / UNIT_BYTES - 1) else { return };
            if was_full {
                chunk.link(*first);
                *first = Some(chunk);
            }
            if chunk.is_empty() {
                let next = chunk.unlink();
                if first.is_some_and(|first| std::ptr::eq(first, chunk)) {
                    *first = next;
                }
                // No cell is in use, and the chunk is in no list.
                self.spare.lock_whole().give(chunk);
            }
        }
    }

    fn release_some(&self, chunks: usize) {
        for _ in 0..chunks {
            let Some(chunk) = self.spare.lock_whole().take_touched(KEPT_CHUNKS) else { return };
            // SAFETY: the chunk was spare, so nobody else has the chunk, and no cell is in use.
            let released_bytes = unsafe { chunk.release() };
            self.touched_bytes.fetch_sub(released_bytes, Ordering::Relaxed);
            // SAFETY: the chunk is this thread's, as above, and in no list.
            unsafe { self.spare.lock_whole().give_released(chunk) };
        }
    }

    fn bytes(&self) -> CellBytes {
        let used = self.shards.iter().map(|shard| shard.lock_whole().used_bytes).sum();
        // Cells may be taken between the two sums.
        let touched = self.touched_bytes.load(Ordering::Relaxed);
        CellBytes { used, free: touched.saturating_sub(used) }
    }
}
