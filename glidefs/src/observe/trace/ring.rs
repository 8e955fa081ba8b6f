//! A bounded line of values from one thread to another, on which neither ever waits for the other.
//!
//! Invariants: [`Ring::push`] and [`Ring::pop`] never block and never allocate; values come out in the order in which they went in. One
//! thread at a time pushes, and one pops. Each place has a lock that is only ever tried: the other side holds the lock for the move of one
//! value, and a try that meets the other side counts as no room, or as nothing there.

use std::sync::Mutex;
use std::sync::TryLockError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The line of values that wait for the reader.
#[derive(Debug)]
pub struct Ring<T> {
    places: Box<[Mutex<Option<T>>]>,
    /// The place for the next value. Of the thread that pushes.
    tail: AtomicUsize,
    /// The place of the oldest value. Of the thread that pops.
    head: AtomicUsize,
}

impl<T> Ring<T> {
    /// A line for `places` values, at least one.
    pub fn new(places: usize) -> Self {
        let places = (0..places.max(1)).map(|_| Mutex::new(None)).collect();
        Self { places, tail: AtomicUsize::new(0), head: AtomicUsize::new(0) }
    }

    /// Puts `value` at the end. `false`: there is no room, and the value is dropped.
    pub fn push(&self, value: T) -> bool {
        let at = self.tail.load(Relaxed);
        let is_in = self.with(at, |place| {
            let is_free = place.is_none();
            if is_free {
                *place = Some(value);
            }
            is_free
        });
        let is_in = is_in == Some(true);
        if is_in {
            self.tail.store(self.behind(at), Relaxed);
        }
        is_in
    }

    /// Takes the oldest value, if there is one.
    pub fn pop(&self) -> Option<T> {
        let at = self.head.load(Relaxed);
        let value = self.with(at, Option::take).flatten();
        if value.is_some() {
            self.head.store(self.behind(at), Relaxed);
        }
        value
    }

    fn behind(&self, at: usize) -> usize {
        if at + 1 < self.places.len() { at + 1 } else { 0 }
    }

    /// Does `work` at a place, unless the other side is there.
    fn with<R>(&self, at: usize, work: impl FnOnce(&mut Option<T>) -> R) -> Option<R> {
        match self.places.get(at)?.try_lock() {
            Ok(mut place) => Some(work(&mut place)),
            Err(TryLockError::Poisoned(poisoned)) => Some(work(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_ring_is_a_queue_that_drops_what_has_no_room(
            places in 1..5_usize,
            pushes in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let ring = Ring::new(places);
            let mut model = VecDeque::new();
            for (number, is_push) in pushes.into_iter().enumerate() {
                if is_push {
                    let has_room = model.len() < places;
                    if has_room {
                        model.push_back(number);
                    }
                    prop_assert_eq!(ring.push(number), has_room);
                } else {
                    prop_assert_eq!(ring.pop(), model.pop_front());
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_values_in_order_and_know_how_many_were_dropped() {
        const VALUES: usize = 100_000;
        let ring = Ring::new(64);
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| (0..VALUES).filter(|value| ring.push(*value)).collect::<Vec<_>>());
            let mut seen = Vec::new();
            while !pushing.is_finished() {
                seen.extend(std::iter::from_fn(|| ring.pop()));
            }
            seen.extend(std::iter::from_fn(|| ring.pop()));
            let taken = pushing.join().unwrap();
            assert_eq!(seen, taken);
            // The reader may have had the only place for as long as the other thread ran: now both are at rest.
            assert!(ring.push(VALUES));
            assert_eq!(ring.pop(), Some(VALUES));
        });
    }

    #[test]
    fn a_place_in_the_other_hand_is_no_room_and_nothing_there() {
        let ring = Ring::new(1);
        let held = ring.places[0].lock().unwrap();
        assert!(!ring.push(1));
        assert_eq!(ring.pop(), None);
        drop(held);
        assert!(ring.push(2));
        assert_eq!(ring.pop(), Some(2));
    }
}
