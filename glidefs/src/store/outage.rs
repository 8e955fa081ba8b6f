//! READs that wait for the store: which READ asks the store again, and when.
//!
//! Owns the list of waiting READs, and the turn to ask. Does not own the asking, nor the result of a READ. Invariants:
//!
//! - Of all waiting READs one asks at a time, with a pause before each time.
//! - When the store answers any READ, all READs ask again, except for READs in the pause that follows their second and later
//!   failures. Such a READ then waits for another answer or for the turn.
//! - As long as a READ waits, some READ asks, or pauses before asking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::locks::MutexExt;
use crate::observe::repeat::Repeat;

/// Pause before the READ with the turn asks the store.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses of a READ from its second failure on, before the READ waits for an answer to another READ or for the turn: shortest and
/// longest. An answer during the pause does not end the pause.
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(250);
const AGAIN_PAUSE_MAX: Duration = Duration::from_secs(4);

/// The READs that need the store. No code that can panic runs between two related changes under the lock.
#[derive(Debug, Default)]
pub(super) struct Outage {
    inner: Mutex<Inner>,
    /// Notified when the store has answered a GET.
    answered: Notify,
    /// Lets one of many log lines about waiting READs pass.
    waits: Repeat,
}

#[derive(Debug, Default)]
struct Inner {
    /// All READs that need the store: number, and since when.
    reads: BTreeMap<u64, Instant>,
    /// Number of the READ that began last.
    numbers: u64,
    /// READs that wait for the turn to ask, by failures and number: the READ with fewest failures is first.
    waiting: BTreeMap<(u32, u64), oneshot::Sender<Probe>>,
    /// Whether a READ has the turn.
    probing: bool,
}

/// Number and age of the READs that need the store, for metrics and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadsWaiting {
    /// Number of READs that need the store.
    pub count: u64,
    /// Time since the oldest of these READs began.
    pub oldest: Duration,
}

/// One READ that needs the store.
#[derive(Debug)]
pub(super) struct WaitingRead {
    outage: Arc<Outage>,
    number: u64,
    failures: u32,
    probe: Option<Probe>,
}

/// The turn to ask. A dropped turn passes to the next READ.
#[derive(Debug)]
struct Probe(Arc<Outage>);

impl Drop for Probe {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock_whole();
        inner.probing = false;
        self.0.pass_on(inner);
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        self.outage.inner.lock_whole().reads.remove(&self.number);
    }
}

impl Outage {
    /// Begins a READ that needs the store from now on.
    pub fn begin(self: &Arc<Self>) -> WaitingRead {
        let mut inner = self.inner.lock_whole();
        inner.numbers += 1;
        let number = inner.numbers;
        inner.reads.insert(number, Instant::now());
        WaitingRead { outage: Arc::clone(self), number, failures: 0, probe: None }
    }

    pub fn figures(&self) -> ReadsWaiting {
        let inner = self.inner.lock_whole();
        let oldest = inner.reads.first_key_value().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        ReadsWaiting { count: inner.reads.len() as u64, oldest }
    }

    /// Records that the store has answered a GET.
    pub fn answered(&self) {
        self.answered.notify_waiters();
    }

    fn turn(self: &Arc<Self>, failures: u32, number: u64) -> oneshot::Receiver<Probe> {
        let (sender, receiver) = oneshot::channel();
        let mut inner = self.inner.lock_whole();
        inner.waiting.insert((failures, number), sender);
        self.pass_on(inner);
        receiver
    }

    /// Gives the turn to the first waiting READ, if no READ has the turn.
    fn pass_on(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        while !inner.probing
            && let Some((_, first)) = inner.waiting.pop_first()
        {
            if first.is_closed() {
                continue;
            }
            inner.probing = true;
            drop(inner);
            // A READ that has gone away since leaves the turn in the error, whose drop passes the turn on.
            drop(first.send(Probe(Arc::clone(self))));
            return;
        }
    }
}

impl WaitingRead {
    /// Records that the store failed this READ with `error`, and returns when the READ may ask again.
    pub async fn failed(&mut self, error: &(dyn std::error::Error + Send + Sync + 'static)) {
        self.probe = None;
        self.failures = self.failures.saturating_add(1);
        if let Some(suppressed) = self.outage.waits.pass() {
            let ReadsWaiting { count, oldest } = self.outage.figures();
            tracing::warn!(
                reads = count,
                suppressed,
                oldest_seconds = oldest.as_secs(),
                error = error as &dyn std::error::Error,
                "the store does not give what READs need; they wait until it does"
            );
        }
        if let Some(doubled) = self.failures.checked_sub(2) {
            let pause = AGAIN_PAUSE_MIN.saturating_mul(2_u32.saturating_pow(doubled));
            sleep(pause.min(AGAIN_PAUSE_MAX)).await;
        }
        let outage = &self.outage;
        let probe = tokio::select! {
            biased;
            () = outage.answered.notified() => return,
            probe = outage.turn(self.failures, self.number) => probe,
        };
        tokio::select! {
            biased;
            () = outage.answered.notified() => {}
            () = sleep(PROBE_PAUSE) => {}
        }
        // A sender is dropped unused only when the runtime ends.
        self.probe = probe.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use super::*;

    /// A store that is away, and counts the requests.
    #[derive(Default)]
    struct Away {
        outage: Arc<Outage>,
        answers: AtomicBool,
        asked: AtomicU64,
        asking: AtomicU64,
        most_asking: AtomicU64,
    }

    impl Away {
        /// Asks until there is an answer. Returns the number of requests.
        async fn read(self: Arc<Self>, never: bool) -> u64 {
            let mut waiting = self.outage.begin();
            for asked in 1.. {
                self.asked.fetch_add(1, SeqCst);
                let asking = self.asking.fetch_add(1, SeqCst) + 1;
                self.most_asking.fetch_max(asking, SeqCst);
                sleep(Duration::from_millis(10)).await;
                self.asking.fetch_sub(1, SeqCst);
                if self.answers.load(SeqCst) && !never {
                    self.outage.answered();
                    return asked;
                }
                waiting.failed(&std::fmt::Error).await;
            }
            unreachable!("it asks for ever")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_outage_one_asks_for_all_and_all_go_on_when_there_is_an_answer() {
        let away = Arc::<Away>::default();
        let reads: Vec<_> = (0..1000).map(|_| tokio::spawn(Arc::clone(&away).read(false))).collect();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(away.outage.figures(), ReadsWaiting { count: 1000, oldest: Duration::from_secs(5) });
        away.most_asking.store(0, SeqCst);
        let before = away.asked.load(SeqCst);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(away.most_asking.load(SeqCst), 1);
        let asked = away.asked.load(SeqCst) - before;
        assert!((500..=600).contains(&asked), "asked {asked} times in ten minutes");
        away.answers.store(true, SeqCst);
        for read in reads {
            assert!(read.await.unwrap() <= 4);
        }
        assert_eq!(away.outage.figures(), ReadsWaiting::default());
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_never_succeed_do_not_keep_one_waiting_that_can() {
        let away = Arc::<Away>::default();
        away.answers.store(true, SeqCst);
        let hopeless: Vec<_> = (0..100).map(|_| tokio::spawn(Arc::clone(&away).read(true))).collect();
        sleep(Duration::from_mins(10)).await;
        away.answers.store(false, SeqCst);
        let unlucky = tokio::spawn(Arc::clone(&away).read(false));
        sleep(Duration::from_millis(11)).await;
        away.answers.store(true, SeqCst);
        assert_eq!(unlucky.await.unwrap(), 2, "the next that asks is who failed least");
        for read in hopeless {
            read.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_passes_its_turn_to_ask_on() {
        let away = Arc::<Away>::default();
        let impatient = tokio::spawn(Arc::clone(&away).read(false));
        sleep(Duration::from_millis(500)).await;
        let patient = tokio::spawn(Arc::clone(&away).read(false));
        sleep(Duration::from_millis(500)).await;
        impatient.abort();
        away.answers.store(true, SeqCst);
        assert!(patient.await.unwrap() <= 2);
    }
}
