//! glidefs: object storage as fast local block devices.
//!
//! The folders below form layers; each imports only those after it in this list. `tests/tidy.rs` keeps it so.
//! ARCHITECTURE.md is the map. Only [`main`] and [`testing`] can be seen from outside.
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

use std::process::ExitCode;

mod daemon;

mod cli;

pub(crate) mod csi;

pub(crate) mod doctor;

pub(crate) mod client;

pub(crate) mod api;

pub(crate) mod config;

pub(crate) mod handover;

pub(crate) mod ublk;

pub(crate) mod worker;

pub(crate) mod router;

pub(crate) mod export;

pub(crate) mod cache;

pub(crate) mod store;

pub(crate) mod buffer;

pub(crate) mod observe;

pub(crate) mod properties;

pub(crate) mod fair;

pub(crate) mod checksum;

pub(crate) mod tasks;

pub(crate) mod locks;

pub(crate) mod units;

pub mod testing;

/// The program: reads the command line, and does what the command says.
pub fn main() -> ExitCode {
    cli::main(daemon::run, daemon::check)
}
