//! Pinned threads which serve the queues of many devices, one io_uring each.
//!
//! ```text
//!  device queues ──CQE──▶ requests ──slot──▶ cache shard ──turn──▶ completed ──SQE──▶ device queues
//!        ▲                   │ no slot: executor    │ must wait: ring (fdatasync, read)     │
//!        └───────────────────┴──────────────────────┴───────────────────────────────────────┘
//! ```
//!
//! Owns the threads, their rings, inboxes and buffer pools, and the way of a request through a worker. Does not own the kernel's
//! side of a queue ([`QueueDriver`], implemented by `ublk`), nor where bytes live (`cache`). The header of `worker/run.rs` lists
//! every place in which a request can wait.
//!
//! Invariants: a worker never blocks outside the wait of its ring; each tag has exactly one SQE or one request outstanding; a
//! worker which ends unexpectedly ends the process, because the worker's devices would hang for ever otherwise.

pub(crate) mod capabilities;
mod company;
pub(crate) mod cpus;
pub(crate) mod driver;
pub(crate) mod engine;
mod executor;
mod handle;
mod inbox;
pub(crate) mod load;
mod queues;
mod requests;
pub mod ring;
mod run;
mod tag;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod traces;
mod waits;

pub(crate) use driver::{Failure, QueueDriver, QueueGone};
pub(crate) use handle::WorkerError;
pub use handle::{Worker, WorkerOptions, start};
