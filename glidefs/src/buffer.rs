//! The buffer pool: all memory through which the bytes of requests pass, one arena a worker.
//!
//! ```text
//!  pool.rs     Pool, Slot, Acquire: who may have memory, and in which order
//!    ├─ waiters.rs   the queue of requests which wait for memory, and the order
//!    ├─ buddy.rs     the free parts of the arena: 128 KiB = 2 × 64 = 8 × 16 = 32 × 4 KiB
//!    └─ arena.rs     the memory itself, and the map of leased pages (all `unsafe` is there)
//! ```
//!
//! Owns the arena, the division of the arena into slots, and the order of service. Does not own pinning of threads, NUMA topology
//! or the registration with a ring: a worker pins itself, then makes the pool, so that first touch places the memory on the
//! worker's node.
//!
//! Invariants: the bytes in slots never exceed the arena, and nothing falls back to the heap; no two slots overlap; the
//! requests of one export are served strictly in order of arrival, and exports who wait take turns; a newcomer never overtakes a
//! waiter of the same export nor takes free memory past any waiter, and a large waiter is not starved by small ones; a slot is warm,
//! because the slot freed last is taken first.
//!
//! A slot must never be held across a wait for the store: fetch first, then take the slot.

mod arena;
mod buddy;
mod limits;
mod pool;
#[cfg(test)]
mod tests;
mod waiters;

pub use pool::{Acquire, Pool, Slot};
