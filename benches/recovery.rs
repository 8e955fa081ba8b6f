//! The time of opening a cache with a GiB of log, beside reading the same bytes: sealed, where footers list the entries, and
//! unsealed, where every record is scanned and made stable again. Both from the page cache.
//!
//! `GLIDEFS_BENCH_LOG_MIB` sets the size of the log.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use support::Ratios;
use support::data_path::{DataPath, open};

const LOG_MIB: u64 = 1024;
const BATCH: u64 = 8;
const BLOCK_BYTES: usize = 16 << 10;
const ROUNDS: usize = 3;

/// Fills a cache in `directory` with `bytes` of records: distinct blocks, in batches of 8 writes of 16 KiB.
fn fill(directory: &Path, bytes: u64, segment_bytes: u64) {
    let (cache, _) = open(directory, bytes / segment_bytes + 8, segment_bytes);
    let mut path = DataPath::over(cache);
    let mut offset = 0;
    while written_bytes(&path) < bytes {
        for _ in 0..BATCH {
            path.write(offset, BLOCK_BYTES);
            offset += BLOCK_BYTES as u64;
        }
        path.turn();
    }
    path.flush();
    path.settle();
}

fn written_bytes(path: &DataPath) -> u64 {
    path.stats().write_size.snapshot().sum
}

/// Time to read all segment files, whole.
fn read_all(directory: &Path) -> Duration {
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let file = File::open(entry.expect("the cache is there").path()).expect("a segment");
        let mut offset = 0;
        while let Ok(bytes @ 1..) = file.read_at(&mut buffer, offset) {
            offset += bytes as u64;
        }
    }
    start.elapsed()
}

/// Removes the trailers, so that the segments look as after a crash.
fn unseal(directory: &Path, segment_bytes: u64) {
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let path = entry.expect("the cache is there").path();
        let file = File::options().read(true).write(true).open(path).expect("a segment");
        // An open segment has a copy of the first frame in the last frame.
        let mut header = [0; 4096];
        file.read_exact_at(&mut header, 0).expect("a header");
        file.write_all_at(&header, segment_bytes - 4096).expect("a copy of the header");
    }
}

#[expect(clippy::cast_precision_loss, reason = "mebibytes are few")]
fn main() {
    let mib: u64 = std::env::var("GLIDEFS_BENCH_LOG_MIB")
        .map_or(LOG_MIB, |text| text.parse().expect("GLIDEFS_BENCH_LOG_MIB is a number"));
    let segment_bytes = 64 << 20;
    let mut ratios = Ratios::new("recovery");
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    fill(directory.path(), mib << 20, segment_bytes);
    // The first opening seals the last segments.
    drop(open(directory.path(), (mib << 20) / segment_bytes + 8, segment_bytes));
    for (name, sealed) in [("sealed", true), ("unsealed", false)] {
        let mut samples = Vec::new();
        for _ in 0..ROUNDS {
            if !sealed {
                unseal(directory.path(), segment_bytes);
            }
            let floor = read_all(directory.path());
            let (cache, found) = open(directory.path(), (mib << 20) / segment_bytes + 8, segment_bytes);
            drop(cache);
            let gib = mib as f64 / 1024.0;
            println!(
                "{name}: {:.3} s a GiB ({} segments, {} by their footer, {} records, {} entries)",
                found.seconds / gib,
                found.segments,
                found.footers,
                found.records,
                found.entries
            );
            samples.push((found.seconds * 1e9 / gib, floor.as_secs_f64() * 1e9 / gib));
        }
        ratios.add(&format!("recovery/{name}/GiB"), "read of the same bytes", samples);
    }
    ratios.save();
}
