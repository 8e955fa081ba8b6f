//! Shared by the benches: measuring a case beside a floor, and driving a cache as a worker does.
//!
//! Owns no cases.
#![allow(dead_code, unused_imports, reason = "each bench uses a part")]

pub mod data_path;
pub mod host;
pub mod null_device;
mod ratios;
pub mod wide_log;

pub use ratios::{BenchGroup, Ratios};

use std::path::PathBuf;

/// The directory for files of benches: `GLIDEFS_BENCH_DIR`, by default the target directory.
pub fn directory() -> PathBuf {
    std::env::var_os("GLIDEFS_BENCH_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}
