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
use std::time::Duration;

use glidefs::testing::cache::{Budgets, OnFull, Options};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

/// A cache of so many segments of 64 MiB and one shard, in which nothing is mapped.
pub fn cache_options(segments: u64) -> Options {
    Options {
        size_bytes: segments * (64 << 20),
        segment_bytes: 64 << 20,
        shards: 1,
        on_full: OnFull::Wait,
        checksums_bytes_max: 64 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    }
}

/// Whether this run only shows that the bench works: `cargo bench` gives `--bench`, and `cargo test --benches` does not.
pub fn is_short() -> bool {
    std::env::args().all(|word| word != "--bench")
}

/// The number of extents of an index: `GLIDEFS_BENCH_EXTENTS`, by default ten million.
#[allow(clippy::expect_used, reason = "a bench may end")]
pub fn extents() -> u32 {
    let usual = if is_short() { 100_000 } else { 10_000_000 };
    std::env::var("GLIDEFS_BENCH_EXTENTS")
        .map_or(usual, |text| text.parse().expect("GLIDEFS_BENCH_EXTENTS is a number"))
}

/// The directory for files of benches: `GLIDEFS_BENCH_DIR`, by default the target directory.
pub fn directory() -> PathBuf {
    std::env::var_os("GLIDEFS_BENCH_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}

/// CPU time of all threads of this process.
#[allow(clippy::expect_used, reason = "a bench may end")]
pub fn process_cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the kernel counts");
    let of = |time: TimeVal| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0));
    of(usage.user_time()) + of(usage.system_time())
}
