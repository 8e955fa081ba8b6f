//! Forwarding as a whole. No test says how long anything takes: forwarding that hangs hangs its test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message;

use super::collector::{Manner, TestCollector};
use super::source::{TestSource, request, store};
use super::spans::attribute;
use crate::api::{SpanStats, TraceHub, TraceStats};
use crate::config::{TimeSpan, TracesSection};
use crate::otlp::client::Collector;
use crate::otlp::forward::Forwarder;
use crate::otlp::queue::SPANS_MAX;
use crate::otlp::send::Patience;

/// The forwarding of traces that the test makes.
struct Stage {
    source: Arc<TestSource>,
    stats: Arc<TraceStats>,
    forwarder: Forwarder,
}

fn settings(url: &str) -> TracesSection {
    TracesSection { otlp_endpoint: Some(url.into()), one_in: Some(1), ..TracesSection::default() }
}

fn patience() -> Patience {
    let millis = Duration::from_millis;
    Patience { delay: millis(1), pause_min: millis(1), pause_max: millis(4), last: millis(200) }
}

/// Leaves a test time to change the collector's manner between two tries of a batch.
fn patience_with_pauses() -> Patience {
    let pause = Duration::from_millis(100);
    Patience { pause_min: pause, pause_max: pause, ..patience() }
}

fn stage_of(settings: &TracesSection, patience: Patience) -> Stage {
    let (source, stats) = (Arc::<TestSource>::default(), Arc::<TraceStats>::default());
    let traces = TraceHub::new(Arc::clone(&source) as _, Arc::clone(&stats));
    let collector = Collector::of(settings).unwrap().unwrap();
    let forwarder = Forwarder::begin_with(collector, settings, &traces, "host-7", patience);
    Stage { source, stats, forwarder }
}

fn stage(url: &str) -> Stage {
    stage_of(&settings(url), patience())
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Relaxed)
}

/// All spans that are counted, one way or the other.
fn counted(stats: &SpanStats) -> u64 {
    [&stats.sent, &stats.dropped_queue, &stats.dropped_rejected, &stats.dropped_failed, &stats.dropped_stop]
        .into_iter()
        .map(get)
        .sum()
}

impl Stage {
    fn spans(&self) -> &SpanStats {
        &self.stats.spans
    }

    /// Gives `number` traces of four spans to the reader, each as soon as there is room in the session.
    async fn push(&self, number: u64) {
        for _ in 0..number {
            until(|| self.source.push(request("read", "ok", 3))).await;
        }
    }
}

#[tokio::test]
async fn what_was_traced_comes_to_the_collector() {
    let collector = TestCollector::begin(Manner::status("200 OK")).await;
    let folder = tempfile::tempdir().unwrap();
    let headers = folder.path().join("headers");
    std::fs::write(&headers, "authorization: Bearer hush\n").unwrap();
    std::fs::set_permissions(&headers, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let settings = TracesSection {
        otlp_headers_file: Some(headers),
        service_name: "my-disks".into(),
        ..settings(&format!("{}/prefix/", collector.url))
    };
    let mut stage = stage_of(&settings, patience());
    assert_eq!(get(&stage.stats.readers), 1);
    let traced = request("write", "ok", 3);
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(stage.source.push(traced.clone()));
    stage.source.push_store(&store("volumes/0123/packs/9", "ok"));
    until(|| get(&stage.spans().sent) == 5).await;
    let spans = collector.spans();
    let root = spans.iter().find(|span| span.name == "write").unwrap();
    let nanos = u64::try_from(traced.steps.total().as_nanos()).unwrap();
    assert_eq!(root.end_time_unix_nano - root.start_time_unix_nano, nanos);
    let apart = root.start_time_unix_nano.abs_diff(u64::try_from(began.as_nanos()).unwrap());
    assert!(apart < 60_000_000_000, "the time is that of the wall clock, and {apart} ns off");
    let children: Vec<_> = spans.iter().filter(|span| span.parent_span_id == root.span_id).collect();
    assert_eq!(children.len(), 3);
    assert_eq!(
        children.iter().map(|child| child.end_time_unix_nano - child.start_time_unix_nano).sum::<u64>(),
        nanos
    );
    let of_store = spans.iter().find(|span| span.name == "store get").unwrap();
    assert_eq!(attribute(of_store, "glidefs.export").as_deref(), Some("vm-1"), "by the name of the volume");
    {
        let requests = collector.requests.lock().unwrap();
        let head = &requests[0].head;
        assert!(head.starts_with("post /prefix/v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
        assert!(head.contains("\r\nauthorization: bearer hush\r\n"), "{head}");
        let of = &requests[0].body.resource_spans[0].resource.as_ref().unwrap().attributes;
        assert!(format!("{of:?}").contains("my-disks"), "{of:?}");
    }
    stage.forwarder.end().await;
    assert_eq!(get(&stage.stats.readers), 0);
    assert!(stage.source.session().is_none(), "nothing is traced any more");
    assert_eq!((counted(stage.spans()), get(&stage.spans().failures)), (5, 0));
}

#[tokio::test]
async fn the_last_batch_is_sent_at_the_end() {
    let collector = TestCollector::begin(Manner::status("200 OK")).await;
    let patience = Patience { delay: Duration::from_hours(1), last: Duration::from_mins(1), ..patience() };
    let mut stage = stage_of(&settings(&collector.url), patience);
    stage.push(10).await;
    stage.forwarder.end().await;
    assert_eq!((get(&stage.spans().sent), counted(stage.spans())), (40, 40));
    assert_eq!(collector.spans().len(), 40);
    stage.forwarder.end().await;
}

#[tokio::test]
async fn a_hanging_collector_costs_bounded_memory_and_neither_keeps_workers_nor_the_end() {
    for manner in [Manner::Hangs, Manner::Sleeps] {
        let collector = TestCollector::begin(manner).await;
        let mut stage = stage(&collector.url);
        let mut traces = 0;
        while get(&stage.spans().dropped_queue) == 0 {
            stage.push(256).await;
            traces += 256;
        }
        assert!(get(&stage.spans().waiting) <= SPANS_MAX as u64);
        stage.forwarder.end().await;
        assert_eq!(counted(stage.spans()), 4 * traces, "{:?}", stage.spans());
        assert!(get(&stage.spans().dropped_stop) >= SPANS_MAX as u64 - 512, "{:?}", stage.spans());
        assert_eq!((get(&stage.spans().sent), get(&stage.spans().waiting)), (0, 0));
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up_and_sent_again() {
    let collector = TestCollector::begin(Manner::Hangs).await;
    let settings =
        TracesSection { otlp_timeout: TimeSpan(Duration::from_millis(100)), ..settings(&collector.url) };
    let mut stage = stage_of(&settings, patience_with_pauses());
    stage.push(1).await;
    until(|| get(&stage.spans().failures) >= 2).await;
    collector.behave(Manner::status("200 OK"));
    until(|| counted(stage.spans()) == 4).await;
    assert_eq!(get(&stage.spans().sent), 4, "{:?}", stage.spans());
    stage.forwarder.end().await;
}

#[tokio::test]
async fn a_batch_is_given_up_after_some_tries_where_nobody_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut stage = stage(&away);
    stage.push(1).await;
    until(|| get(&stage.spans().dropped_failed) == 4).await;
    assert_eq!(get(&stage.spans().failures), 5);
    stage.forwarder.end().await;
    assert_eq!(counted(stage.spans()), 4);
}

#[tokio::test]
async fn a_passing_failure_is_tried_again_and_a_refusal_is_not() {
    let collector =
        TestCollector::begin(Manner::status("503 Service Unavailable\r\nretry-after: 9999999")).await;
    let mut stage = stage_of(&settings(&collector.url), patience_with_pauses());
    stage.push(1).await;
    until(|| get(&stage.spans().failures) >= 2).await;
    collector.behave(Manner::status("200 OK"));
    until(|| counted(stage.spans()) == 4).await;
    assert_eq!(get(&stage.spans().sent), 4, "{:?}", stage.spans());
    let failures = get(&stage.spans().failures);
    for status in
        ["400 Bad Request", "401 Unauthorized", "404 Not Found", "500 Oops", "307 There\r\nlocation: /x"]
    {
        let rejected = get(&stage.spans().dropped_rejected);
        collector.behave(Manner::status(status));
        stage.push(1).await;
        until(|| get(&stage.spans().dropped_rejected) == rejected + 4).await;
    }
    assert_eq!(get(&stage.spans().failures), failures + 5);
    stage.forwarder.end().await;
}

#[tokio::test]
async fn spans_that_a_collector_rejects_are_counted_whatever_number_it_says() {
    for (said, rejected) in [(3, 3), (i64::MAX, 4), (-1, 0)] {
        let answer = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: said,
                error_message: "no".into(),
            }),
        };
        let body = answer.encode_to_vec();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let collector = TestCollector::begin(Manner::Answers([head.as_bytes(), &body].concat())).await;
        let mut stage = stage(&collector.url);
        stage.push(1).await;
        until(|| counted(stage.spans()) == 4).await;
        assert_eq!(get(&stage.spans().dropped_rejected), rejected);
        stage.forwarder.end().await;
    }
}

#[tokio::test]
async fn an_answer_without_end_or_sense_is_not_read_on() {
    let no_protobuf = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n\xff\xff\xff".to_vec();
    for manner in [Manner::Babbles, Manner::Answers(no_protobuf)] {
        let collector = TestCollector::begin(manner).await;
        let mut stage = stage(&collector.url);
        stage.push(1).await;
        until(|| get(&stage.spans().sent) == 4).await;
        stage.forwarder.end().await;
    }
    let no_http = TestCollector::begin(Manner::Answers(b"SSH-2.0-x\r\n".to_vec())).await;
    let mut stage = stage(&no_http.url);
    stage.push(1).await;
    until(|| get(&stage.spans().dropped_failed) == 4).await;
    stage.forwarder.end().await;
}

#[test]
fn the_log_has_a_line_when_sending_fails_and_none_for_each_failure() {
    let lines = crate::observe::logging::captured(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let collector = TestCollector::begin(Manner::status("503 hush")).await;
            let mut stage = stage(&collector.url);
            stage.push(1).await;
            until(|| get(&stage.spans().failures) >= 4).await;
            collector.behave(Manner::status("200 OK"));
            stage.push(1).await;
            until(|| get(&stage.spans().sent) >= 4).await;
            stage.forwarder.end().await;
        });
    });
    assert_eq!(lines.matches("traces cannot be sent").count(), 1, "{lines}");
    assert_eq!(lines.matches("traces are sent again").count(), 1, "{lines}");
    assert!(lines.contains("status 503") && !lines.contains("hush"), "{lines}");
}

#[tokio::test]
async fn fewer_requests_are_traced_as_the_load_grows_and_at_once_in_a_burst() {
    let collector = TestCollector::begin(Manner::status("200 OK")).await;
    let settings = TracesSection { one_in: None, ..settings(&collector.url) };
    let mut stage = stage_of(&settings, patience());
    let session = stage.source.session().unwrap();
    assert_eq!(session.one_in(), 1000, "before anything is known about the load");
    until(|| session.one_in() == 1).await;
    stage.source.requests.fetch_add(1_000_000_000, Relaxed);
    until(|| session.one_in() > 1000).await;
    stage.forwarder.end().await;
}

#[tokio::test]
async fn slow_requests_are_looked_for_among_all_and_nothing_is_traced_without_a_collector() {
    let collector = TestCollector::begin(Manner::status("200 OK")).await;
    let settings = TracesSection {
        one_in: None,
        slower_than: TimeSpan(Duration::from_millis(5)),
        ..settings(&collector.url)
    };
    let mut stage = stage_of(&settings, patience());
    let session = stage.source.session().unwrap();
    assert_eq!((session.one_in(), session.ask().slower_than), (1, Duration::from_millis(5)));
    stage.forwarder.end().await;
    drop(stage);
    let none = TracesSection::default();
    assert!(Collector::of(&none).unwrap().is_none(), "without a collector nothing is traced");
}

#[tokio::test]
async fn forwarding_that_is_dropped_traces_nothing_any_more() {
    let collector = TestCollector::begin(Manner::Hangs).await;
    let stage = stage(&collector.url);
    let (source, stats) = (Arc::clone(&stage.source), Arc::clone(&stage.stats));
    drop(stage);
    until(|| source.session().is_none() && get(&stats.readers) == 0).await;
}

#[tokio::test]
async fn what_has_failed_before_the_stop_is_not_tried_again_at_the_stop() {
    let collector = TestCollector::begin(Manner::status("503 Service Unavailable")).await;
    let hour = Duration::from_hours(1);
    let mut stage =
        stage_of(&settings(&collector.url), Patience { pause_min: hour, pause_max: hour, ..patience() });
    stage.push(1).await;
    until(|| get(&stage.spans().failures) == 1).await;
    collector.behave(Manner::status("200 OK"));
    stage.forwarder.end().await;
    assert_eq!((get(&stage.spans().sent), get(&stage.spans().dropped_stop)), (0, 4), "{:?}", stage.spans());
    assert_eq!(collector.requests.lock().unwrap().len(), 1);
}
