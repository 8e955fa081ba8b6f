//! Metrics, logging and traces: counters for the I/O path, the table of metrics, the `/metrics` encoder, log set-up.
//!
//! A counter on the I/O path has one writer, the worker that owns the counter, so an update is a plain load and store.
//! Readers on other threads see a value that misses one update at most.

pub mod counter;
pub mod io;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod repeat;
pub mod trace;
pub mod troubles;

pub use self::logging::{chain, one_line, printable};
