//! Tests of the router as a whole, on a fake kernel.

mod crash;
mod deaths;
pub(crate) mod fake;
mod model;
mod operations;
mod removal;
mod starting;
mod stranded;
mod strays;
