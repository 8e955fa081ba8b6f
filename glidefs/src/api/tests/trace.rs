//! Traces as clients meet them: lines while a client reads, and none when nobody does.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};

use super::*;
use crate::api::wire::{TraceCounts, TraceEnd, TraceLine};
use crate::observe::trace::{Part, RequestTrace, Session, Steps, StoreTrace, StoreWatchers};

/// Workers and a store which do as told.
#[derive(Default)]
pub(super) struct Script {
    sessions: Mutex<Vec<Arc<Session>>>,
    store: StoreWatchers,
    /// Requests of the host, which grow with each look.
    load: std::sync::atomic::AtomicU64,
    /// Looks for names, of which the first finds none where told.
    names_after: std::sync::atomic::AtomicUsize,
}

impl Source for Script {
    fn workers(&self) -> usize {
        2
    }

    fn begin(&self, session: &Arc<Session>) {
        self.sessions.lock().unwrap().push(Arc::clone(session));
        self.store.begin(session);
    }

    fn end(&self, session: &Arc<Session>) {
        self.sessions.lock().unwrap().retain(|other| !Arc::ptr_eq(other, session));
        self.store.end(session);
    }

    fn requests(&self) -> u64 {
        self.load.fetch_add(100_000, std::sync::atomic::Ordering::Relaxed)
    }

    fn volumes(&self) -> Vec<(String, String)> {
        let order = std::sync::atomic::Ordering::Relaxed;
        if self.names_after.fetch_update(order, order, |left| left.checked_sub(1)).is_ok() {
            return Vec::new();
        }
        vec![("00aa".into(), "vm-1".into()), ("00bb".into(), "vm-2".into())]
    }
}

impl Script {
    fn readers(&self) -> usize {
        self.sessions.lock().unwrap().len()
    }

    /// Has worker 1 trace a request of `export`, for all who want such.
    fn request(&self, export: &str, tag: u16) {
        let began = Instant::now();
        let mut steps = Steps::begin(Part::Queue, began);
        steps.enter(Part::Log, began + Duration::from_nanos(10));
        steps.close(began + Duration::from_nanos(50));
        for session in &*self.sessions.lock().unwrap() {
            let side = session.worker(1).unwrap();
            if !session.wants_requests_of(export) {
                continue;
            }
            side.requests.add(1);
            side.sampled.add(1);
            let trace = RequestTrace {
                export: export.into(),
                device_id: 1,
                queue_id: 0,
                tag,
                operation: "write",
                offset_bytes: 0,
                length_bytes: 4096,
                fua: false,
                began,
                unseen_max: Duration::ZERO,
                result: "ok",
                steps: steps.clone(),
            };
            if !side.ring.push(trace) {
                side.dropped.add(1);
            }
        }
    }

    fn put(&self, volume: &str) {
        self.store.push(&StoreTrace {
            operation: "put",
            key: format!("volumes/{volume}/packs/1"),
            volume: Some(volume.into()),
            is_read: false,
            bytes: 17,
            began: Instant::now(),
            took: Duration::from_millis(3),
            waited: Duration::ZERO,
            tries: 2,
            result: "ok",
        });
    }
}

/// A client that reads a trace.
struct Reader {
    lines: Lines<BufReader<UnixStream>>,
}

impl Reader {
    async fn open(served: &Served, query: &str) -> Self {
        let mut stream = UnixStream::connect(served.socket()).await.unwrap();
        let request = format!("GET /v1/trace{query} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next_line().await.unwrap().unwrap();
        assert!(status.contains("200"), "{status}");
        while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
        Self { lines }
    }

    /// The next line but for those of counts.
    async fn next(&mut self) -> Option<TraceLine> {
        loop {
            let line = self.lines.next_line().await.unwrap()?;
            let line: TraceLine =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if !matches!(line, TraceLine::Counts(_)) {
                return Some(line);
            }
        }
    }

    async fn counts(&mut self) -> TraceCounts {
        loop {
            let line = self.lines.next_line().await.unwrap().unwrap();
            if let TraceLine::Counts(counts) = serde_json::from_str(&line).unwrap() {
                return counts;
            }
        }
    }
}

/// Returns when so many clients read.
async fn until_readers(served: &Served, readers: usize) {
    while served.source.readers() != readers {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn each_request_is_a_line_and_those_of_another_export_are_left_out() {
    let served = Served::new().await;
    served.create("vm-1", "1MiB").await;
    let mut all = Reader::open(&served, "").await;
    // The name of the parameter in releases before.
    let mut one = Reader::open(&served, "?export=vm-1&kind=requests&rate=7").await;
    served.source.request("vm-2", 5);
    served.source.request("vm-1", 6);
    let Some(TraceLine::Request(first)) = all.next().await else { panic!("no request") };
    assert_eq!((first.export.as_str(), first.tag, first.total_nanoseconds), ("vm-2", 5, 50));
    assert_eq!((first.parts.queue, first.parts.log, first.parts.sum()), (10, 40, 50));
    let Some(TraceLine::Request(only)) = one.next().await else { panic!("no request") };
    assert_eq!((only.export.as_str(), only.tag), ("vm-1", 6));
    let counts = one.counts().await;
    assert_eq!((counts.one_in, counts.requests, counts.sampled), (7, 1, 1));
}

#[tokio::test]
async fn requests_to_the_store_have_the_name_of_their_export_and_are_filtered_by_the_name() {
    let served = Served::new().await;
    served.create("vm-2", "1MiB").await;
    let mut all = Reader::open(&served, "?kind=store").await;
    let mut one = Reader::open(&served, "?export=vm-2").await;
    until_readers(&served, 2).await;
    served.source.request("vm-1", 1);
    for volume in ["00aa", "00bb", "00cc"] {
        served.source.put(volume);
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let Some(TraceLine::Store(line)) = all.next().await else { panic!("no request to the store") };
        assert_eq!((line.bytes, line.tries, line.total_nanoseconds), (17, 2, 3_000_000));
        seen.push(line.export);
    }
    assert_eq!(seen, [Some("vm-1".into()), Some("vm-2".into()), None]);
    let Some(TraceLine::Store(line)) = one.next().await else { panic!("no request to the store") };
    assert_eq!(line.volume.as_deref(), Some("00bb"));
}

#[tokio::test]
async fn the_rate_for_one_export_follows_the_requests_of_that_export() {
    let served = Served::new().await;
    served.create("vm-1", "1MiB").await;
    let mut one = Reader::open(&served, "?export=vm-1").await;
    assert!(one.counts().await.one_in > 1, "the load of the host");
    while one.counts().await.one_in > 1 {
        served.source.request("vm-1", 1);
    }
}

#[tokio::test]
async fn a_request_to_the_store_waits_for_the_name_of_its_export() {
    let served = Served::new().await;
    served.create("vm-2", "1MiB").await;
    served.source.names_after.store(1, std::sync::atomic::Ordering::Relaxed);
    let mut one = Reader::open(&served, "?export=vm-2&one_in=1").await;
    until_readers(&served, 1).await;
    served.source.put("00bb");
    let Some(TraceLine::Store(line)) = one.next().await else { panic!("no request to the store") };
    assert_eq!(line.export.as_deref(), Some("vm-2"));
}

#[tokio::test]
async fn traces_that_wait_at_the_end_are_sent_before_the_end() {
    let served = Served::new().await;
    let mut reader = Reader::open(&served, "?one_in=1").await;
    until_readers(&served, 1).await;
    for _ in 0..1000 {
        served.source.request("vm-1", 1);
    }
    served.stop.send(true).unwrap();
    let mut lines = 0;
    while let Some(TraceLine::Request(_)) = reader.next().await {
        lines += 1;
    }
    assert_eq!(lines, 1000);
}

#[tokio::test]
async fn with_the_last_reader_traces_are_off_and_the_place_is_free() {
    let served = Served::new().await;
    for _ in 0..3 {
        let mut readers = Vec::new();
        for _ in 0..4 {
            readers.push(Reader::open(&served, "?one_in=1").await);
        }
        let (status, code, message) = served.send("GET", "/v1/trace?one_in=1", "").await.refusal();
        assert_eq!((status, code.as_str()), (503, "too_many_traces"));
        assert!(message.contains("end one of them"), "{message}");
        assert_eq!(served.stats.traces.readers.load(std::sync::atomic::Ordering::Relaxed), 4);
        drop(readers);
        until_readers(&served, 0).await;
        assert!(!served.source.store.are_wanted());
    }
    assert_eq!(served.stats.traces.readers.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off_and_its_traces_are_dropped_and_counted() {
    let patience = Patience { answer: Duration::from_millis(200), ..Patience::default() };
    let served = Served::with(Access::default(), patience).await;
    let mut reader = Reader::open(&served, "?one_in=1").await;
    let mut requests = 0_u64;
    while served.source.readers() > 0 {
        served.source.request("vm-1", 1);
        requests += 1;
        if requests.is_multiple_of(500) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // The client reads what lies in the socket, and no end: the connection was cut.
    let mut lines = 0_u64;
    while let Ok(Some(line)) = reader.lines.next_line().await {
        assert!(!line.contains("\"end\""), "{line}");
        lines += u64::from(line.contains("\"request\""));
    }
    let dropped = served.stats.traces.dropped.load(std::sync::atomic::Ordering::Relaxed);
    assert!(dropped > 0 && lines + dropped <= requests, "{lines} lines, {dropped} dropped of {requests}");
}

#[tokio::test]
async fn a_trace_ends_with_its_time_and_with_the_daemon_and_says_so() {
    let served = Served::new().await;
    let mut short = Reader::open(&served, "?seconds=1&one_in=1").await;
    let end = |reason: &str| Some(TraceLine::End(TraceEnd { reason: reason.into() }));
    assert_eq!(short.next().await, end("time"));
    assert_eq!(short.next().await, None);
    let mut long = Reader::open(&served, "?one_in=1").await;
    served.stop.send(true).unwrap();
    assert_eq!(long.next().await, end("stopping"));
    served.task.await.unwrap().unwrap();
    assert_eq!(served.source.readers(), 0);
}

#[tokio::test]
async fn a_query_that_makes_no_sense_is_refused_and_so_is_a_client_without_the_token() {
    let served = Served::new().await;
    for (query, status, code, word) in [
        ("?export=vm-9", 404, "not_found", "vm-9"),
        ("?one_in=0", 400, "bad_parameter", "one_in"),
        ("?one_in=1&rate=1", 400, "bad_request", "one_in"),
        ("?seconds=0", 400, "bad_parameter", "seconds"),
        ("?seconds=3601", 400, "bad_parameter", "seconds"),
        ("?kind=none", 400, "bad_request", "kind"),
        ("?colour=red", 400, "bad_request", "colour"),
    ] {
        let (found, named, message) = served.send("GET", &format!("/v1/trace{query}"), "").await.refusal();
        assert_eq!((found, named.as_str()), (status, code), "{query}");
        assert!(message.contains(word), "{query}: {message}");
    }
    let answer = served.send_tcp("GET", "/v1/trace", "").await;
    assert_eq!(answer.status, 403);
    assert_eq!(served.source.readers(), 0);
}
