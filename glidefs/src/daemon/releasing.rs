//! When memory that nobody uses any more goes back to the kernel: after the start, and when a load on the devices or
//! on the API has ended.
//!
//! Does not own the ways (`observe/memory/release`). Invariant: a heap so large that a walk through its free blocks could hold up a
//! worker for long is left alone, and so is one in swap.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::CellBytes;
use crate::observe::io::WorkerStats;
use crate::observe::memory::{Resident, release_heap, release_program};
use crate::worker::Worker;

/// Time from the end of the start to the release: threads made for the work end after ten seconds without any, and leave memory too.
const PAUSE: Duration = Duration::from_secs(15);
/// Time from one look at the load on the devices to the next. Threads made for the work end meanwhile, as above.
const LOOK_PAUSE: Duration = Duration::from_secs(12);
/// Most requests of all devices between two looks that count as no load. So 200 a second.
const QUIET_REQUESTS_MAX: u64 = 2400;
/// A request that changes something counts as so many requests of devices: ten or so are a load.
const CHANGE_REQUESTS: u64 = 240;
/// Shortest time from one release to that after a load: what goes back has to return for the next load.
const LOAD_PAUSE: Duration = Duration::from_mins(1);
/// Memory beside the arenas of the workers from which on the heap is left alone: four thousand devices created at once take less.
/// Nearly all memory that changes of exports leave is in parts of the heap that threads of the API take memory from, and workers do not. Extents
/// do not lie on the heap, and do not count.
const REST_BYTES_MAX: u64 = 128 << 20;

/// Releases memory. Reads the figures of the workers, and how many requests of the API have changed something.
#[derive(Debug)]
pub(super) struct Releasing {
    workers: Vec<Arc<WorkerStats>>,
    changes: Arc<AtomicU64>,
}

impl Releasing {
    pub fn new(workers: &[Worker], changes: Arc<AtomicU64>) -> Self {
        Self { workers: workers.iter().map(|worker| Arc::clone(&worker.stats)).collect(), changes }
    }

    /// Releases what the start or a load alone needed.
    async fn release(&self) {
        let heap = self.may_release_heap();
        off_thread(move || {
            if heap {
                release_heap();
            }
            release_program();
        })
        .await;
    }

    /// Releases memory when the start has ended, which is now, and whenever a load has.
    pub async fn run(&self) {
        tokio::time::sleep(PAUSE).await;
        self.release().await;
        let (mut seen, mut is_used, mut released) = (self.requests(), false, Instant::now());
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            let requests = self.requests();
            if requests.wrapping_sub(std::mem::replace(&mut seen, requests)) > QUIET_REQUESTS_MAX {
                is_used = true;
            } else if is_used && released.elapsed() >= LOAD_PAUSE {
                self.release().await;
                (is_used, released) = (false, Instant::now());
            }
        }
    }

    /// Requests of all devices and the API so far.
    fn requests(&self) -> u64 {
        let changes = self.changes.load(Ordering::Relaxed).wrapping_mul(CHANGE_REQUESTS);
        self.workers.iter().fold(changes, |sum, worker| sum.wrapping_add(worker.requests.get()))
    }

    fn may_release_heap(&self) -> bool {
        let arenas: u64 = self.workers.iter().map(|worker| worker.pool.arena_bytes.get()).sum();
        let cells = CellBytes::now();
        Resident::now().is_some_and(|resident| is_small(resident, arenas + cells.used + cells.free))
    }
}

/// Whether a walk through the free blocks of the heap is short, where arenas of workers and extents have `others` bytes. Mapped segments
/// of the log do not count either.
fn is_small(resident: Resident, others: u64) -> bool {
    resident.swapped == 0 && resident.all.saturating_sub(resident.locked + others) <= REST_BYTES_MAX
}

/// On a thread for work that waits: the work takes the locks of the allocator.
async fn off_thread(work: impl FnOnce() + Send + 'static) {
    // An error means that the runtime stops.
    let _ = tokio::task::spawn_blocking(work).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_heap_and_one_in_swap_are_left_alone() {
        const ARENAS: u64 = 1 << 30;
        let resident = |rest, swapped| Resident { all: ARENAS + 7 + rest, files: 7, locked: 7, swapped };
        assert!(is_small(resident(REST_BYTES_MAX, 0), ARENAS));
        assert!(!is_small(resident(REST_BYTES_MAX + 1, 0), ARENAS));
        assert!(!is_small(resident(0, 4096), ARENAS));
    }
}
