//! The clients who read traces: how many, and the session of each from begin to end.
//!
//! Invariants: a session ends with its [`ReaderSeat`]; more clients than [`READERS_MAX`] never read at once; the permit of a client is taken
//! until workers and store have let go of its session, so the memory of sessions is bounded, and no worker frees that memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::stats::TraceStats;
use crate::api::error::ApiError;
use crate::api::wire::ProblemCode as P;
use crate::observe::trace::{Ask, Session, Source};
use crate::worker::traces::SESSIONS_MAX;

/// Most clients that read traces at once. The daemon's own reader needs no permit.
pub(in crate::api) const READERS_MAX: usize = SESSIONS_MAX - 1;
/// Requests that are traced a second, of all exports, where the client leaves the choice to the daemon.
pub(super) const TRACES_A_SECOND: u64 = 200;
/// One request in so many is traced for the daemon's own reader before the first choice: a daemon may begin under load.
#[cfg(feature = "otel")]
const ONE_IN_AT_FIRST: u32 = 1000;
/// How long requests are counted before the first choice of one request in so many.
const LOOK: Duration = Duration::from_millis(100);

/// Time between two looks whether workers and store have let go of a session that has ended.
const LET_GO: Duration = Duration::from_millis(20);

/// The traces of a daemon, for clients. Cheap to clone.
#[derive(Clone)]
pub struct TraceHub {
    source: Arc<dyn Source>,
    permits: Arc<Semaphore>,
    stats: Arc<TraceStats>,
    /// Becomes true when all clients have to end.
    ending: watch::Sender<bool>,
}

/// A daemon without requests, for tests and measurements of the API.
struct NoTraces;

impl Source for NoTraces {
    fn workers(&self) -> usize {
        0
    }

    fn begin(&self, _: &Arc<Session>) {}

    fn end(&self, _: &Arc<Session>) {}

    fn requests(&self) -> u64 {
        0
    }

    fn volumes(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl Default for TraceHub {
    /// The traces of a daemon without requests.
    fn default() -> Self {
        Self::new(Arc::new(NoTraces), Arc::default())
    }
}

/// A client that reads, or the daemon itself. Dropped, the traces for the reader end.
pub struct ReaderSeat {
    /// The filter of the reader, and the lines on which traces come.
    pub session: Arc<Session>,
    /// Those who make the traces.
    pub source: Arc<dyn Source>,
    /// Whether the daemon chooses one request in how many is traced.
    pub follows_load: bool,
    /// Counters of the traces of all readers.
    pub stats: Arc<TraceStats>,
    /// Becomes true when all clients have to end.
    pub ending: watch::Receiver<bool>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for ReaderSeat {
    fn drop(&mut self) {
        self.source.end(&self.session);
        self.stats.readers.fetch_sub(1, Ordering::Relaxed);
        let (session, permit) = (Arc::clone(&self.session), self.permit.take());
        // Without a runtime the daemon stops.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                while Arc::strong_count(&session) > 1 {
                    tokio::time::sleep(LET_GO).await;
                }
                drop((session, permit));
            });
        }
    }
}

impl TraceHub {
    /// The traces that `source` makes, counted in `stats`.
    pub fn new(source: Arc<dyn Source>, stats: Arc<TraceStats>) -> Self {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Self { source, permits, stats, ending: watch::channel(false).0 }
    }

    /// Ends the answers to all clients, now and from now on.
    pub(in crate::api) fn end_all(&self) {
        self.ending.send_replace(true);
    }

    /// Begins to trace for a client. Where `ask` has no `one_in`, the number follows the load.
    pub(super) async fn open(&self, mut ask: Ask) -> Result<ReaderSeat, ApiError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::from(P::TooManyTraces))?;
        let follows_load = ask.one_in == 0;
        if follows_load {
            let before = self.source.requests();
            tokio::time::sleep(LOOK).await;
            let came = self.source.requests().wrapping_sub(before);
            ask.one_in = one_in_for(came, LOOK, TRACES_A_SECOND);
        }
        Ok(self.begin(ask, follows_load, Some(permit)))
    }

    /// Begins to trace for the daemon's own reader, the only one that is not a client. Called once in the life of a daemon, as the seat
    /// of that reader is not counted. Where `ask` has no `one_in`, the reader has to follow the load.
    #[cfg(feature = "otel")]
    pub fn open_own(&self, ask: Ask) -> ReaderSeat {
        let follows_load = ask.one_in == 0;
        let one_in = if follows_load { ONE_IN_AT_FIRST } else { ask.one_in };
        self.begin(Ask { one_in, ..ask }, follows_load, None)
    }

    fn begin(&self, ask: Ask, follows_load: bool, permit: Option<OwnedSemaphorePermit>) -> ReaderSeat {
        let session = Arc::new(Session::new(ask, self.source.workers()));
        self.stats.readers.fetch_add(1, Ordering::Relaxed);
        let seat = ReaderSeat {
            session,
            source: Arc::clone(&self.source),
            follows_load,
            stats: Arc::clone(&self.stats),
            ending: self.ending.subscribe(),
            permit,
        };
        seat.source.begin(&seat.session);
        seat
    }
}

/// One request in so many is to be traced where so many came in `time`, for about `traces_a_second`.
pub fn one_in_for(requests: u64, time: Duration, traces_a_second: u64) -> u32 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let a_second = requests.saturating_mul(1000) / millis;
    u32::try_from(a_second.div_ceil(traces_a_second.max(1))).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::observe::trace::Kinds;

    /// Workers that take no message, so that sessions stay in their inboxes.
    #[derive(Default)]
    struct Stuck(Mutex<Vec<Arc<Session>>>);

    impl Source for Stuck {
        fn workers(&self) -> usize {
            1
        }

        fn begin(&self, session: &Arc<Session>) {
            self.0.lock().unwrap().push(Arc::clone(session));
        }

        fn end(&self, _: &Arc<Session>) {}

        fn requests(&self) -> u64 {
            0
        }

        fn volumes(&self) -> Vec<(String, String)> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn a_permit_is_taken_until_the_workers_have_let_go_of_the_session() {
        let stuck = Arc::new(Stuck::default());
        let traces = TraceHub::new(Arc::clone(&stuck) as Arc<dyn Source>, Arc::default());
        let ask = Ask { kinds: Kinds::All, export: None, slower_than: Duration::ZERO, one_in: 1 };
        for _ in 0..READERS_MAX {
            drop(traces.open(ask.clone()).await.unwrap_or_else(|_| panic!("there is a permit")));
        }
        tokio::task::yield_now().await;
        assert!(traces.open(ask.clone()).await.is_err());
        stuck.0.lock().unwrap().clear();
        while traces.open(ask.clone()).await.is_err() {
            tokio::time::sleep(LET_GO).await;
        }
    }

    #[cfg(feature = "otel")]
    #[tokio::test]
    async fn the_daemons_own_reader_takes_no_permit_of_clients() {
        let traces = TraceHub::default();
        let ask = Ask { kinds: Kinds::All, export: None, slower_than: Duration::ZERO, one_in: 1 };
        let own = traces.open_own(ask.clone());
        let mut clients = Vec::new();
        while let Ok(client) = traces.open(ask.clone()).await {
            clients.push(client);
        }
        assert_eq!(clients.len(), READERS_MAX);
        assert_eq!(own.stats.readers.load(Ordering::Relaxed), READERS_MAX as u64 + 1);
    }

    #[test]
    fn about_two_hundred_requests_a_second_are_traced_and_all_where_there_are_fewer() {
        for (requests, millis, expected) in
            [(0, 1000, 1), (200, 1000, 1), (201, 1000, 2), (10_000, 100, 500), (7, 0, 35)]
        {
            let one_in = one_in_for(requests, Duration::from_millis(millis), TRACES_A_SECOND);
            assert_eq!(one_in, expected, "{requests} in {millis} ms");
        }
    }
}
