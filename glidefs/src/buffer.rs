//! The buffer pool: all memory through which the bytes of requests pass, one arena a worker.
//!
//! ```text
//!  pool.rs     Pool, Slot, Acquire: who may have memory, and in which order
//!    ├─ waiters.rs   the queue of those who have to wait, oldest first
//!    ├─ buddy.rs     which parts of the arena are free: 128 KiB = 2 × 64 = 8 × 16 = 32 × 4 KiB
//!    └─ arena.rs     the memory itself, and a record of which pages are lent out (all `unsafe` is there)
//! ```
//!
//! Owns the arena, the division of it into slots and the order of service. Does not own pinning of threads, NUMA
//! topology or the registration with a ring: a worker pins itself, then makes its pool, so that first touch places the
//! memory on its own node.
//!
//! Invariants: the bytes in slots never exceed the arena, and nothing falls back to the heap; no two slots overlap;
//! service is strictly in order of arrival, so a newcomer never overtakes a waiter and a large waiter is not starved by
//! small ones; a slot is warm, because of the free ones the one freed last is taken first.
//!
//! A slot must never be held across a wait for the store: fetch first, then take the slot.

mod arena;
mod buddy;
mod pool;
#[cfg(test)]
mod tests;
mod waiters;

use std::io;

use thiserror::Error;

use crate::units::REQUEST_BYTES_MAX;

pub use pool::{Acquire, Pool, Slot};

/// Most slots of [`REQUEST_BYTES_MAX`] bytes that one pool may have: an arena of 8 GiB.
pub const SLOTS_MAX: usize = 65_536;

/// Why a pool could not be made or a slot not be asked for.
#[derive(Debug, Error)]
pub enum BufferError {
    /// A pool of no slots, or of more than [`SLOTS_MAX`].
    #[error("a buffer pool cannot have {slots} slots: set slots_per_worker between 1 and {SLOTS_MAX}")]
    SlotCount {
        /// The count that was asked for.
        slots: usize,
    },
    /// The kernel gave no memory for the arena.
    #[error(
        "cannot map {arena_bytes} bytes for a buffer pool: lower slots_per_worker or give the service more memory"
    )]
    Map {
        /// Size of the arena, bytes.
        arena_bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A slot was asked for that no class holds.
    #[error("a buffer of {len} bytes cannot be had: the length must be between 1 and {REQUEST_BYTES_MAX}")]
    SlotLength {
        /// The length that was asked for, bytes.
        len: usize,
    },
}
