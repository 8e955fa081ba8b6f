//! Wakers which come back into the pool.

use std::cell::RefCell;

use super::*;

thread_local! {
    // The pool for a waker which comes back into the pool: wakers must be `Send`, and pools are not.
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
    static WAITER: RefCell<Option<Acquire>> = const { RefCell::new(None) };
}

/// Uses the pool when woken and when dropped.
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

/// Releases a slot, takes another and polls a waiter, without a borrow held: each of the three may come back here.
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
