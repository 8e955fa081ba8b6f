//! Metrics and logging: counters for the I/O path, the table of every metric, the `/metrics` encoder, log set-up.
//!
//! Counters on the I/O path have one writer (the worker that owns them), so an update is a plain load and store; readers
//! on other threads see a value that is at most an update old.

pub mod counter;
pub mod io;
pub mod logging;
pub mod metrics;
pub mod repeat;

pub use self::logging::chain;
