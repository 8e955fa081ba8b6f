//! A few threads for pure work in a row: reading and checking, ahead of one thread that decides and changes.
//!
//! A *hand* is one of these threads, the calling thread included. Owns the threads made here, which end before [`in_order`] returns,
//! and the bound on results that wait. Does not own the meaning of the work. Invariants: results are taken on the calling thread, one
//! at a time and in the order of the items, however many threads work; of several failures the first in this order counts; with one
//! hand nothing runs ahead, and no thread is made.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::locks::MutexExt;

/// Most hands that are of use: with more, results would wait for the calling thread.
pub const HANDS_MAX: usize = 8;

/// Does `work` for each of `items` on up to `hands` threads, the calling thread included, and calls `take` with each result. Items up
/// to `hands + 1` behind the one taken are begun or wait, and no others. After an error of `take` nothing more is taken; work under
/// way comes to its end.
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
    I: Iterator + Send,
    R: Send,
{
    let hands = hands.min(HANDS_MAX).min(items.size_hint().1.unwrap_or(HANDS_MAX));
    if hands <= 1 {
        return items.try_for_each(|item| take(work(item)));
    }
    let results = VecDeque::with_capacity(hands + 1);
    let row = Row {
        state: Mutex::new(State { items, results, taken: 0, is_over: false, is_broken: false }),
        changed: Condvar::new(),
        ahead_max: hands + 1,
    };
    thread::scope(|scope| {
        let _over = Over(&row);
        for _ in 1..hands {
            let helper = thread::Builder::new().name("cache-hand".into());
            // If the system gives no further thread, the threads made so far do all the work.
            if helper.spawn_scoped(scope, || row.help(&work)).is_err() {
                break;
            }
        }
        row.lead(&work, &mut take)
    })
}

/// The items, and the results on their way.
struct Row<I, R> {
    state: Mutex<State<I, R>>,
    changed: Condvar,
    /// Most items begun and not taken.
    ahead_max: usize,
}

struct State<I, R> {
    items: I,
    /// A place for each item begun, from the first one not taken.
    results: VecDeque<Option<R>>,
    taken: usize,
    /// No further item is begun.
    is_over: bool,
    /// A thread panicked: the results are not complete.
    is_broken: bool,
}

/// Lets the threads of a row end, also when the holder panics.
struct Over<'a, I, R>(&'a Row<I, R>);

impl<I, R> Drop for Over<'_, I, R> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock_whole();
        state.is_over = true;
        state.is_broken |= thread::panicking();
        drop(state);
        self.0.changed.notify_all();
    }
}

impl<I: Iterator, R> Row<I, R> {
    /// Works until no item is left.
    fn help(&self, work: impl Fn(I::Item) -> R) {
        let _over = Over(self);
        let mut state = self.state.lock_whole();
        while !state.is_over {
            state = match self.begin(&mut state) {
                Some(begun) => self.finish(state, begun, &work),
                None if state.is_over => break,
                None => self.wait(state),
            };
        }
    }

    /// Takes all results, and works where the next result is not there.
    fn lead<E>(
        &self,
        work: impl Fn(I::Item) -> R,
        take: &mut impl FnMut(R) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock_whole();
        loop {
            if matches!(state.results.front(), Some(Some(_)))
                && let Some(Some(result)) = state.results.pop_front()
            {
                state.taken += 1;
                drop(state);
                self.changed.notify_all();
                take(result)?;
                state = self.state.lock_whole();
            } else if let Some(begun) = self.begin(&mut state) {
                state = self.finish(state, begun, &work);
            } else if state.is_broken || (state.is_over && state.results.is_empty()) {
                // The scope of the threads passes a panic on.
                return Ok(());
            } else {
                state = self.wait(state);
            }
        }
    }

    /// The next item, with the item's place in the row.
    fn begin(&self, state: &mut State<I, R>) -> Option<(usize, I::Item)> {
        if state.is_over || state.results.len() >= self.ahead_max {
            return None;
        }
        let Some(item) = state.items.next() else {
            state.is_over = true;
            self.changed.notify_all();
            return None;
        };
        state.results.push_back(None);
        Some((state.taken + state.results.len() - 1, item))
    }

    fn finish<'a>(
        &'a self,
        state: MutexGuard<'a, State<I, R>>,
        (at, item): (usize, I::Item),
        work: impl Fn(I::Item) -> R,
    ) -> MutexGuard<'a, State<I, R>> {
        drop(state);
        let result = work(item);
        let mut state = self.state.lock_whole();
        let place = at - state.taken;
        if let Some(place) = state.results.get_mut(place) {
            *place = Some(result);
        }
        self.changed.notify_all();
        state
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<I, R>>) -> MutexGuard<'a, State<I, R>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
