//! A trace as spans.
//!
//! Owns names and attributes: those of OpenTelemetry's semantic conventions where there are such, else `glidefs.*`. Invariants: a request of
//! a device is one trace, of a root and a child for each step, which follow each other without a gap from the begin of the root to the end of
//! the root; a request to the store is a trace of its own, as nothing says which requests of devices wait for it.

use prost::Message;
use uuid::Uuid;

use super::proto::{
    ExportTraceServiceRequest, FLAG_SAMPLED, InstrumentationScope, KIND_CLIENT, KIND_INTERNAL, KIND_SERVER,
    KeyValue, Resource, ResourceSpans, STATUS_ERROR, ScopeSpans, Span, Status, attribute,
};
use super::queue::{Trace, Waiting};
use crate::observe::trace::{RequestTrace, StoreTrace, nanos};

/// Results that are no errors: somebody else has made the object, there is none, or the answer is no longer needed.
const NO_ERRORS: [&str; 4] = ["ok", "existed", "missing", "given_up"];

/// The daemon, as the sender of spans.
pub(super) fn resource(service_name: &str, host_name: &str) -> Resource {
    // An instance is a process: the daemon behind an upgrade is another one.
    let instance = Uuid::new_v4().to_string();
    let mut attributes = vec![
        attribute("service.name", service_name),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
        attribute("service.instance.id", instance.as_str()),
    ];
    if !host_name.is_empty() {
        attributes.push(attribute("host.name", host_name));
    }
    Resource { attributes }
}

/// The body of a request with the spans of `batch`.
pub(super) fn body(resource: &Resource, batch: &[Waiting]) -> Vec<u8> {
    let mut spans = Vec::with_capacity(batch.iter().map(Waiting::spans).sum());
    for Waiting { began_unix_nanos, trace } in batch {
        match trace {
            Trace::Request(trace) => request(trace, *began_unix_nanos, &mut spans),
            Trace::Store { trace, export } => {
                spans.push(store(trace, export.as_deref(), *began_unix_nanos));
            }
        }
    }
    let scope = InstrumentationScope { name: "glidefs".into(), version: env!("CARGO_PKG_VERSION").into() };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }],
    };
    request.encode_to_vec()
}

/// Adds the root of a request, and a child for each step.
fn request(trace: &RequestTrace, began: u64, spans: &mut Vec<Span>) {
    let (trace_id, root_id) = (rand::random::<[u8; 16]>().to_vec(), rand::random::<[u8; 8]>().to_vec());
    let mut attributes = vec![
        attribute("glidefs.export", &*trace.export),
        attribute("glidefs.operation", trace.operation),
        attribute("glidefs.offset", trace.offset_bytes),
        attribute("glidefs.bytes", trace.length_bytes),
        attribute("system.device", format!("/dev/ublkb{}", trace.device_id).as_str()),
        attribute("glidefs.queue", u64::from(trace.queue_id)),
        attribute("glidefs.tag", u64::from(trace.tag)),
        attribute("glidefs.fua", trace.fua),
        attribute("glidefs.outcome", trace.result),
        attribute("glidefs.unseen_max_nanoseconds", nanos(trace.unseen_max)),
    ];
    if ["read", "write"].contains(&trace.operation) {
        attributes.push(attribute("disk.io.direction", trace.operation));
    }
    let status = judge(trace.result, &mut attributes);
    spans.push(Span {
        trace_id: trace_id.clone(),
        span_id: root_id.clone(),
        parent_span_id: Vec::new(),
        name: trace.operation.into(),
        kind: KIND_SERVER,
        start_time_unix_nano: began,
        end_time_unix_nano: began.saturating_add(nanos(trace.steps.total())),
        attributes,
        status,
        flags: FLAG_SAMPLED,
    });
    let mut start = began;
    for (part, took) in trace.steps.iter() {
        let end = start.saturating_add(nanos(took));
        spans.push(Span {
            trace_id: trace_id.clone(),
            span_id: rand::random::<[u8; 8]>().to_vec(),
            parent_span_id: root_id.clone(),
            name: part.name().into(),
            kind: KIND_INTERNAL,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes: Vec::new(),
            status: None,
            flags: FLAG_SAMPLED,
        });
        start = end;
    }
}

/// The span of a request to the store, with all tries.
fn store(trace: &StoreTrace, export: Option<&str>, began: u64) -> Span {
    let mut attributes = vec![
        attribute("glidefs.store.operation", trace.operation),
        attribute("glidefs.store.key", trace.key.as_str()),
        attribute("glidefs.store.bytes", trace.bytes),
        attribute("glidefs.store.tries", u64::from(trace.tries)),
        attribute("glidefs.store.waited_nanoseconds", nanos(trace.waited)),
        attribute("glidefs.store.is_read", trace.is_read),
        attribute("glidefs.outcome", trace.result),
    ];
    attributes.extend(export.map(|export| attribute("glidefs.export", export)));
    attributes.extend(trace.volume.as_deref().map(|volume| attribute("glidefs.store.volume", volume)));
    let status = judge(trace.result, &mut attributes);
    Span {
        trace_id: rand::random::<[u8; 16]>().to_vec(),
        span_id: rand::random::<[u8; 8]>().to_vec(),
        parent_span_id: Vec::new(),
        name: format!("store {}", trace.operation),
        kind: KIND_CLIENT,
        start_time_unix_nano: began,
        end_time_unix_nano: began.saturating_add(nanos(trace.took)),
        attributes,
        status,
        flags: FLAG_SAMPLED,
    }
}

/// The status of a span with this result, and the attribute about the error if there is one.
fn judge(result: &str, attributes: &mut Vec<KeyValue>) -> Option<Status> {
    let is_error = !NO_ERRORS.contains(&result);
    is_error.then(|| {
        attributes.push(attribute("error.type", result));
        Status { code: STATUS_ERROR }
    })
}
