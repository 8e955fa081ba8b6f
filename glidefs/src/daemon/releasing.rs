//! When memory that nobody uses any more goes back to the kernel: after the start, and after each batch of requests on many exports.
//!
//! Does not own the ways (`observe/memory/release`). Invariant: a heap so large that a walk through its free blocks could hold up a
//! worker for long is left alone, and so is one in swap.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::observe::io::WorkerStats;
use crate::observe::memory::{Resident, release_heap, release_program};
use crate::worker::Worker;

/// Time from the end of the start, or of a batch, to the release: threads made for the work end after ten seconds without any, and leave
/// memory too. Batches that follow one another share a release.
const PAUSE: Duration = Duration::from_secs(15);
/// Memory beside the arenas of the workers from which on the heap is left alone: four thousand devices created at once take less.
/// Nearly all memory that a batch leaves is in parts of the heap that threads of the API take memory from, and workers do not.
const REST_BYTES_MAX: u64 = 128 << 20;

/// The memory beside the arenas of the workers.
#[derive(Debug)]
pub(super) struct Releasing(Vec<Arc<WorkerStats>>);

impl Releasing {
    pub fn new(workers: &[Worker]) -> Self {
        Self(workers.iter().map(|worker| Arc::clone(worker.stats())).collect())
    }

    /// Releases what the start, or a batch, alone needed.
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

    /// Releases memory when the start has ended, which is now, and whenever a batch has `ended`.
    pub async fn after_start_and_batches(&self, ended: &Notify) {
        loop {
            tokio::time::sleep(PAUSE).await;
            self.release().await;
            ended.notified().await;
        }
    }

    fn may_release_heap(&self) -> bool {
        let arenas = self.0.iter().map(|worker| worker.pool.arena_bytes.get()).sum();
        Resident::now().is_some_and(|resident| is_small(resident, arenas))
    }
}

/// Whether a walk through the free blocks of the heap is short, where the arenas of the workers have `arenas` bytes.
fn is_small(resident: Resident, arenas: u64) -> bool {
    resident.swapped == 0 && resident.all.saturating_sub(arenas) <= REST_BYTES_MAX
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
        let resident = |rest, swapped| Resident { all: ARENAS + rest, files: 0, swapped };
        assert!(is_small(resident(REST_BYTES_MAX, 0), ARENAS));
        assert!(!is_small(resident(REST_BYTES_MAX + 1, 0), ARENAS));
        assert!(!is_small(resident(0, 4096), ARENAS));
    }
}
