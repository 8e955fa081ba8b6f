//! Times and bodies of spans.

use std::time::{Duration, Instant, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::source::{request, store};
use crate::observe::trace::{Clock, PARTS, Part};
use crate::otlp::queue::{Trace, Waiting};
use crate::otlp::spans::{body, resource};

/// The attribute `key` of `span`, as text.
pub(super) fn attribute(span: &Span, key: &str) -> Option<String> {
    let mut found = span.attributes.iter().filter(|attribute| attribute.key == key);
    let value = found.next()?.value.as_ref()?.value.as_ref()?;
    assert!(found.next().is_none(), "{key} is there twice");
    Some(match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(is) => is.to_string(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    })
}

fn decoded(batch: &[Waiting]) -> ExportTraceServiceRequest {
    let body = body(&resource("my-disks", "host-7"), batch);
    ExportTraceServiceRequest::decode(body.as_slice()).unwrap()
}

fn waiting(operation: &'static str, result: &'static str, parts: usize) -> Waiting {
    let trace = Trace::Request(Box::new(request(operation, result, parts)));
    Waiting { began_unix_nanos: 1_000_000_000_000, trace }
}

#[test]
fn a_request_is_a_root_and_children_without_a_gap_between_them() {
    let sent = decoded(&[waiting("read", "ok", PARTS.len())]);
    let [of_resource] = sent.resource_spans.as_slice() else { panic!("{sent:?}") };
    let keys: Vec<&str> =
        of_resource.resource.as_ref().unwrap().attributes.iter().map(|of| of.key.as_str()).collect();
    assert_eq!(keys, ["service.name", "service.version", "service.instance.id", "host.name"]);
    let [scope] = of_resource.scope_spans.as_slice() else { panic!("{sent:?}") };
    assert_eq!(scope.scope.as_ref().unwrap().name, "glidefs");
    let [root, children @ ..] = scope.spans.as_slice() else { panic!("{sent:?}") };
    assert_eq!((root.name.as_str(), root.kind, &root.status), ("read", 2, &None));
    assert_eq!((root.trace_id.len(), root.span_id.len(), root.parent_span_id.len()), (16, 8, 0));
    for (key, value) in [
        ("glidefs.export", "vm-1"),
        ("glidefs.operation", "read"),
        ("glidefs.offset", "8192"),
        ("glidefs.bytes", "4096"),
        ("system.device", "/dev/ublkb3"),
        ("glidefs.queue", "1"),
        ("glidefs.tag", "2"),
        ("glidefs.fua", "false"),
        ("glidefs.outcome", "ok"),
        ("glidefs.unseen_max_nanoseconds", "77"),
        ("disk.io.direction", "read"),
    ] {
        assert_eq!(attribute(root, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(attribute(root, "error.type"), None);
    assert_eq!(children.iter().map(|child| child.name.as_str()).collect::<Vec<_>>(), PARTS.map(Part::name));
    let mut start = root.start_time_unix_nano;
    assert_eq!(start, 1_000_000_000_000);
    for (number, child) in (1..).zip(children) {
        assert_eq!((&child.trace_id, &child.parent_span_id), (&root.trace_id, &root.span_id));
        assert_eq!(child.start_time_unix_nano, start);
        start += number * 1000;
        assert_eq!(child.end_time_unix_nano, start);
    }
    assert_eq!(root.end_time_unix_nano, start);
    let mut ids: Vec<_> = scope.spans.iter().map(|span| &span.span_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1 + PARTS.len());
}

#[test]
fn a_failure_is_an_error_and_a_flush_has_no_direction() {
    let sent = decoded(&[waiting("flush", "io_error", 1), waiting("read", "ok", 1)]);
    let spans = &sent.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans[0].status.as_ref().unwrap().code, 2);
    assert_eq!(attribute(&spans[0], "error.type").as_deref(), Some("io_error"));
    assert_eq!(attribute(&spans[0], "disk.io.direction"), None);
    assert_ne!(spans[0].trace_id, spans[2].trace_id);
}

#[test]
fn a_request_to_the_store_is_a_trace_of_its_own() {
    let of = |result, export: Option<&str>| {
        let trace = Box::new(store("volumes/0123/packs/9", result));
        Waiting { began_unix_nanos: 5, trace: Trace::Store { trace, export: export.map(Into::into) } }
    };
    let sent = decoded(&[of("ok", Some("vm-1")), of("missing", None), of("unreachable", None)]);
    let spans = &sent.resource_spans[0].scope_spans[0].spans;
    for (key, value) in [
        ("glidefs.store.operation", "get"),
        ("glidefs.store.key", "volumes/0123/packs/9"),
        ("glidefs.store.bytes", "65536"),
        ("glidefs.store.tries", "2"),
        ("glidefs.store.waited_nanoseconds", "2000000"),
        ("glidefs.store.is_read", "true"),
        ("glidefs.store.volume", "0123"),
        ("glidefs.export", "vm-1"),
    ] {
        assert_eq!(attribute(&spans[0], key).as_deref(), Some(value), "{key}");
    }
    assert_eq!((spans[0].name.as_str(), spans[0].kind), ("store get", 3));
    assert_eq!((spans[0].start_time_unix_nano, spans[0].end_time_unix_nano), (5, 7_000_005));
    let codes: Vec<_> = spans.iter().map(|span| span.status.as_ref().map(|status| status.code)).collect();
    assert_eq!(codes, [None, None, Some(2)]);
    assert_eq!(attribute(&spans[1], "glidefs.export"), None);
}

#[test]
fn a_step_of_the_wall_clock_moves_whole_traces_and_never_turns_one_around() {
    let began = Instant::now();
    for wall in [1_000_u64, 5_000, 3] {
        let clock = Clock::read(|| began, || UNIX_EPOCH + Duration::from_secs(wall));
        let trace = Trace::Request(Box::new(request("read", "ok", 3)));
        let sent = decoded(&[Waiting { began_unix_nanos: clock.unix_nanos(began), trace }]);
        let root = &sent.resource_spans[0].scope_spans[0].spans[0];
        assert_eq!(root.start_time_unix_nano, wall * 1_000_000_000);
        assert_eq!(root.end_time_unix_nano - root.start_time_unix_nano, 6_000);
    }
}
