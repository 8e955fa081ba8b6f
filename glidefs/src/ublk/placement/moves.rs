//! The choice of the next queue to move to another worker.
//!
//! Owns the rule, which looks at numbers only. Does not own the move (`devices/moving.rs`). Two rules, in this order:
//!
//! - *crowd*: a worker with at least two queues more than another, and over an eighth more, gives a queue away, as long as no
//!   load is spread less evenly by the move. The queue with the least load goes, so mostly one of an idle device.
//! - *load*: a busy worker beside a much less busy one gives that queue away which leaves the busier of the two least busy.
//!
//! Invariants: each move makes the squares of the loads sum up to less, or leaves or lowers this sum and makes the squares of the
//! numbers of queues sum up to less. So with steady loads the moves come to an end, and no queue goes back and forth. The queues of
//! a device stay spread as evenly as before.

/// A worker is busy from here on, per cent of a CPU.
const BUSY_PERCENT: u64 = 50;
/// A worker is much less busy than another which takes more of a CPU by this, per cent.
const GAP_PERCENT: u64 = 30;
/// Least gain of a move because of load, and least load of the moved queue, per cent of a CPU.
const GAIN_PERCENT: u64 = 10;

/// A device of which a queue may be moved.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The worker of each queue.
    pub workers: Vec<usize>,
    /// The part of a CPU which each queue takes of the queue's worker, per cent.
    pub loads: Vec<u64>,
}

/// A queue to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Place of the device among the candidates.
    pub device: usize,
    /// The queue of the device.
    pub queue: usize,
    pub from: usize,
    pub to: usize,
    /// The load which goes along, per cent of a CPU.
    pub load: u64,
}

/// Whether a queue may be worth a move, whatever the devices are.
pub fn may_be_worth_it(queues: &[usize], busy: &[u64]) -> bool {
    let (most, fewest) = (queues.iter().max().copied(), queues.iter().min().copied());
    most.zip(fewest).is_some_and(|(most, fewest)| is_crowded(most, fewest))
        || busiest_and_idlest(queues.len(), busy).is_some()
}

/// The next queue to move; `None` where nothing is worth a move. `queues` is the number of queues on each worker, `busy` the share of
/// a CPU which each worker took of late, per cent.
pub fn next_move(queues: &[usize], busy: &[u64], devices: &[Candidate]) -> Option<Move> {
    by_crowd(queues, busy, devices).or_else(|| by_load(queues.len(), busy, devices))
}

/// Whether a worker with `more` queues is worth being relieved for one with `fewer`.
fn is_crowded(more: usize, fewer: usize) -> bool {
    more >= fewer.saturating_add(2) && more > fewer.saturating_add(fewer / 8)
}

fn by_crowd(queues: &[usize], busy: &[u64], devices: &[Candidate]) -> Option<Move> {
    let load_of = |worker: usize| busy.get(worker).copied().unwrap_or(0);
    let mut workers: Vec<usize> = (0..queues.len()).collect();
    workers.sort_by_key(|&worker| queues[worker]);
    for &from in workers.iter().rev() {
        let emptier = workers.iter().take_while(|&&to| is_crowded(queues[from], queues[to]));
        let mut emptier = emptier.copied().peekable();
        // The workers before had more queues, so the ones that follow have no emptier worker either.
        emptier.peek()?;
        let from_here = moves_from(from, devices);
        for to in emptier {
            let fits = |candidate: &&Move| {
                candidate.load == 0 || load_of(to).saturating_add(candidate.load) <= load_of(from)
            };
            let best = from_here
                .iter()
                .filter(|candidate| spreads(&devices[candidate.device], from, to))
                .filter(fits)
                .min_by_key(|candidate| (candidate.load, candidate.device));
            if let Some(&best) = best {
                return Some(Move { to, ..best });
            }
        }
    }
    None
}

/// A busy worker and a much less busy one.
fn busiest_and_idlest(workers: usize, busy: &[u64]) -> Option<(usize, usize)> {
    let workers = workers.min(busy.len());
    let from = (0..workers).max_by_key(|&worker| busy[worker])?;
    let to = (0..workers).min_by_key(|&worker| busy[worker])?;
    let is_worth_it = busy[from] >= BUSY_PERCENT && busy[from] >= busy[to].saturating_add(GAP_PERCENT);
    is_worth_it.then_some((from, to))
}

fn by_load(workers: usize, busy: &[u64], devices: &[Candidate]) -> Option<Move> {
    let (from, to) = busiest_and_idlest(workers, busy)?;
    let after = |load: u64| busy[from].saturating_sub(load).max(busy[to].saturating_add(load));
    moves_from(from, devices)
        .into_iter()
        .filter(|candidate| candidate.load >= GAIN_PERCENT && spreads(&devices[candidate.device], from, to))
        .filter(|candidate| after(candidate.load).saturating_add(GAIN_PERCENT) <= busy[from])
        .min_by_key(|candidate| (after(candidate.load), candidate.load, candidate.device))
        .map(|best| Move { to, ..best })
}

/// The queues on worker `from` that may be moved, each as a move to the same worker.
fn moves_from(from: usize, devices: &[Candidate]) -> Vec<Move> {
    let mut moves = Vec::new();
    for (device, candidate) in devices.iter().enumerate() {
        for (queue, &worker) in candidate.workers.iter().enumerate() {
            let load = candidate.loads.get(queue).copied().unwrap_or(0);
            if worker == from {
                moves.push(Move { device, queue, from, to: from, load });
            }
        }
    }
    moves
}

/// Whether the queues of a device are spread as evenly as before when one goes from one worker to the other.
fn spreads(device: &Candidate, from: usize, to: usize) -> bool {
    let on = |worker: usize| device.workers.iter().filter(|&&other| other == worker).count();
    on(from) > on(to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(workers: &[usize], loads: &[u64]) -> Candidate {
        Candidate { workers: workers.to_vec(), loads: loads.to_vec() }
    }

    /// The workers of `devices`: the number of queues and the load of each.
    fn totals(workers: usize, devices: &[Candidate]) -> (Vec<usize>, Vec<u64>) {
        let (mut queues, mut busy) = (vec![0; workers], vec![0; workers]);
        for device in devices {
            for (&worker, load) in device.workers.iter().zip(&device.loads) {
                queues[worker] += 1;
                busy[worker] += load;
            }
        }
        (queues, busy)
    }

    #[test]
    fn a_crowded_worker_gives_the_idlest_queue_to_the_one_with_fewest() {
        let devices = [device(&[0], &[9]), device(&[0], &[0]), device(&[0], &[4]), device(&[1], &[0])];
        let expected = Move { device: 1, queue: 0, from: 0, to: 1, load: 0 };
        assert_eq!(next_move(&[3, 1], &[13, 0], &devices), Some(expected));
        assert_eq!(next_move(&[2, 1], &[13, 0], &devices), None, "one queue more is no crowd");
        assert_eq!(next_move(&[18, 16], &[13, 0], &devices), None, "an eighth more is no crowd");
        assert_eq!(next_move(&[19, 16], &[13, 0], &devices), Some(expected));
        assert_eq!(next_move(&[], &[], &[]), None);
    }

    #[test]
    fn of_two_busy_devices_on_one_worker_one_goes_to_an_idle_worker() {
        let devices = [device(&[0], &[45]), device(&[0], &[40]), device(&[1], &[0]), device(&[1], &[1])];
        let gone = next_move(&[2, 2], &[85, 1], &devices).unwrap();
        assert_eq!((gone.device, gone.from, gone.to, gone.load), (1, 0, 1, 40));
        assert_eq!(next_move(&[2, 2], &[45, 1], &devices[1..]), None, "the worker has time left");
        assert_eq!(next_move(&[2, 2], &[85, 60], &devices), None, "the other worker is busy as well");
        let alone = [device(&[0], &[85]), device(&[1], &[0])];
        assert_eq!(next_move(&[1, 1], &[85, 0], &alone), None, "nothing is gained");
    }

    #[test]
    fn queues_of_one_device_do_not_gather_on_a_worker() {
        assert_eq!(next_move(&[4, 2], &[0, 0], &[device(&[0, 1], &[0, 0])]), None);
        assert!(next_move(&[4, 2], &[0, 0], &[device(&[0, 0], &[0, 0])]).is_some());
    }

    fn devices(workers: usize) -> impl Strategy<Value = Vec<Candidate>> {
        let queue = (0..workers, prop_oneof![Just(0_u64), 0_u64..40]);
        let device = prop::collection::vec(queue, 1..4).prop_map(|queues| {
            let (workers, loads) = queues.into_iter().unzip();
            Candidate { workers, loads }
        });
        prop::collection::vec(device, 0..30)
    }

    proptest! {
        #[test]
        fn each_move_makes_the_spread_more_even_and_moves_come_to_an_end(
            (workers, mut devices) in (1usize..6).prop_flat_map(|workers| (Just(workers), devices(workers))),
        ) {
            let squares = |(queues, busy): &(Vec<usize>, Vec<u64>)| {
                let of_loads: u64 = busy.iter().map(|load| load * load).sum();
                let of_queues: usize = queues.iter().map(|queues| queues * queues).sum();
                (of_loads, of_queues)
            };
            let most_on_one = |device: &Candidate| {
                (0..workers).map(|w| device.workers.iter().filter(|&&other| other == w).count()).max()
            };
            let mut before = totals(workers, &devices);
            // The sums of squares sink with each move, so this many moves would be a circle.
            for _ in 0..100_000 {
                let Some(next) = next_move(&before.0, &before.1, &devices) else { break };
                let device = &mut devices[next.device];
                prop_assert_eq!((device.workers[next.queue], device.loads[next.queue]), (next.from, next.load));
                let spread = most_on_one(device);
                device.workers[next.queue] = next.to;
                prop_assert!(most_on_one(&devices[next.device]) <= spread);
                let after = totals(workers, &devices);
                prop_assert!(squares(&after) < squares(&before), "{before:?} {after:?}");
                before = after;
            }
            prop_assert_eq!(next_move(&before.0, &before.1, &devices), None);
        }

        #[test]
        fn idle_devices_of_one_queue_end_up_evenly_spread(
            workers in 1usize..8,
            placed in prop::collection::vec(0usize..8, 0..200),
        ) {
            let mut devices: Vec<_> = placed.iter().map(|worker| device(&[worker % workers], &[0])).collect();
            loop {
                let (queues, busy) = totals(workers, &devices);
                let Some(next) = next_move(&queues, &busy, &devices) else {
                    let (most, fewest) = (*queues.iter().max().unwrap(), *queues.iter().min().unwrap());
                    prop_assert!(!is_crowded(most, fewest), "{queues:?}");
                    break;
                };
                devices[next.device].workers[next.queue] = next.to;
            }
        }
    }
}
