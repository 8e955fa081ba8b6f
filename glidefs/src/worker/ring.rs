//! A safe layer over io_uring: operations own their memory, and completions give the memory back.
//!
//! ```text
//!  operation.rs   Op: the description of an operation, and Memory: the kinds of memory an operation can own
//!    │ start                                                         ▲ Completion
//!    ▼                                                               │
//!  kernel.rs      Ring<C>: the queues, and everything the kernel still uses (all `unsafe` is there)
//!    ├─ under_way.rs  an operation between the two: its entry, and the meaning of a result
//!    └─ options.rs    how a ring is set up: sizes, the flags of modern kernels
//! ```
//!
//! The worker gives each operation a context of its own type and takes contexts, results and memory out again with [`Ring::drain`],
//! which allocates nothing.
//!
//! Owns rings, their registered files and buffers, and the memory of operations under way. Does not own the purpose of an
//! operation, nor the meaning of the commands of device queues, which pass through with tokens.
//!
//! Invariants: the ring owns memory that the kernel may touch from [`Ring::start`] until the completion has been seen, also when
//! nobody waits for the completion any more; a dropped ring leaks such memory; a registered arena lives
//! as long as the ring; a transfer is never reported as longer than the transfer was.

mod kernel;
mod operation;
mod options;
#[cfg(test)]
mod tests;
mod under_way;

pub use kernel::Ring;
pub use operation::{Kind, Memory, Op, Target};
pub use options::Options;
pub use under_way::{Completion, Event, REGISTERED_BYTES_MAX};
