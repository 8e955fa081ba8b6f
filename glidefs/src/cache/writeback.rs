//! From the log to the store: when a cut of a volume is made, how it is carried there, and what is fetched back.
//!
//! Owns the order of those steps. Does not own what a cut holds (`volume`, `layers`) nor what the store looks like
//! (`store`). Invariants: a cut leaves the host only when all it covers is stable, so that no sequence number that the store
//! knows is ever given out again; data counts as being in the store only when the catalog has that on disk.
//!
//! ```text
//!  first write ─▶ announced ─▶ due: size, age, quiet, asked for, cache full
//!                                │
//!            at the next FLUSH, or now ─▶ cut ─▶ complete ─▶ stable ─▶ packs, manifest ─▶ catalog ─▶ clean
//! ```

mod carry;
pub(in crate::cache) mod cut;
mod doubts;
mod due;
pub(in crate::cache) mod engine;
mod merging;
mod steps;
#[cfg(test)]
mod tests;
