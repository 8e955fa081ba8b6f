//! Counters of traces, and of spans for a collector.
//!
//! The names are those of the counts of a trace in the API, and of the reasons of `glidefs_otlp_dropped_spans_total`.

use std::sync::atomic::AtomicU64;

/// Counters of traces, of all clients.
#[derive(Debug, Default)]
pub struct TraceStats {
    /// Clients that read traces at this moment, a gauge.
    pub readers: AtomicU64,
    /// Traces of requests that were made.
    pub traces: AtomicU64,
    /// Requests chosen and not traced, as too many were traced at the same time.
    pub not_traced: AtomicU64,
    /// Traces dropped because they came faster than they were read.
    pub dropped: AtomicU64,
    /// Spans for a collector.
    pub spans: SpanStats,
}

/// Counters of spans for an OpenTelemetry collector; all zero where none is configured.
#[derive(Debug, Default)]
pub struct SpanStats {
    /// Spans that wait to be sent, a gauge.
    pub waiting: AtomicU64,
    /// Spans that the collector has taken.
    pub sent: AtomicU64,
    /// Spans dropped as too many waited.
    pub dropped_queue: AtomicU64,
    /// Spans that the collector did not want.
    pub dropped_rejected: AtomicU64,
    /// Spans dropped after several tries.
    pub dropped_failed: AtomicU64,
    /// Spans that were left when the daemon stopped.
    pub dropped_stop: AtomicU64,
    /// Requests to the collector that failed.
    pub failures: AtomicU64,
}
