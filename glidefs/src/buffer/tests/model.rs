//! Service in order, and nothing lost, over every interleaving of acquire, poll, cancel and release.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::observe::io::PoolStats;

#[derive(Clone, Debug)]
enum Step {
    Try(usize),
    Acquire(usize),
    Poll(prop::sample::Index),
    Cancel(prop::sample::Index),
    Release(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let len =
        prop_oneof![1usize..=4096, 4097usize..=16384, 16385usize..=65536, 65537usize..=REQUEST_BYTES_MAX];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => len.clone().prop_map(Step::Try),
        4 => len.prop_map(Step::Acquire),
        2 => index().prop_map(Step::Poll),
        1 => index().prop_map(Step::Cancel),
        3 => index().prop_map(Step::Release),
    ]
}

/// Somebody who called `acquire` and has no slot yet.
struct Customer {
    arrival: u64,
    len: usize,
    future: Acquire,
    flag: Arc<Flag>,
    polled: bool,
}

/// A pool with its slots and waiters, and the properties of all three.
struct Shop {
    pool: Pool,
    stats: Arc<WorkerStats>,
    slots: Vec<(u64, Slot)>,
    /// In order of arrival.
    queue: VecDeque<Customer>,
    next_id: u64,
}

impl Shop {
    fn new(slots: usize) -> Self {
        let (pool, stats) = pool(slots);
        Self { pool, stats, slots: Vec::new(), queue: VecDeque::new(), next_id: 1 }
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
                let waiting = self.granted() < self.queue.len();
                if let Some(slot) = self.pool.try_acquire(*len) {
                    assert!(!waiting, "a newcomer overtook a waiter");
                    self.next_id += 1;
                    self.keep(id, *len, slot);
                }
            }
            Step::Acquire(len) => {
                self.next_id += 1;
                let future = acquire(&self.pool, *len);
                self.queue.push_back(Customer {
                    arrival: id,
                    len: *len,
                    future,
                    flag: Arc::default(),
                    polled: false,
                });
            }
            Step::Poll(index) if !self.queue.is_empty() => {
                self.poll(index.index(self.queue.len()));
            }
            Step::Cancel(index) if !self.queue.is_empty() => {
                self.queue.remove(index.index(self.queue.len()));
            }
            Step::Release(index) if !self.slots.is_empty() => self.release(index.index(self.slots.len())),
            Step::Poll(_) | Step::Cancel(_) | Step::Release(_) => {}
        }
        self.check_bound();
    }

    /// How many customers have memory reserved: exactly the oldest ones, and they have all memory outside slots.
    fn granted(&self) -> usize {
        let out: usize = self.slots.iter().map(|(_, slot)| slot.capacity()).sum();
        let mut reserved = usize::try_from(self.stats().live_bytes.get()).expect("64-bit") - out;
        let mut granted = 0;
        while reserved > 0 {
            reserved =
                reserved.checked_sub(class_bytes(self.queue[granted].len)).expect("in order of arrival");
            granted += 1;
        }
        granted
    }

    fn check_bound(&self) {
        let arena_bytes = self.pool.arena().1 as u64;
        let live = self.stats().live_bytes.get();
        assert!(
            live <= self.stats().live_bytes_max.get() && self.stats().live_bytes_max.get() <= arena_bytes
        );
        assert!(self.granted() <= self.queue.len());
    }

    /// Polls everybody, the newest first: those who are served must be the oldest.
    fn poll_all(&mut self) {
        let before: Vec<u64> = self.queue.iter().map(|customer| customer.arrival).collect();
        for index in (0..self.queue.len()).rev() {
            self.poll(index);
        }
        let left: Vec<u64> = self.queue.iter().map(|customer| customer.arrival).collect();
        assert!(
            before.ends_with(&left),
            "of {before:?} were left {left:?}, who arrived before others that were served"
        );
        let live: usize = self.slots.iter().map(|(_, slot)| slot.capacity()).sum();
        assert_eq!(self.stats().live_bytes.get(), live as u64, "nothing is reserved for anybody");
        if let Some(head) = self.queue.front() {
            assert!(!self.has_room(class_bytes(head.len)), "somebody waits although there is memory");
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
    fn service_is_in_order_of_arrival_and_within_the_arena(
        slots in 1usize..4,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut shop = Shop::new(slots);
        for step in &steps {
            shop.take_step(step);
            shop.poll_all();
        }
    }

    #[test]
    fn no_wake_up_and_no_memory_is_lost_whoever_is_polled_or_cancelled(
        slots in 1usize..4,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut shop = Shop::new(slots);
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
    ) {
        let (pool, _stats) = pool(1);
        let mut small: VecDeque<Slot> = std::iter::from_fn(|| pool.try_acquire(1)).collect();
        small.truncate(held);
        let flag = Arc::new(Flag::default());
        let mut large = acquire(&pool, REQUEST_BYTES_MAX);
        prop_assert!(poll(&mut large, &Waker::from(Arc::clone(&flag))).is_none());
        let mut newcomers = Vec::new();
        for _ in 0..rounds {
            newcomers.push(acquire(&pool, 1));
            prop_assert!(pool.try_acquire(1).is_none());
            small.pop_front();
        }
        prop_assert!(flag.take());
        prop_assert!(poll(&mut large, Waker::noop()).is_some());
    }
}
