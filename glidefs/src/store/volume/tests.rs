//! Volumes on a store in memory: contents, requests, competing writers, and stops at every request.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod block_cache;
mod broken;
mod commits;
mod compaction;
mod damage;
mod delete;
mod divergence;
mod lies;
mod long;
mod losses;
mod missing;
mod model;
mod notes;
mod ownership;
mod race;
mod read_memory;
mod reading;
mod settling;
mod simulated;
mod snapshots;
mod stops;
pub(in crate::store) mod support;
mod uploads;
