//! Cells against a model: the content and the sums, with chunks that come and go.

use proptest::prelude::*;

use std::cell::Cell;

use super::chunk::{CHUNK_BYTES, USABLE_CHUNKS};
use super::*;

thread_local! {
    /// How many more regions this thread can map.
    static REGIONS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn map_while_left() -> Option<NonNull<u8>> {
    let left = REGIONS_LEFT.get().checked_sub(1)?;
    REGIONS_LEFT.set(left);
    map_region()
}

/// A pool for one test, and as long as the process.
fn pool() -> &'static Pool {
    Box::leak(Box::new(Pool::new(map_while_left)))
}

/// A cell filled with a byte.
struct Filled {
    cell: NonNull<u8>,
    bytes: usize,
    byte: u8,
}

impl Filled {
    fn take(pool: &Pool, bytes: usize, byte: u8) -> Self {
        let cell = pool.take(bytes).expect("the kernel has memory");
        assert_eq!(cell.addr().get() % UNIT_BYTES, 0);
        // SAFETY: the cell has so many bytes, and is the test's.
        unsafe { cell.write_bytes(byte, bytes) };
        Self { cell, bytes, byte }
    }

    fn free(self, pool: &Pool) {
        // SAFETY: the bytes were written, and are the test's.
        let content = unsafe { std::slice::from_raw_parts(self.cell.as_ptr(), self.bytes) };
        assert!(content.iter().all(|byte| *byte == self.byte), "nobody else writes into a cell in use");
        // SAFETY: the cell is from the pool, and given up.
        unsafe { pool.free(self.cell) };
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take { bytes: usize, count: usize },
    Free { at: prop::sample::Index, count: usize },
    Release { chunks: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![Just(1536), Just(512), 1..=CELL_BYTES_MAX];
    prop_oneof![
        4 => (bytes, 1..200_usize).prop_map(|(bytes, count)| Step::Take { bytes, count }),
        4 => (any::<prop::sample::Index>(), 1..200_usize).prop_map(|(at, count)| Step::Free { at, count }),
        1 => (0..100_usize).prop_map(|chunks| Step::Release { chunks }),
    ]
}

proptest! {
    #[test]
    fn cells_in_use_keep_their_content_and_the_sums_are_those_over_all_cells(steps in prop::collection::vec(step(), 0..80)) {
        let pool = pool();
        let mut cells: Vec<Filled> = Vec::new();
        for (byte, step) in (0..=u8::MAX).zip(steps) {
            match step {
                Step::Take { bytes, count } => {
                    cells.extend((0..count).map(|_| Filled::take(pool, bytes, byte)));
                }
                Step::Free { at, count } => {
                    for step in 0..count.min(cells.len()) {
                        let at = (at.index(cells.len()) + step * 7) % cells.len();
                        cells.swap_remove(at).free(pool);
                    }
                }
                Step::Release { chunks } => pool.release_some(chunks),
            }
            let used: usize = cells.iter().map(|cell| cell_bytes(cell.bytes)).sum();
            prop_assert_eq!(pool.bytes().used, used as u64);
        }
        cells_free(pool, cells);
        pool.release_some(usize::MAX);
        let CellBytes { used, free } = pool.bytes();
        prop_assert_eq!(used, 0);
        prop_assert!(free <= (KEPT_CHUNKS * CHUNK_BYTES) as u64, "{} bytes are kept", free);
    }
}

#[test]
fn memory_of_one_size_serves_another_once_free() {
    let pool = pool();
    let fill = |bytes| (0..4 << 20).step_by(bytes).map(|_| Filled::take(pool, bytes, 1)).collect::<Vec<_>>();
    let cells = fill(512);
    let touched_bytes = pool.touched_bytes.load(Ordering::Relaxed);
    for bytes in [1536, 64, 512] {
        cells_free(pool, fill(bytes));
    }
    cells_free(pool, cells);
    cells_free(pool, fill(1536));
    cells_free(pool, fill(2048));
    let now = pool.touched_bytes.load(Ordering::Relaxed);
    // The first time two fillings were in use at once.
    assert!(now <= touched_bytes * 2 + touched_bytes / 8, "{now} {touched_bytes}");
}

fn cells_free(pool: &Pool, cells: Vec<Filled>) {
    for cell in cells {
        cell.free(pool);
    }
}

#[test]
fn a_few_cells_take_a_few_pages() {
    let pool = pool();
    let _cells: Vec<_> = (1..=SIZES).map(|size| Filled::take(pool, size * UNIT_BYTES, 1)).collect();
    let CellBytes { used, free } = pool.bytes();
    assert_eq!(used, (1..=SIZES as u64).sum::<u64>() * UNIT_BYTES as u64);
    assert_eq!(used + free, SIZES as u64 * 4096);
}

#[test]
fn cells_are_freed_by_other_threads_while_their_own_goes_on() {
    let pool = pool();
    let (send, receive) = std::sync::mpsc::sync_channel::<Vec<(usize, usize, u8)>>(4);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3_u8).map(|thread| (thread, send.clone())).collect();
        drop(send);
        for (thread, send) in senders {
            scope.spawn(move || {
                for round in 0..60_usize {
                    let cells: Vec<_> = (0..200)
                        .map(|at| Filled::take(pool, 1 + (at * 37 + round * 101) % CELL_BYTES_MAX, thread))
                        .collect();
                    let (others, own): (Vec<_>, Vec<_>) =
                        cells.into_iter().partition(|cell| cell.bytes % 2 == 0);
                    let others = others
                        .iter()
                        .map(|cell| (cell.cell.as_ptr().expose_provenance(), cell.bytes, cell.byte));
                    send.send(others.collect()).unwrap();
                    cells_free(pool, own);
                }
            });
        }
        scope.spawn(move || {
            for cells in receive {
                for (address, bytes, byte) in cells {
                    let cell = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
                    Filled { cell, bytes, byte }.free(pool);
                }
                pool.release_some(3);
            }
        });
    });
    assert_eq!(pool.bytes().used, 0);
}

#[test]
fn a_vector_too_large_for_a_cell_lies_on_the_heap() {
    let mut large = allocator_api2::vec::Vec::<u64, Cells>::with_capacity_in(CELL_BYTES_MAX / 8 + 1, Cells);
    large.extend(0..=CELL_BYTES_MAX as u64 / 8);
    large.truncate(3);
    large.shrink_to_fit();
    assert_eq!(large, [0, 1, 2]);
    large.extend(3..1000);
    assert!(large.iter().copied().eq(0..1000));
}

/// Takes cells of the largest size until `pool` has no more, and returns them.
fn fill(pool: &Pool, cells: &mut Vec<Filled>) {
    while let Some(cell) = pool.take(CELL_BYTES_MAX) {
        // SAFETY: the cell has so many bytes, and is the test's.
        unsafe { cell.write_bytes(cells.len() as u8, CELL_BYTES_MAX) };
        cells.push(Filled { cell, bytes: CELL_BYTES_MAX, byte: cells.len() as u8 });
    }
}

#[test]
fn no_cell_is_given_out_twice_when_the_kernel_has_no_memory_for_a_while() {
    const OF_A_REGION: usize = USABLE_CHUNKS * CHUNK_BYTES / CELL_BYTES_MAX;
    let (pool, mut cells) = (pool(), Vec::new());
    for regions in 1..=2 {
        REGIONS_LEFT.set(1);
        fill(pool, &mut cells);
        assert_eq!(cells.len(), regions * OF_A_REGION);
        assert!((0..100).all(|_| pool.take(CELL_BYTES_MAX).is_none()));
    }
    // What is given back is there at once.
    cells.drain(..100).for_each(|cell| cell.free(pool));
    fill(pool, &mut cells);
    assert_eq!(cells.len(), 2 * OF_A_REGION);
    cells_free(pool, cells);
    assert_eq!(pool.bytes().used, 0);
}
