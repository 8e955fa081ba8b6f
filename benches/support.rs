//! What the benches share: measuring a case beside its floor, and a cache driven as a worker drives it.
//!
//! Owns no cases.
#![allow(dead_code, unused_imports, reason = "each bench uses a part")]

mod ratios;
pub mod rig;

pub use ratios::{Group, Ratios};

use std::path::PathBuf;

/// Where benches keep their files: `GLIDEFS_BENCH_DIR`, by default the target directory.
pub fn directory() -> PathBuf {
    std::env::var_os("GLIDEFS_BENCH_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}
