//! What a pool promises, as properties over every interleaving of acquire, poll, cancel and release.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;

use super::buddy::{PAGE_BYTES, SizeClass};
use super::*;
use crate::observe::io::{PoolStats, WorkerStats};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

fn pool(slots: usize) -> (Pool, Arc<WorkerStats>) {
    let stats = Arc::new(WorkerStats::default());
    (Pool::new(slots, Arc::clone(&stats)).expect("pool"), stats)
}

fn poll(acquire: &mut Acquire, waker: &Waker) -> Option<Slot> {
    match pin!(acquire).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(slot) => Some(slot),
        Poll::Pending => None,
    }
}

fn acquire(pool: &Pool, len: usize) -> Acquire {
    pool.acquire(len).expect("a length that fits")
}

fn class_bytes(len: usize) -> usize {
    SizeClass::for_len(len).expect("a length that fits").bytes()
}

/// Marks every page of a slot.
fn mark(slot: &mut Slot, id: u64) {
    for page in slot.chunks_mut(PAGE_BYTES) {
        page[..8].copy_from_slice(&id.to_le_bytes());
        page[PAGE_BYTES - 8..].copy_from_slice(&id.to_le_bytes());
    }
}

fn is_marked(slot: &Slot, id: u64) -> bool {
    slot.chunks(PAGE_BYTES)
        .all(|page| page[..8] == id.to_le_bytes() && page[PAGE_BYTES - 8..] == id.to_le_bytes())
}

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

/// A pool, what is out of it, and what must be true of both.
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

    /// Polls the customer at `index`; one that is ready although nobody woke it would have slept for ever.
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

    /// How many customers have memory reserved: exactly the oldest ones do, and they have all that is not in slots.
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

    /// Whether an aligned run of `bytes` is free, as the slots that are out show.
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
        // All of it has merged again.
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

#[test]
fn a_length_that_no_slot_holds_is_refused_with_the_reason() {
    let (pool, stats) = pool(1);
    for len in [0, REQUEST_BYTES_MAX + 1, usize::MAX] {
        assert!(pool.try_acquire(len).is_none());
        assert!(matches!(pool.acquire(len), Err(BufferError::SlotLength { len: refused }) if refused == len));
    }
    assert_eq!((stats.pool.acquires.get(), stats.pool.waits.get()), (0, 0));
}

#[test]
fn a_pool_of_no_slots_or_of_too_many_is_refused() {
    for slots in [0, SLOTS_MAX + 1, usize::MAX] {
        let error = Pool::new(slots, Arc::default()).expect_err("refused");
        assert!(matches!(error, BufferError::SlotCount { slots: refused } if refused == slots));
        assert!(error.to_string().contains("slots_per_worker"));
    }
}

#[test]
fn the_slot_freed_last_is_taken_first() {
    let (pool, _stats) = pool(2);
    for len in [4096, 16_384, 65_536, REQUEST_BYTES_MAX] {
        let slots: Vec<Slot> = std::iter::from_fn(|| pool.try_acquire(len)).collect();
        let mut slots: VecDeque<Slot> = slots.into();
        let middle = slots.remove(slots.len() / 2).expect("in range");
        let offset = middle.offset();
        drop(slots.pop_front());
        drop(middle);
        assert_eq!(pool.try_acquire(len).map(|slot| slot.offset()), Some(offset));
    }
}

#[test]
fn counters_tell_what_was_handed_out_and_who_waited() {
    let (pool, stats) = pool(1);
    let stats = &stats.pool;
    assert_eq!(stats.arena_bytes.get(), REQUEST_BYTES_MAX as u64);
    let first = pool.try_acquire(70_000).expect("slot");
    assert_eq!((stats.acquires.get(), stats.live_bytes.get()), (1, REQUEST_BYTES_MAX as u64));
    let mut waiter = acquire(&pool, 5000);
    assert!(poll(&mut waiter, Waker::noop()).is_none());
    std::thread::sleep(std::time::Duration::from_millis(2));
    drop(first);
    let second = poll(&mut waiter, Waker::noop()).expect("granted");
    assert_eq!((stats.acquires.get(), stats.waits.get()), (2, 1));
    assert!(stats.wait_nanos.get() >= 2_000_000);
    assert_eq!((stats.live_bytes.get(), stats.live_bytes_max.get()), (16_384, REQUEST_BYTES_MAX as u64));
    drop(second);
    assert_eq!(stats.live_bytes.get(), 0);
}

#[test]
fn dropping_the_waiter_at_the_head_serves_a_smaller_one_behind_it() {
    let (pool, _stats) = pool(1);
    let _small = pool.try_acquire(1).expect("slot");
    let large = acquire(&pool, REQUEST_BYTES_MAX);
    let flag = Arc::new(Flag::default());
    let mut next = acquire(&pool, 1);
    assert!(poll(&mut next, &Waker::from(Arc::clone(&flag))).is_none());
    drop(large);
    assert!(flag.take());
    assert!(poll(&mut next, Waker::noop()).is_some());
}

#[test]
fn a_grant_that_is_dropped_before_it_is_fetched_goes_to_the_next() {
    let (pool, _stats) = pool(1);
    let held = pool.try_acquire(REQUEST_BYTES_MAX).expect("slot");
    let granted = acquire(&pool, REQUEST_BYTES_MAX);
    let flag = Arc::new(Flag::default());
    let mut next = acquire(&pool, REQUEST_BYTES_MAX);
    assert!(poll(&mut next, &Waker::from(Arc::clone(&flag))).is_none());
    drop(held);
    assert!(pool.try_acquire(1).is_none(), "what was granted cannot be taken by another");
    assert!(!flag.take());
    drop(granted);
    assert!(flag.take());
    assert!(poll(&mut next, Waker::noop()).is_some());
}

#[test]
fn the_waker_of_the_latest_poll_is_the_one_that_is_woken() {
    let (pool, _stats) = pool(1);
    let held = pool.try_acquire(REQUEST_BYTES_MAX).expect("slot");
    let (old, new) = (Arc::new(Flag::default()), Arc::new(Flag::default()));
    let mut waiter = acquire(&pool, 1);
    assert!(poll(&mut waiter, &Waker::from(Arc::clone(&old))).is_none());
    assert!(poll(&mut waiter, &Waker::from(Arc::clone(&new))).is_none());
    assert_eq!(Arc::strong_count(&old), 1, "the pool lets go of a waker it does not need");
    drop(held);
    assert_eq!((old.take(), new.take()), (false, true));
}

#[test]
fn slots_and_waiters_outlive_the_pool_they_came_from() {
    let (pool, _stats) = pool(1);
    let mut slot = pool.try_acquire(1).expect("slot");
    let mut waiter = acquire(&pool, REQUEST_BYTES_MAX);
    drop(pool);
    slot.fill(9);
    drop(slot);
    let mut slot = poll(&mut waiter, Waker::noop()).expect("granted");
    drop(waiter);
    slot.fill(9);
}

thread_local! {
    // What a waker that comes back into the pool works on: wakers must be `Send`, pools are not.
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
    static WAITER: RefCell<Option<Acquire>> = const { RefCell::new(None) };
}

/// Uses the pool when it is woken and when it is dropped.
struct Meddler;

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        meddle();
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        meddle();
    }
}

/// Releases a slot, takes another and polls a waiter, holding nothing meanwhile: each of them may come back here.
fn meddle() {
    let Some(pool) = POOL.with_borrow(Clone::clone) else { return };
    drop(SLOTS.with_borrow_mut(Vec::pop));
    if let Some(slot) = pool.try_acquire(1) {
        SLOTS.with_borrow_mut(|slots| slots.push(slot));
    }
    if let Some(mut waiter) = WAITER.take() {
        match poll(&mut waiter, Waker::noop()) {
            Some(slot) => SLOTS.with_borrow_mut(|slots| slots.push(slot)),
            None => WAITER.set(Some(waiter)),
        }
    }
}

#[test]
fn a_waker_may_use_the_pool_when_it_is_woken_and_when_it_is_dropped() {
    let (pool, stats) = pool(1);
    let held = pool.try_acquire(REQUEST_BYTES_MAX).expect("slot");
    WAITER.set(Some(acquire(&pool, 1)));
    POOL.set(Some(pool.clone()));
    let mut waiters: Vec<Acquire> = (0..3).map(|_| acquire(&pool, 1)).collect();
    for waiter in &mut waiters {
        assert!(poll(waiter, &Waker::from(Arc::new(Meddler))).is_none());
        // Replacing a waker drops the one before.
        assert!(poll(waiter, &Waker::from(Arc::new(Meddler))).is_none());
    }
    drop(waiters.pop());
    drop(held);
    let served: Vec<Slot> = waiters.iter_mut().filter_map(|waiter| poll(waiter, Waker::noop())).collect();
    assert_eq!(served.len(), 2);
    assert!(WAITER.take().is_none(), "the first in the queue was served while others were woken");
    drop(served);
    POOL.set(None);
    SLOTS.take();
    assert_eq!(stats.pool.live_bytes.get(), 0);
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn polling_after_the_slot_was_handed_over_is_a_bug_that_shows() {
    let (pool, _stats) = pool(1);
    let mut future = acquire(&pool, 1);
    let _slot = poll(&mut future, Waker::noop());
    let _never = poll(&mut future, Waker::noop());
}
