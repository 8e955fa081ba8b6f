//! The places of a worker in which a request waits, and the one place which stops such waits.
//!
//! Each container gives out the next request only when asked: the worker's loop (`run`) decides when, and carries the request on.

pub mod divided;
pub mod held;
pub mod limits;
pub mod log_line;
pub mod ready;
pub mod stop;
pub mod tasks;
