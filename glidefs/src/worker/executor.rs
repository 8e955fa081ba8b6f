//! The single-threaded executor of a worker: runs the few requests which wait for a slot or for the store.
//!
//! Owns the tasks and the signal that a task is ready. Does not own the loop, and does not block: when no task is ready the
//! worker sleeps in its ring, and a wake-up from another thread calls the notify hook, which ends the sleep. Invariant: no
//! wake-up is lost. Either the signal is up when [`Executor::run_ready`] looks, or another thread raised the signal from down to
//! up and called the hook. So `run_ready` must be the last call before the worker sleeps.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream};

/// Says that a task is ready.
struct Signal {
    ready: AtomicBool,
    /// The worker's thread, which looks at the signal without a hook.
    owner: ThreadId,
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl Signal {
    /// Takes the signal down, and says whether the signal was up.
    fn take(&self) -> bool {
        // The load alone is enough while nothing is ready, and leaves the cache line shared. Acquire: a task sees everything
        // which the waker did before raising the signal.
        self.ready.load(Ordering::Relaxed) && self.ready.swap(false, Ordering::Acquire)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A swap, not a store: a swap continues the release sequence, so `take` sees everything which other threads released
        // before.
        let was_up = self.ready.swap(true, Ordering::Release);
        if !was_up && thread::current().id() != self.owner {
            (self.notify)();
        }
    }
}

/// Runs futures on the thread which made the executor.
pub struct Executor<T> {
    tasks: FuturesUnordered<LocalBoxFuture<'static, T>>,
    signal: Arc<Signal>,
    /// Raises the signal.
    waker: Waker,
}

impl<T> Executor<T> {
    /// An executor without tasks for this thread. Another thread calls `notify` when the thread made a task ready while none
    /// was. `notify` must make the worker call [`run_ready`](Self::run_ready), and must not block.
    pub fn new(notify: Arc<dyn Fn() + Send + Sync>) -> Self {
        let owner = thread::current().id();
        let signal = Arc::new(Signal { ready: AtomicBool::new(false), owner, notify });
        let waker = Waker::from(Arc::clone(&signal));
        Self { tasks: FuturesUnordered::new(), signal, waker }
    }

    /// Adds a task. The next [`run_ready`](Self::run_ready) runs the task.
    pub fn spawn(&self, task: impl Future<Output = T> + 'static) {
        self.tasks.push(Box::pin(task));
        self.waker.wake_by_ref();
    }

    /// Polls tasks until none is ready, also tasks which get ready meanwhile, and hands what each came to to `ended`. While nothing is
    /// ready the call is one load. A task which wakes itself in every poll would keep the call from returning.
    pub fn run_ready(&mut self, mut ended: impl FnMut(T)) {
        while self.signal.take() {
            let mut context = Context::from_waker(&self.waker);
            while let Poll::Ready(Some(result)) = Pin::new(&mut self.tasks).poll_next(&mut context) {
                ended(result);
            }
        }
    }

    /// Whether there is no task at all, ready or waiting.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::future::{pending, poll_fn};
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    /// Runs what is ready. Returns how many tasks have ended.
    fn run(executor: &mut Executor<()>) -> usize {
        let mut ended = 0;
        executor.run_ready(|()| ended += 1);
        ended
    }

    fn has_ready(executor: &Executor<()>) -> bool {
        executor.signal.ready.load(Ordering::Relaxed)
    }

    fn executor() -> (Executor<()>, Arc<AtomicUsize>) {
        let notified = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&notified);
        let hook = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        (Executor::new(Arc::new(hook)), notified)
    }

    /// Tokens for which tasks wait. Any thread gives tokens.
    #[derive(Default)]
    struct Gate {
        state: Mutex<(usize, VecDeque<Waker>)>,
    }

    impl Gate {
        fn open(&self, tokens: usize) {
            let mut state = self.state.lock().expect("gate");
            state.0 += tokens;
            let wakers = std::mem::take(&mut state.1);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }

        async fn pass(&self) {
            poll_fn(|cx| {
                let mut state = self.state.lock().expect("gate");
                if state.0 > 0 {
                    state.0 -= 1;
                    return Poll::Ready(());
                }
                state.1.push_back(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    #[test]
    fn a_task_runs_when_asked_for_and_not_before() {
        let (mut executor, notified) = executor();
        let ran = Rc::new(Cell::new(false));
        let flag = Rc::clone(&ran);
        executor.spawn(async move { flag.set(true) });
        assert!(!ran.get() && !executor.is_idle() && has_ready(&executor));
        assert_eq!(run(&mut executor), 1);
        assert!(ran.get() && executor.is_idle() && !has_ready(&executor));
        assert_eq!(notified.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_task_that_waits_is_not_polled_until_it_is_woken() {
        let (mut executor, _notified) = executor();
        let gate = Rc::new(Gate::default());
        let polls = Rc::new(Cell::new(0));
        let (inner, count) = (Rc::clone(&gate), Rc::clone(&polls));
        executor.spawn(async move {
            let mut pass = std::pin::pin!(inner.pass());
            poll_fn(|cx| {
                count.set(count.get() + 1);
                pass.as_mut().poll(cx)
            })
            .await;
        });
        assert_eq!((run(&mut executor), run(&mut executor), polls.get()), (0, 0, 1));
        assert!(!executor.is_idle() && !has_ready(&executor));
        gate.open(1);
        assert!(has_ready(&executor));
        assert_eq!((run(&mut executor), polls.get()), (1, 2));
        assert!(executor.is_idle());
    }

    #[test]
    fn waking_from_the_owning_thread_calls_no_hook() {
        let (mut executor, notified) = executor();
        let gate = Rc::new(Gate::default());
        let inner = Rc::clone(&gate);
        executor.spawn(async move { inner.pass().await });
        run(&mut executor);
        gate.open(1);
        assert_eq!((run(&mut executor), notified.load(Ordering::SeqCst)), (1, 0));
    }

    #[test]
    fn waking_many_tasks_from_another_thread_calls_the_hook_once() {
        let (mut executor, notified) = executor();
        let gate = Arc::new(Gate::default());
        for _ in 0..10 {
            let inner = Arc::clone(&gate);
            executor.spawn(async move { inner.pass().await });
        }
        run(&mut executor);
        thread::scope(|scope| scope.spawn(|| gate.open(10)).join().expect("opened"));
        assert_eq!(notified.load(Ordering::SeqCst), 1);
        assert_eq!(run(&mut executor), 10);
        assert!(executor.is_idle());
    }

    #[test]
    fn a_chain_of_wake_ups_among_tasks_is_run_to_its_end_in_one_call() {
        let (mut executor, _notified) = executor();
        let gates: Vec<Rc<Gate>> = (0..100).map(|_| Rc::default()).collect();
        // Each task waits for the one spawned after it.
        for pair in gates.windows(2) {
            let (next, own) = (Rc::clone(&pair[0]), Rc::clone(&pair[1]));
            executor.spawn(async move {
                own.pass().await;
                next.open(1);
            });
        }
        assert_eq!(run(&mut executor), 0);
        gates[99].open(1);
        assert_eq!(run(&mut executor), 99);
    }

    #[test]
    fn a_task_that_yields_is_polled_again_until_it_ends() {
        let (mut executor, _notified) = executor();
        executor.spawn(async {
            for _ in 0..1000 {
                let mut yielded = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut yielded, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        });
        assert_eq!(run(&mut executor), 1);
    }

    #[test]
    fn dropping_the_executor_drops_tasks_that_still_wait() {
        let (mut executor, _notified) = executor();
        let alive = Rc::new(());
        for polled in [true, false] {
            let held = Rc::clone(&alive);
            executor.spawn(async move {
                pending::<()>().await;
                drop(held);
            });
            if polled {
                run(&mut executor);
            }
        }
        assert_eq!(Rc::strong_count(&alive), 3);
        drop(executor);
        assert_eq!(Rc::strong_count(&alive), 1);
    }

    #[test]
    fn a_worker_that_sleeps_until_the_hook_is_called_misses_nothing_other_threads_do() {
        const THREADS: usize = 4;
        const TOKENS: usize = 2000;
        let (bell, sleeper) = mpsc::channel();
        let mut executor = Executor::new(Arc::new(move || bell.send(()).unwrap_or(())));
        let gate = Arc::new(Gate::default());
        for _ in 0..THREADS * TOKENS {
            let inner = Arc::clone(&gate);
            executor.spawn(async move { inner.pass().await });
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..TOKENS / 100).for_each(|_| gate.open(100)));
            }
            let mut ended = 0;
            while ended < THREADS * TOKENS {
                ended += run(&mut executor);
                if ended < THREADS * TOKENS {
                    let patience = deadline.saturating_duration_since(Instant::now());
                    sleeper.recv_timeout(patience).expect("a wake-up was lost");
                }
            }
        });
        assert!(executor.is_idle());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn as_many_tasks_end_as_tokens_were_given(steps in prop::collection::vec((0usize..5, 0usize..5), 1..60)) {
            let (mut executor, _notified) = executor();
            let gate = Rc::new(Gate::default());
            let (mut waiting, mut tokens) = (0, 0);
            for (spawned, opened) in steps {
                for _ in 0..spawned {
                    let inner = Rc::clone(&gate);
                    executor.spawn(async move { inner.pass().await });
                }
                gate.open(opened);
                waiting += spawned;
                tokens += opened;
                let ended = run(&mut executor);
                prop_assert_eq!(ended, waiting.min(tokens));
                waiting -= ended;
                tokens -= ended;
                prop_assert_eq!(executor.is_idle(), waiting == 0);
                prop_assert!(!has_ready(&executor));
            }
        }
    }
}
