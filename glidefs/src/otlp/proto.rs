//! The messages of OTLP that spans need, by the numbers of opentelemetry-proto 1.x, which are never changed.
//!
//! Written by hand, as the crate with all messages needs the whole SDK. Invariant (tested): `opentelemetry-proto`
//! decodes the messages encoded here. Does not own the meaning of the fields (`spans`).

use prost::{Message, Oneof};

/// What is posted to `/v1/traces`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// The values of `Span.SpanKind` in use.
pub(super) const KIND_INTERNAL: i32 = 1;
pub(super) const KIND_SERVER: i32 = 2;
pub(super) const KIND_CLIENT: i32 = 3;
/// The value of `Status.StatusCode` in use.
pub(super) const STATUS_ERROR: i32 = 2;
/// The bit of `Span.flags` for a sampled trace.
pub(super) const FLAG_SAMPLED: u32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
}

/// The answer of a collector.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<ExportTracePartialSuccess>,
}

/// The message for the user, field 2, is not read: nothing that a collector says gets into the log.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl From<u64> for Value {
    /// The protocol has no numbers from 2^63 on.
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// An attribute of a span or a resource.
pub(super) fn attribute(key: &str, value: impl Into<Value>) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value.into()) }) }
}
