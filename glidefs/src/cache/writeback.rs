//! From the log to the store: when a cut of a volume is made, how the cut gets to the store, and which packs are merged.
//!
//! Owns the order of these steps. Does not own the content of a cut (`volume`, `layers`) nor the layout of the store (`store`).
//! Invariants: the store is told of a cut only when all writes in the cut are stable, so that no sequence number known to the store is
//! ever given out again; data counts as being in the store only when the catalog on disk says so.
//!
//! ```text
//!  first write ─▶ announced ─▶ due: size, age, quiet, asked for, cache full
//!                                │
//!            at the next FLUSH, or now ─▶ cut ─▶ complete ─▶ packs, stable ─▶ manifest ─▶ catalog ─▶ clean
//! ```

mod carry;
pub(in crate::cache) mod cut;
mod dirty;
mod due;
pub(in crate::cache) mod engine;
mod merging;
mod steps;
#[cfg(test)]
mod tests;
mod unnoted;
