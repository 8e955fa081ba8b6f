//! Traces from the reader's session into the queue.
//!
//! Owns the choice of one request in how many is traced, where the user leaves the choice to the daemon, the time on the wall of each trace, and
//! the names of exports in traces about the store. Invariants: a look takes at most [`LOOK_TRACES_MAX`] traces before other tasks have their turn; whoever makes traces is never
//! waited for; all losses of the session are counted, those at the end of forwarding too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::queue::{Queue, Trace, Waiting};
use crate::api::{Counted, LOOK_BUSY, ReaderSeat, TraceStats, counts_of, look_at_workers, one_in_for};
use crate::observe::trace::Clock;

/// Most traces that a look takes of the workers, and of the store.
const LOOK_TRACES_MAX: usize = 256;
/// Time between two looks for traces.
const LOOK: Duration = Duration::from_millis(50);
/// Most looks for the last traces at the end.
const LAST_LOOKS_MAX: usize = 16;
/// Time between two choices of one request in so many.
const CHOICE: Duration = Duration::from_secs(1);
/// Requests that are traced a second, of all exports, where the choice is left to the daemon.
const TRACES_A_SECOND: u64 = 20;
/// Shortest time between two looks for the names of volumes: a look goes over all exports.
const NAMES: Duration = Duration::from_secs(10);
/// Longest time behind [`NAMES`] for which a name is taken for that of a volume: a volume may be opened under another name.
const NAMES_AGE_MAX: Duration = Duration::from_mins(1);

/// The reader of the session.
pub(super) struct Gatherer<'a> {
    seat: ReaderSeat,
    queue: &'a Queue,
    stats: Arc<TraceStats>,
    chosen: Instant,
    /// The requests of the host at the last choice.
    requests: u64,
    counted: Counted,
    names: HashMap<String, String>,
    names_next: Instant,
    /// Spans of the trace that waits for the name of its export.
    held: u64,
}

impl<'a> Gatherer<'a> {
    pub fn new(seat: ReaderSeat, queue: &'a Queue) -> Self {
        let now = Instant::now();
        Self {
            requests: seat.source.requests(),
            stats: Arc::clone(&seat.stats),
            seat,
            queue,
            chosen: now,
            counted: Counted::default(),
            names: HashMap::new(),
            names_next: now,
            held: 0,
        }
    }

    /// Gathers until `stop` is true, and closes the queue.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut look = Instant::now();
        loop {
            let is_stopping = tokio::select! {
                biased;
                // An error is that of a daemon that stops.
                _ = stop.wait_for(|is_stopping| *is_stopping) => true,
                () = sleep_until(look) => false,
            };
            if is_stopping {
                break;
            }
            look = Instant::now() + self.look().await;
            self.choose_one_in();
            tokio::task::yield_now().await;
        }
        self.seat.source.end(&self.seat.session);
        for _ in 0..LAST_LOOKS_MAX {
            if !self.look().await.is_zero() {
                break;
            }
        }
        self.queue.close();
    }

    /// Takes the traces that are there. Returns the time until the next look: none where more may be there.
    async fn look(&mut self) -> Duration {
        let clock = Clock::now();
        let of_store = self.look_at_store(&clock).await;
        let session = Arc::clone(&self.seat.session);
        let look = look_at_workers(&session, LOOK_TRACES_MAX, |trace| {
            let began_unix_nanos = clock.unix_nanos(trace.began);
            self.push(Waiting { began_unix_nanos, trace: Trace::Request(Box::new(trace)) });
        });
        self.count();
        if look.taken == LOOK_TRACES_MAX || of_store == LOOK_TRACES_MAX {
            Duration::ZERO
        } else if look.is_busy {
            LOOK_BUSY
        } else {
            LOOK
        }
    }

    async fn look_at_store(&mut self, clock: &Clock) -> usize {
        let mut taken = 0;
        while taken < LOOK_TRACES_MAX
            && let Some(trace) = self.seat.session.pop_store()
        {
            taken += 1;
            let began_unix_nanos = clock.unix_nanos(trace.began);
            let export = match &trace.volume {
                Some(volume) => {
                    self.held = 1;
                    self.name_of(volume).await
                }
                None => None,
            };
            self.held = 0;
            self.push(Waiting { began_unix_nanos, trace: Trace::Store { trace: Box::new(trace), export } });
        }
        taken
    }

    fn push(&self, trace: Waiting) {
        let spans = trace.spans() as u64;
        if !self.queue.push(trace) {
            self.stats.spans.dropped_queue.fetch_add(spans, Relaxed);
        }
        self.stats.spans.waiting.store(self.queue.spans() as u64, Relaxed);
    }

    /// The name of the export with this volume, where known.
    async fn name_of(&mut self, volume: &str) -> Option<String> {
        let now = Instant::now();
        let is_old = now >= self.names_next + NAMES_AGE_MAX;
        if is_old || (!self.names.contains_key(volume) && now >= self.names_next) {
            self.names_next = now + NAMES;
            let source = Arc::clone(&self.seat.source);
            // Without an answer the daemon stops.
            let names = tokio::task::spawn_blocking(move || source.volumes()).await;
            self.names = names.unwrap_or_default().into_iter().collect();
        }
        self.names.get(volume).cloned()
    }

    /// Follows the load with one request in so many, where the user has left the choice to the daemon: once a second, and at once when more
    /// requests came than the last choice was for. Busy clients pay for few traces behind a quiet time.
    fn choose_one_in(&mut self) {
        let session = &self.seat.session;
        let requests = self.seat.source.requests();
        let came = requests.wrapping_sub(self.requests);
        let time = self.chosen.elapsed();
        let is_burst = came > TRACES_A_SECOND.saturating_mul(session.one_in().into());
        if self.seat.follows_load && (time >= CHOICE || is_burst) {
            (self.chosen, self.requests) = (Instant::now(), requests);
            session.set_one_in(one_in_for(came, time, TRACES_A_SECOND));
        }
    }

    /// Adds the news of the session to the counters of the daemon.
    fn count(&mut self) {
        self.counted.add(counts_of(&self.seat.session), &self.stats);
    }
}

impl Drop for Gatherer<'_> {
    /// Counts what is left in the session: the time at the end was over, or more was left than the last looks take.
    fn drop(&mut self) {
        self.seat.source.end(&self.seat.session);
        let session = &self.seat.session;
        let mut left = std::mem::take(&mut self.held);
        // A worker may not know of the end yet: no side is asked for more than a look takes, over and over.
        for _ in 0..LOOK_TRACES_MAX * LAST_LOOKS_MAX {
            match session.pop_store() {
                Some(_) => left += 1,
                None => break,
            }
        }
        for side in session.workers() {
            for _ in 0..LOOK_TRACES_MAX * LAST_LOOKS_MAX {
                match side.ring.pop() {
                    Some(trace) => left += 1 + trace.steps.iter().len() as u64,
                    None => break,
                }
            }
        }
        self.stats.spans.dropped_stop.fetch_add(left, Relaxed);
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TraceHub;
    use crate::observe::trace::{Ask, Kinds};
    use crate::otlp::tests::source::{TestSource, request, store};

    fn seat(source: &Arc<TestSource>) -> (ReaderSeat, Arc<TraceStats>) {
        let stats = Arc::<TraceStats>::default();
        let traces = TraceHub::new(Arc::clone(source) as _, Arc::clone(&stats));
        let ask = Ask { kinds: Kinds::All, export: None, slower_than: Duration::ZERO, one_in: 1 };
        (traces.open_own(ask), stats)
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_of_a_volume_is_asked_again_after_a_while() {
        let (source, queue) = (Arc::<TestSource>::default(), Queue::default());
        let mut gatherer = Gatherer::new(seat(&source).0, &queue);
        assert_eq!(gatherer.name_of("0123").await.as_deref(), Some("vm-1"));
        *source.export.lock().unwrap() = "vm-2".into();
        assert_eq!(gatherer.name_of("0123").await.as_deref(), Some("vm-1"), "names are asked now and then");
        tokio::time::advance(NAMES + NAMES_AGE_MAX).await;
        assert_eq!(gatherer.name_of("0123").await.as_deref(), Some("vm-2"));
    }

    #[tokio::test]
    async fn traces_that_nobody_looks_at_any_more_are_counted() {
        let (source, queue) = (Arc::<TestSource>::default(), Queue::default());
        let (seat, stats) = seat(&source);
        let gatherer = Gatherer::new(seat, &queue);
        assert!(source.push(request("read", "ok", 3)));
        source.push_store(&store("volumes/0123/packs/9", "ok"));
        drop(gatherer);
        assert_eq!(stats.spans.dropped_stop.load(Relaxed), 5);
    }
}
