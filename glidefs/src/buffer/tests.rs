//! The promises of a pool.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::buddy::{PAGE_BYTES, SizeClass};
use super::limits::{BufferError, SLOTS_MAX};
use super::*;
use crate::fair::WEIGHT_DEFAULT;
use crate::observe::io::WorkerStats;
use crate::units::REQUEST_BYTES_MAX;

mod model;
mod wakers;

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
    acquire_for(pool, len, 1, WEIGHT_DEFAULT)
}

fn acquire_for(pool: &Pool, len: usize, owner: u64, weight: u16) -> Acquire {
    pool.acquire(len, owner, weight).expect("a length that fits")
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

#[test]
fn a_length_that_no_slot_holds_is_refused_with_the_reason() {
    let (pool, stats) = pool(1);
    for len in [0, REQUEST_BYTES_MAX + 1, usize::MAX] {
        assert!(pool.try_acquire(len).is_none());
        assert!(
            matches!(pool.acquire(len, 1, WEIGHT_DEFAULT), Err(BufferError::SlotLength { len: refused }) if refused == len)
        );
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
fn a_grant_dropped_before_the_claim_goes_to_the_next() {
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

#[test]
#[should_panic(expected = "polled after it was ready")]
fn polling_after_the_slot_was_handed_over_is_a_bug_that_shows() {
    let (pool, _stats) = pool(1);
    let mut future = acquire(&pool, 1);
    let _slot = poll(&mut future, Waker::noop());
    let _never = poll(&mut future, Waker::noop());
}
