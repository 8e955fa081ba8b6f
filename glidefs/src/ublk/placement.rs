//! The choice of the worker for each new queue.
//!
//! Owns the number of queues placed on each worker. Does not own the queues, nor how busy a worker is (`worker/load.rs`).
//! Invariants: the queues of a device are spread as evenly as the workers allow; the worker chosen for the first queue of a device
//! has at most an eighth more queues than the worker with the fewest. The later queues of a device go to workers without a queue of
//! the device first, however many queues these workers have. A device that comes later is placed by the numbers and loads of then, and so
//! evens out what devices that went have left.

use std::sync::Mutex;

use crate::locks::MutexExt;

/// Loads that differ by less, per cent, are the same: the number of queues decides then.
const LOAD_STEP_PERCENT: u64 = 10;

/// The number of queues on each worker.
pub struct Placement {
    queues: Mutex<Vec<usize>>,
}

impl Placement {
    /// Places on `workers` workers without a queue.
    pub fn new(workers: usize) -> Self {
        Self { queues: Mutex::new(vec![0; workers]) }
    }

    /// Counts one more queue on the worker that is chosen for the queue. `own` are the workers of the device's other queues;
    /// `busy_percent` tells how busy each worker was of late.
    pub fn place(&self, own: &[usize], busy_percent: &[u64]) -> usize {
        let mut queues = self.queues.lock_whole();
        let worker = choose(&queues, own, busy_percent);
        if let Some(placed) = queues.get_mut(worker) {
            *placed = placed.saturating_add(1);
        }
        worker
    }

    /// Counts one queue less on `worker`.
    pub fn remove(&self, worker: usize) {
        if let Some(placed) = self.queues.lock_whole().get_mut(worker) {
            *placed = placed.saturating_sub(1);
        }
    }
}

/// Among the workers with the fewest queues of the device, and about the fewest queues in all, the least busy one.
fn choose(queues: &[usize], own: &[usize], busy_percent: &[u64]) -> usize {
    let fewest = queues.iter().min().copied().unwrap_or(0);
    let rank = |&worker: &usize| {
        let of_device = own.iter().filter(|&&other| other == worker).count();
        let busy = busy_percent.get(worker).copied().unwrap_or(0) / LOAD_STEP_PERCENT;
        (of_device, queues[worker] > fewest + fewest / 8, busy, queues[worker])
    };
    (0..queues.len()).min_by_key(rank).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_workers_with_as_many_queues_the_least_busy_is_chosen() {
        assert_eq!(choose(&[4, 4, 4], &[], &[90, 20, 50]), 1);
        assert_eq!(choose(&[4, 3, 4], &[], &[0, 90, 0]), 1, "fewer queues come first");
        assert_eq!(choose(&[80, 84, 120], &[], &[90, 20, 0]), 1, "an eighth more queues are about as many");
        assert_eq!(choose(&[80, 84], &[], &[29, 20]), 0, "loads of the same step are the same");
        assert_eq!(choose(&[], &[], &[]), 0);
    }

    #[test]
    fn queues_that_went_are_made_up_for_by_those_that_come() {
        let placement = Placement::new(2);
        let idle = [0, 0];
        let placed: Vec<usize> = (0..8).map(|_| placement.place(&[], &idle)).collect();
        for worker in placed.into_iter().filter(|&worker| worker == 1) {
            placement.remove(worker);
        }
        assert_eq!([(); 4].map(|()| placement.place(&[], &idle)), [1; 4]);
        assert_eq!(placement.place(&[], &[50, 0]), 1);
    }

    proptest! {
        #[test]
        fn a_chosen_worker_has_at_most_an_eighth_more_queues_than_the_one_with_fewest(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec(0u64..101, 5)), 1..300),
        ) {
            let placement = Placement::new(5);
            let mut placed = Vec::new();
            for (is_removal, busy) in steps {
                if is_removal && !placed.is_empty() {
                    placement.remove(placed.swap_remove(placed.len() / 2));
                    continue;
                }
                let before = placement.queues.lock_whole().clone();
                let worker = placement.place(&[], &busy);
                let fewest = before.iter().min().unwrap();
                prop_assert!(before[worker] <= fewest + fewest / 8);
                placed.push(worker);
            }
        }

        #[test]
        fn the_queues_of_a_device_are_spread_evenly(
            queues in 1usize..20,
            others in prop::collection::vec(0usize..40, 1..8),
            busy in prop::collection::vec(0u64..101, 8),
        ) {
            let workers = others.len();
            let placement = Placement { queues: Mutex::new(others) };
            let mut own = Vec::new();
            for _ in 0..queues {
                own.push(placement.place(&own, &busy));
            }
            let counts: Vec<usize> = (0..workers).map(|w| own.iter().filter(|&&other| other == w).count()).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
