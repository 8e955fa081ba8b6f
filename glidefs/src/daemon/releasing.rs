//! When memory that nobody uses any more goes back to the kernel: after the start, after each batch of requests on many exports, and when
//! a load on the devices has ended.
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
/// Time from one look at the load on the devices to the next.
const LOOK_PAUSE: Duration = Duration::from_secs(5);
/// Most requests of all devices between two looks that count as no load. A thousand idle guests make fewer.
const QUIET_REQUESTS_MAX: u64 = 1000;
/// After so many looks in a row without a load, the load has ended. What a load needs comes back in the first milliseconds of the next.
const QUIET_LOOKS: u32 = 2;
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

    /// Releases memory when the start has ended, which is now, whenever a batch has `ended`, and whenever a load has.
    pub async fn after_start_and_batches(&self, ended: &Notify) {
        tokio::time::sleep(PAUSE).await;
        self.release().await;
        let mut load = Load::new(self.requests());
        loop {
            let batch_ended = tokio::select! {
                () = ended.notified() => true,
                () = tokio::time::sleep(LOOK_PAUSE) => false,
            };
            if batch_ended {
                tokio::time::sleep(PAUSE).await;
            }
            if load.has_ended(self.requests()) | batch_ended {
                self.release().await;
            }
        }
    }

    /// Requests of all devices so far.
    fn requests(&self) -> u64 {
        self.0.iter().fold(0, |sum, worker| sum.wrapping_add(worker.requests.get()))
    }

    fn may_release_heap(&self) -> bool {
        let arenas = self.0.iter().map(|worker| worker.pool.arena_bytes.get()).sum();
        Resident::now().is_some_and(|resident| is_small(resident, arenas))
    }
}

/// The load on the devices, at the last look.
#[derive(Debug)]
struct Load {
    requests: u64,
    /// Looks in a row without a load, since the last one with a load; `None` when the end of that load was told already.
    quiet: Option<u32>,
}

impl Load {
    fn new(requests: u64) -> Self {
        Self { requests, quiet: None }
    }

    /// Whether a load has ended by this look, at which devices have made so many `requests`. Tells each end once.
    fn has_ended(&mut self, requests: u64) -> bool {
        let more = requests.wrapping_sub(std::mem::replace(&mut self.requests, requests));
        if more > QUIET_REQUESTS_MAX {
            self.quiet = Some(0);
            return false;
        }
        let Some(quiet) = self.quiet.as_mut() else { return false };
        *quiet += 1;
        let has_ended = *quiet >= QUIET_LOOKS;
        if has_ended {
            self.quiet = None;
        }
        has_ended
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
    fn the_end_of_a_load_is_told_once_after_some_looks_without_one() {
        let (mut load, mut requests) = (Load::new(7), 7);
        let mut look = |more: u64| {
            requests += more;
            load.has_ended(requests)
        };
        assert!(![0, 0, 10, 0].map(&mut look).contains(&true), "there was no load");
        assert_eq!([5000, 1000, 999, 0, 0].map(&mut look), [false, false, true, false, false]);
        assert_eq!([1001, 0, 1001, 0, 0, 0].map(&mut look), [false, false, false, false, true, false]);
    }

    #[test]
    fn a_large_heap_and_one_in_swap_are_left_alone() {
        const ARENAS: u64 = 1 << 30;
        let resident = |rest, swapped| Resident { all: ARENAS + rest, files: 0, swapped };
        assert!(is_small(resident(REST_BYTES_MAX, 0), ARENAS));
        assert!(!is_small(resident(REST_BYTES_MAX + 1, 0), ARENAS));
        assert!(!is_small(resident(0, 4096), ARENAS));
    }
}
