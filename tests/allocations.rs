//! The data path takes no memory from the heap once warm, but for the footer of a segment.
//!
//! A counting allocator sees every allocation of the test's own thread; the cache's keeper and other tests have threads of their
//! own. Requests go the whole way from the check of their bounds to completion, over a real directory; writes replace a fixed
//! set of blocks, so that the index has no reason to grow. Locks cannot be counted from outside: the reader of `shard` must see
//! that the export's lock is the only lock on the way, where no leaf of the index grows.

#![allow(clippy::unwrap_used, reason = "tests may")]

#[path = "../benches/support/data_path.rs"]
mod data_path;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use data_path::DataPath;

thread_local! {
    /// Allocations of this thread so far. Constant and without a destructor, so that reading the counter allocates nothing.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count() {
        // A thread which ends has no counter any more, and is not measured.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches none of the allocator's memory.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 512;
const STRIDE: u64 = 61;
const SEGMENTS: u64 = 6;

fn place(number: u64) -> u64 {
    number * STRIDE % BLOCKS * BLOCK_BYTES as u64
}

fn write_all(path: &mut DataPath, batch: u64) {
    for number in 0..BLOCKS {
        path.write(place(number), BLOCK_BYTES);
        if number % batch == batch - 1 {
            path.turn();
        }
    }
    path.settle();
}

fn read_all(path: &mut DataPath) {
    for number in 0..BLOCKS {
        path.read(place(number), BLOCK_BYTES);
        path.turn();
    }
    path.settle();
}

/// A data path which has done everything a few times.
fn warm(directory: &tempfile::TempDir) -> DataPath {
    let mut path = DataPath::new(directory.path(), SEGMENTS);
    for batch in [1, 8, 64] {
        write_all(&mut path, batch);
        read_all(&mut path);
        path.flush();
        path.settle();
    }
    path
}

#[test]
fn the_counter_sees_an_allocation() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn overwriting_blocks_allocates_nothing_whatever_the_batch() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = warm(&directory);
    for batch in [1, 8, 64] {
        assert_eq!(allocations(|| write_all(&mut path, batch)), 0, "batches of {batch}");
    }
}

#[test]
fn reading_cached_blocks_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = warm(&directory);
    assert_eq!(allocations(|| read_all(&mut path)), 0);
}

#[test]
fn reading_mapped_blocks_allocates_nothing_in_whatever_pieces_they_were_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = warm(&directory);
    path.copy_reads_to(tempfile::tempfile().unwrap());
    let read_mapped = |path: &mut DataPath, bytes: usize| {
        (0..BLOCKS * BLOCK_BYTES as u64).step_by(bytes).all(|offset| path.read_mapped(offset, bytes))
    };
    let patience = Instant::now() + Duration::from_secs(30);
    while !read_mapped(&mut path, BLOCK_BYTES) {
        assert!(
            Instant::now() < patience,
            "the keeper does not map what is read: may this user lock 16 MiB of memory (ulimit -l)?"
        );
        read_all(&mut path);
    }
    for bytes in [BLOCK_BYTES, 32 * BLOCK_BYTES] {
        // The list of pieces takes its room once.
        assert!(read_mapped(&mut path, bytes));
        assert_eq!(allocations(|| assert!(read_mapped(&mut path, bytes))), 0, "READs of {bytes} bytes");
    }
}

#[test]
fn a_flush_allocates_nothing_whether_or_not_there_is_something_to_sync() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = warm(&directory);
    assert_eq!(allocations(|| path.flush()), 0, "nothing unsynced");
    path.settle();
    write_all(&mut path, 8);
    let synced = allocations(|| {
        path.flush();
        path.settle();
    });
    assert_eq!(synced, 0, "something unsynced");
}

/// The first record of a segment takes the memory for the whole footer, so the footer does not grow while a writer fills the segment.
#[test]
fn filling_a_segment_from_its_start_allocates_the_footer_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = warm(&directory);
    let rounds = data_path::SEGMENT_BYTES / (BLOCKS * BLOCK_BYTES as u64) / 2;
    let counted = allocations(|| (0..rounds).for_each(|_| write_all(&mut path, 1)));
    assert_eq!(counted, 1);
}
