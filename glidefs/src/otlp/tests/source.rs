//! Traces that a test makes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::observe::trace::{PARTS, RequestTrace, Session, Source, Steps, StoreTrace, StoreWatchers};

/// A daemon with one worker, which makes the traces of the test.
pub(in crate::otlp) struct TestSource {
    session: Mutex<Option<Arc<Session>>>,
    store: StoreWatchers,
    pub requests: AtomicU64,
    /// The export which has the volume 0123.
    pub export: Mutex<String>,
}

impl Default for TestSource {
    fn default() -> Self {
        let export = Mutex::new("vm-1".into());
        Self {
            session: Mutex::default(),
            store: StoreWatchers::default(),
            requests: AtomicU64::default(),
            export,
        }
    }
}

impl TestSource {
    /// The session of the reader, while there is one.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap().clone()
    }

    /// Gives the trace to the reader, as a worker does. `false`: there is no reader, or no room.
    pub fn push(&self, trace: RequestTrace) -> bool {
        self.session().is_some_and(|session| session.worker(0).unwrap().ring.push(trace))
    }

    pub fn push_store(&self, trace: &StoreTrace) {
        self.store.push(trace);
    }
}

impl Source for TestSource {
    fn workers(&self) -> usize {
        1
    }

    fn begin(&self, session: &Arc<Session>) {
        *self.session.lock().unwrap() = Some(Arc::clone(session));
        self.store.begin(session);
    }

    fn end(&self, session: &Arc<Session>) {
        *self.session.lock().unwrap() = None;
        self.store.end(session);
    }

    fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    fn volumes(&self) -> Vec<(String, String)> {
        vec![("0123".into(), self.export.lock().unwrap().clone())]
    }
}

/// A request that was in the first `parts` parts, for `number` microseconds in part `number`.
pub(in crate::otlp) fn request(operation: &'static str, result: &'static str, parts: usize) -> RequestTrace {
    let began = Instant::now();
    let mut steps = Steps::begin(PARTS[0], began);
    let mut now = began;
    for (number, part) in (1..).zip(PARTS.into_iter().take(parts)) {
        steps.enter(part, now);
        now += Duration::from_micros(number);
    }
    steps.close(now);
    RequestTrace {
        export: Arc::from("vm-1"),
        device_id: 3,
        queue_id: 1,
        tag: 2,
        operation,
        offset_bytes: 8192,
        length_bytes: 4096,
        fua: false,
        began,
        unseen_max: Duration::from_nanos(77),
        result,
        steps,
    }
}

/// A request to the store for an object with this key.
pub(in crate::otlp) fn store(key: &str, result: &'static str) -> StoreTrace {
    StoreTrace {
        operation: "get",
        key: key.into(),
        volume: Some("0123".into()),
        is_read: true,
        bytes: 65_536,
        began: Instant::now(),
        took: Duration::from_millis(7),
        waited: Duration::from_millis(2),
        tries: 2,
        result,
    }
}
