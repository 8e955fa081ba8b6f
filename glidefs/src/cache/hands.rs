//! A few threads for pure work in a row: reading and checking, ahead of one thread that decides and changes.
//!
//! A *hand* is one of these threads. Owns the threads made here, which end before [`in_order`] returns, and the bound on results that
//! wait. Does not own the meaning of the work. Invariants: results are taken on the calling thread, one at a time and in the order of
//! the items, however many threads work; of several failures the first in this order counts; with one hand nothing runs ahead, and no
//! thread is made.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Most hands that are of use: with more, results would wait for the calling thread.
pub const HANDS_MAX: usize = 8;

/// Does `work` for each of `items` on up to `hands` threads, and calls `take` with each result. An item for each hand is begun or waits,
/// behind the one taken, and no others. After an error of `take` nothing more is taken; work under way comes to its end.
///
/// # Errors
/// The error of `take`.
pub(super) fn in_order<I, R, E>(
    hands: usize,
    mut items: I,
    work: impl Fn(I::Item) -> R + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E>
where
    I: Iterator,
    I::Item: Send,
    R: Send,
{
    let hands = hands.min(HANDS_MAX).min(items.size_hint().1.unwrap_or(HANDS_MAX));
    if hands <= 1 {
        return items.try_for_each(|item| take(work(item)));
    }
    thread::scope(|scope| {
        // If the system gives no further thread, the threads made so far do all the work.
        let mut idle: VecDeque<_> = (0..hands).map_while(|_| Hand::start(scope, &work)).collect();
        if idle.is_empty() {
            return items.try_for_each(|item| take(work(item)));
        }
        let mut busy = VecDeque::with_capacity(idle.len());
        loop {
            while let Some(hand) = idle.pop_front() {
                let Some(item) = items.next() else { break };
                // A hand that has ended has panicked: the scope passes the panic on.
                let Ok(()) = hand.items.send(item) else { return Ok(()) };
                busy.push_back(hand);
            }
            // The result of the oldest item.
            let Some(hand) = busy.pop_front() else { return Ok(()) };
            let Ok(result) = hand.results.recv() else { return Ok(()) };
            take(result)?;
            idle.push_back(hand);
        }
    })
}

/// A thread that has one item at a time, and ends when the value is dropped.
struct Hand<T, R> {
    items: SyncSender<T>,
    results: Receiver<R>,
}

impl<T: Send, R: Send> Hand<T, R> {
    fn start<'scope, 'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        work: &'scope (impl Fn(T) -> R + Sync),
    ) -> Option<Self>
    where
        T: 'scope,
        R: 'scope,
    {
        let ((give, items), (done, results)) = (sync_channel(1), sync_channel(1));
        let helper = thread::Builder::new().name("cache-hand".into());
        let serve = move || items.into_iter().map(work).try_for_each(|result| done.send(result));
        helper.spawn_scoped(scope, serve).ok()?;
        Some(Self { items: give, results })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn results_are_taken_in_the_order_of_the_items_by_any_number_of_hands() {
        for hands in 0..=HANDS_MAX + 1 {
            for count in [0, 1, 2, 3, 100] {
                let caller = thread::current().id();
                let mut taken = Vec::new();
                let took: Result<(), ()> = in_order(
                    hands,
                    0..count,
                    |item| {
                        // Later items are often finished first.
                        (0..(7 - item % 7) * 100).for_each(|_| thread::yield_now());
                        item * 3
                    },
                    |result| {
                        assert_eq!(thread::current().id(), caller);
                        taken.push(result);
                        Ok(())
                    },
                );
                assert_eq!((took, taken), (Ok(()), (0..count).map(|item| item * 3).collect()), "{hands}");
            }
        }
    }

    #[test]
    fn one_hand_works_on_the_calling_thread_and_begins_no_item_before_the_result_of_the_item_before_is_taken()
    {
        let (caller, begun, mut taken) = (thread::current().id(), AtomicUsize::new(0), 0);
        let work = |_| {
            assert_eq!(thread::current().id(), caller);
            begun.fetch_add(1, Ordering::SeqCst)
        };
        let took: Result<(), ()> = in_order(1, 0..10, work, |_| {
            taken += 1;
            assert_eq!(begun.load(Ordering::SeqCst), taken);
            Ok(())
        });
        assert_eq!((took, taken), (Ok(()), 10));
    }

    #[test]
    fn several_hands_work_at_once() {
        let (met, changed) = (Mutex::new(BTreeSet::<String>::new()), Condvar::new());
        let work = |_| {
            let mut here = met.lock().unwrap();
            here.insert(format!("{:?}", thread::current().id()));
            changed.notify_all();
            // Comes back only when three threads have been here.
            drop(changed.wait_while(here, |here| here.len() < 3).unwrap());
        };
        let took: Result<(), ()> = in_order(3, 0..6, work, |()| Ok(()));
        assert_eq!((took, met.into_inner().unwrap().len()), (Ok(()), 3));
    }

    #[test]
    fn no_more_items_are_ahead_than_hands_and_one() {
        for hands in 2..5 {
            let (begun, mut taken) = (AtomicUsize::new(0), 0);
            let work = |_| begun.fetch_add(1, Ordering::SeqCst);
            let took: Result<(), ()> = in_order(hands, 0..200, work, |_| {
                taken += 1;
                thread::yield_now();
                assert!(begun.load(Ordering::SeqCst) <= taken + hands + 1);
                Ok(())
            });
            assert_eq!((took, taken), (Ok(()), 200));
        }
    }

    #[test]
    fn the_first_failure_in_order_ends_the_row_however_early_a_later_item_fails() {
        for hands in 1..5 {
            let (mut taken, later) = (0, AtomicBool::new(false));
            let took = in_order(
                hands,
                0..100,
                |item| {
                    // With helpers, item 4 fails first.
                    while hands > 1 && item == 3 && !later.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    later.fetch_or(item == 4, Ordering::SeqCst);
                    if item == 3 || item == 4 { Err(item) } else { Ok(()) }
                },
                |result| {
                    taken += 1;
                    result
                },
            );
            assert_eq!((took, taken), (Err(3), 4));
        }
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller() {
        let helper_panics = |caller: ThreadId| {
            let arrived = AtomicUsize::new(0);
            let work = |_| {
                arrived.fetch_add(1, Ordering::SeqCst);
                // A helper is sure to have an item before the caller's first item ends.
                while arrived.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                assert_eq!(thread::current().id(), caller, "a helper panics");
            };
            in_order(2, 0..10, work, |()| Ok::<(), ()>(()))
        };
        let caller = thread::current().id();
        assert!(catch_unwind(AssertUnwindSafe(|| helper_panics(caller))).is_err());
        let taker_panics =
            || in_order(3, 0..10, |item| item, |item| if item < 4 { Ok::<(), ()>(()) } else { panic!() });
        assert!(catch_unwind(AssertUnwindSafe(taker_panics)).is_err());
    }
}
