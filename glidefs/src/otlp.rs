//! Forwarding: traces go as spans to an OpenTelemetry collector, by OTLP over HTTP, as protobuf. Only with the feature `otel`.
//!
//! Owns the daemon's own reader of traces, and the way of spans to the collector. Does not own traces (`worker/traces`, `store/watch`).
//! Invariants: whoever makes a trace never waits for a collector; the memory is bounded in spans and in bytes, and spans without room are
//! dropped and counted; every request has a time limit; forwarding ends in a second and a half when told to, whatever the collector does.
//!
//! ```text
//! session ── gather ── queue ── send ── client ── collector
//!                                │ spans, proto
//! ```
//!
//! | File | What it owns |
//! |---|---|
//! | `forward` | begin and end, and the task that gathers and sends |
//! | `gather` | traces from the reader's session, with the names of exports and the time on the wall (`observe::trace::Clock`) |
//! | `queue` | traces that wait, and the bounds on them |
//! | `send` | batches, tries and pauses, and lines in the log |
//! | `client` | one request to the collector |
//! | `headers` | the file with further headers |
//! | `spans`, `proto` | a trace as spans, and the messages of OTLP |

mod client;
mod forward;
mod gather;
mod headers;
mod proto;
mod queue;
mod send;
mod spans;
#[cfg(test)]
mod tests;

pub use self::client::{Collector, OtlpError};
pub use self::forward::Forwarder;
