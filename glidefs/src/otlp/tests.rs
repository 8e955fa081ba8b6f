//! Forwarding to collectors that take, refuse, hang, or are away: real requests over TCP, decoded by `opentelemetry-proto`.

mod collector;
mod forward;
mod queue;
pub(super) mod source;
mod spans;
