//! glidefs: object storage as fast local block devices.
//!
//! The folders below form layers; each imports only those after it in this list. `tests/tidy.rs` keeps it so.
//! ARCHITECTURE.md is the map.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::float_cmp,
        clippy::large_stack_arrays,
        reason = "tests work with small known values"
    )
)]

/// For sources that unit tests share with the tests outside.
#[cfg(test)]
extern crate self as glidefs;

pub mod daemon;

pub mod cli;

pub mod bench;

pub mod api;

pub mod config;

pub mod ublk;

pub mod worker;

pub mod router;

pub mod export;

pub mod cache;

pub mod store;

pub mod buffer;

pub mod observe;

pub mod units;
