//! Volumes on a store in memory: contents, requests, writers that meet, and stops at every request.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod block_cache;
mod compaction;
mod damage;
mod delete;
mod divergence;
mod lies;
mod line;
mod long;
mod model;
mod ownership;
mod race;
mod simulated;
mod snapshots;
mod stops;
pub(in crate::store) mod support;
mod uploads;
