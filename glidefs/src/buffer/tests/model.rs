//! Service in order, and nothing lost, over every interleaving of acquire, poll, cancel and release by several owners.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::fair::{Fair, Place, WEIGHT_MAX};
use crate::observe::io::PoolStats;

#[derive(Clone, Debug)]
enum Step {
    Try(usize),
    Acquire { len: usize, owner: u64, weight: u16 },
    Poll(prop::sample::Index),
    Cancel(prop::sample::Index),
    Release(prop::sample::Index),
}

fn weight() -> impl Strategy<Value = u16> {
    prop_oneof![2 => Just(WEIGHT_DEFAULT), 1 => 1..=WEIGHT_MAX]
}

fn step() -> impl Strategy<Value = Step> {
    let len =
        prop_oneof![1usize..=4096, 4097usize..=16384, 16385usize..=65536, 65537usize..=REQUEST_BYTES_MAX];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => len.clone().prop_map(Step::Try),
        4 => (len, 0..4_u64, weight()).prop_map(|(len, owner, weight)| Step::Acquire { len, owner, weight }),
        2 => index().prop_map(Step::Poll),
        1 => index().prop_map(Step::Cancel),
        3 => index().prop_map(Step::Release),
    ]
}

/// Somebody who called `acquire` and has no slot yet.
struct Customer {
    arrival: u64,
    owner: u64,
    len: usize,
    future: Acquire,
    flag: Arc<Flag>,
    polled: bool,
    /// Place in the expected order; none once memory is reserved.
    place: Option<Place>,
}

/// A pool with its slots and waiters, and the properties of all three.
struct Shop {
    pool: Pool,
    stats: Arc<WorkerStats>,
    slots: Vec<(u64, Slot)>,
    queue: VecDeque<Customer>,
    /// The order in which memory is reserved for those without.
    expected: Fair<u64, u64>,
    owners: u64,
    next_id: u64,
}

impl Shop {
    fn new(slots: usize, owners: u64) -> Self {
        let (pool, stats) = pool(slots);
        let expected = Fair::new();
        Self { pool, stats, slots: Vec::new(), queue: VecDeque::new(), expected, owners, next_id: 1 }
    }

    fn stats(&self) -> &PoolStats {
        &self.stats.pool
    }

    fn keep(&mut self, id: u64, len: usize, mut slot: Slot) {
        assert_eq!(slot.capacity(), class_bytes(len));
        assert!(slot.len() >= len && slot.offset() + slot.len() <= self.pool.arena().1);
        mark(&mut slot, id);
        self.slots.push((id, slot));
    }

    fn release(&mut self, index: usize) {
        let (id, slot) = self.slots.swap_remove(index);
        assert!(is_marked(&slot, id), "another slot wrote into this one");
        drop(slot);
    }

    /// Polls the customer at `index`. A customer who is ready although nobody woke the customer would have slept for ever.
    fn poll(&mut self, index: usize) -> bool {
        let customer = &mut self.queue[index];
        let woken = customer.flag.take();
        let Some(slot) = poll(&mut customer.future, &Waker::from(Arc::clone(&customer.flag))) else {
            customer.polled = true;
            return false;
        };
        assert!(woken || !customer.polled, "a waiter was served without being woken");
        let customer = self.queue.remove(index).expect("in range");
        self.keep(customer.arrival, customer.len, slot);
        true
    }

    fn take_step(&mut self, step: &Step) {
        let id = self.next_id;
        match step {
            Step::Try(len) => {
                let waiting = !self.expected.is_empty();
                if let Some(slot) = self.pool.try_acquire(*len) {
                    assert!(!waiting, "a newcomer overtook a waiter");
                    self.next_id += 1;
                    self.keep(id, *len, slot);
                }
            }
            Step::Acquire { len, owner, weight } => {
                self.next_id += 1;
                let owner = owner % self.owners;
                let live = self.stats().live_bytes.get();
                let future = acquire_for(&self.pool, *len, owner, *weight);
                let bytes = class_bytes(*len) as u64;
                let served = self.stats().live_bytes.get() == live + bytes;
                assert!(!served || self.expected.is_empty(), "a newcomer took memory past a waiter");
                let place = (!served).then(|| self.expected.push(owner, *weight, bytes, id));
                let (flag, len) = (Arc::default(), *len);
                self.queue.push_back(Customer {
                    arrival: id,
                    owner,
                    len,
                    future,
                    flag,
                    polled: false,
                    place,
                });
            }
            Step::Poll(index) if !self.queue.is_empty() => {
                self.poll(index.index(self.queue.len()));
            }
            Step::Cancel(index) if !self.queue.is_empty() => {
                let left = self.queue.remove(index.index(self.queue.len())).expect("in range");
                if let Some(place) = left.place {
                    self.expected.remove(&place);
                }
            }
            Step::Release(index) if !self.slots.is_empty() => self.release(index.index(self.slots.len())),
            Step::Poll(_) | Step::Cancel(_) | Step::Release(_) => {}
        }
        self.note_grants();
        // As the pool does: the next one is fixed from now on.
        self.expected.peek();
        self.check_bound();
    }

    /// Notes who got memory in the last step: those expected next, in this order, and they have all memory outside slots.
    fn note_grants(&mut self) {
        let out: usize = self.slots.iter().map(|(_, slot)| slot.capacity()).sum();
        let known: usize =
            self.queue.iter().filter(|customer| customer.place.is_none()).map(|c| class_bytes(c.len)).sum();
        let live = usize::try_from(self.stats().live_bytes.get()).expect("64-bit");
        let mut reserved = live - out - known;
        while reserved > 0 {
            let next = self.expected.pop().expect("memory is reserved for somebody");
            let next = self.queue.iter_mut().find(|customer| customer.arrival == next).expect("in the queue");
            next.place = None;
            reserved = reserved.checked_sub(class_bytes(next.len)).expect("in the order expected");
        }
    }

    fn check_bound(&self) {
        let (live, most) = (self.stats().live_bytes.get(), self.stats().live_bytes_max.get());
        assert!(live <= most && most <= self.pool.arena().1 as u64);
    }

    /// Polls everybody, the newest first: those who are served must be the oldest of their owner, and those expected.
    fn poll_all(&mut self) {
        let arrivals = |shop: &Self, owner| -> Vec<u64> {
            let own = shop.queue.iter().filter(|customer| customer.owner == owner);
            own.map(|customer| customer.arrival).collect()
        };
        let before: Vec<Vec<u64>> = (0..self.owners).map(|owner| arrivals(self, owner)).collect();
        let waiting: BTreeSet<u64> =
            self.queue.iter().filter(|customer| customer.place.is_some()).map(|c| c.arrival).collect();
        for index in (0..self.queue.len()).rev() {
            self.poll(index);
        }
        for (owner, before) in (0..).zip(before) {
            let left = arrivals(self, owner);
            assert!(
                before.ends_with(&left),
                "of {before:?} were left {left:?}, who arrived before others of the owner that were served"
            );
        }
        assert!(
            self.queue.iter().map(|customer| customer.arrival).eq(waiting),
            "others were served than expected"
        );
        let live: usize = self.slots.iter().map(|(_, slot)| slot.capacity()).sum();
        assert_eq!(self.stats().live_bytes.get(), live as u64, "nothing is reserved for anybody");
        if let Some(next) = self.expected.peek().map(|(_, arrival)| *arrival) {
            let next = self.queue.iter().find(|customer| customer.arrival == next).expect("in the queue");
            assert!(!self.has_room(class_bytes(next.len)), "somebody waits although there is memory");
        }
    }

    /// Whether an aligned run of `bytes` is free, judged by the slots handed out.
    fn has_room(&self, bytes: usize) -> bool {
        (0..self.pool.arena().1).step_by(bytes).any(|start| {
            self.slots
                .iter()
                .all(|(_, slot)| slot.offset() + slot.len() <= start || start + bytes <= slot.offset())
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn service_is_in_order_of_arrival_for_an_owner_in_turns_for_several_and_within_the_arena(
        slots in 1usize..4,
        owners in 1u64..5,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut shop = Shop::new(slots, owners);
        for step in &steps {
            shop.take_step(step);
            shop.poll_all();
        }
    }

    #[test]
    fn no_wake_up_and_no_memory_is_lost_whoever_is_polled_or_cancelled(
        slots in 1usize..4,
        owners in 1u64..5,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut shop = Shop::new(slots, owners);
        for step in &steps {
            shop.take_step(step);
        }
        // Whatever happened: as memory comes back everybody is served, in order, and only those who were woken are asked.
        shop.poll_all();
        while !shop.slots.is_empty() {
            shop.release(0);
            while let Some(index) = shop.queue.iter().position(|customer| customer.flag.0.load(Ordering::Relaxed)) {
                prop_assert!(shop.poll(index), "a waiter was woken for nothing");
            }
        }
        prop_assert!(shop.queue.is_empty(), "somebody sleeps although all memory is free");
        prop_assert_eq!(shop.stats().live_bytes.get(), 0);
        // The whole arena has merged again.
        let all: Vec<Slot> = std::iter::from_fn(|| shop.pool.try_acquire(REQUEST_BYTES_MAX)).collect();
        prop_assert_eq!(all.len(), slots);
    }

    #[test]
    fn a_large_waiter_is_served_after_those_before_it_however_many_small_ones_keep_coming(
        held in 1usize..32,
        rounds in 32usize..100,
        owners in 1u64..20,
    ) {
        let (pool, _stats) = pool(1);
        let mut small: VecDeque<Slot> = std::iter::from_fn(|| pool.try_acquire(1)).collect();
        small.truncate(held);
        let flag = Arc::new(Flag::default());
        let mut large = acquire(&pool, REQUEST_BYTES_MAX);
        prop_assert!(poll(&mut large, &Waker::from(Arc::clone(&flag))).is_none());
        let mut newcomers = Vec::new();
        for round in 0..rounds {
            newcomers.push(acquire_for(&pool, 1, 1 + round as u64 % owners, WEIGHT_MAX));
            prop_assert!(pool.try_acquire(1).is_none());
            small.pop_front();
        }
        prop_assert!(flag.take());
        prop_assert!(poll(&mut large, Waker::noop()).is_some());
    }

    #[test]
    fn a_waiter_beside_a_flood_of_another_owner_waits_for_one_round(
        flood in 1usize..64,
        flood_len in 1usize..=REQUEST_BYTES_MAX,
        len in 1usize..=REQUEST_BYTES_MAX,
    ) {
        let (pool, _stats) = pool(1);
        let held = pool.try_acquire(REQUEST_BYTES_MAX).expect("slot");
        let mut flood: VecDeque<Acquire> = (0..flood).map(|_| acquire_for(&pool, flood_len, 1, WEIGHT_DEFAULT)).collect();
        let mut one = acquire_for(&pool, len, 2, WEIGHT_DEFAULT);
        drop(held);
        let mut served = 0;
        while poll(&mut one, Waker::noop()).is_none() {
            // The flood's memory comes back at once, and the flood comes again.
            let mut first = flood.pop_front().expect("a flood that ends");
            let slot = poll(&mut first, Waker::noop()).expect("memory for somebody");
            flood.push_back(acquire_for(&pool, flood_len, 1, WEIGHT_DEFAULT));
            served += slot.capacity();
        }
        prop_assert!(served <= 2 * REQUEST_BYTES_MAX, "{served} bytes of the flood came first");
    }
}
