//! Volumes on a store in memory: contents, requests, writers that meet, and stops at every request.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod clean;
mod compaction;
mod damage;
mod divergence;
mod end;
mod history;
mod hold;
mod lies;
mod line;
mod long;
mod model;
mod race;
mod simulated;
mod stops;
pub(in crate::store) mod support;
mod uploads;
