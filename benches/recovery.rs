//! The time of opening a cache with a GiB of log, beside reading the same bytes: with a checkpoint, sealed, where footers list the
//! entries, and unsealed, where every record is scanned and made stable again; each with one thread that reads the log, and with as many
//! as the daemon has here.
//! From the page cache, and from the disk (cold).
//!
//! `GLIDEFS_BENCH_LOG_MIB` sets the size of the log. `GLIDEFS_BENCH_WIDE_GIB` has a log of this size opened from a checkpoint as well:
//! sealed segments of writes of 16 KiB, in ascending and in a scattered order, and then of 128 KiB, in files with holes in the place of the
//! data and the footers.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use glidefs::testing::cache::HANDS_MAX;
use glidefs::testing::observe::{Resident, tune_allocator};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use support::Ratios;
use support::data_path::{DataPath, SEGMENT_BYTES, open, open_with};
use support::wide_log::Writes;

const LOG_MIB: u64 = 1024;
const BATCH: u64 = 8;
const BLOCK_BYTES: usize = 16 << 10;
/// The writes of which a wide log is full.
const WIDE_WRITES: [Writes; 3] = [
    Writes { bytes: 16 << 10, are_scattered: false },
    Writes { bytes: 16 << 10, are_scattered: true },
    Writes { bytes: 128 << 10, are_scattered: false },
];
/// The cache that this process is to open, and nothing else.
const OPEN: &str = "GLIDEFS_BENCH_OPEN_DIRECTORY";
/// The cache of a daemon that is stopped, which this process is to fill with a log of `GLIDEFS_BENCH_WIDE_GIB`, and nothing else.
const FILL: &str = "GLIDEFS_BENCH_FILL_DIRECTORY";
const ROUNDS: usize = 3;

/// Numbers of threads that read the log: one, and as many as the daemon has here.
fn all_hands() -> Vec<usize> {
    let mut all = vec![1, thread::available_parallelism().map_or(1, NonZero::get).min(HANDS_MAX)];
    all.dedup();
    all
}

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
    path.stats().write_size.sum()
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

/// Takes the segment files out of the page cache, as after a reboot.
fn evict(directory: &Path) {
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let path = entry.expect("the cache is there").path();
        let file = File::open(path).expect("a segment");
        // Only clean pages leave.
        file.sync_all().expect("the disk works");
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("the kernel takes advice");
    }
}

/// Opens a log of `gib` GiB, full of `writes`, from a checkpoint, in a process of its own: a start finds no memory that the allocator could
/// give out once more. Starts with one thread and with several take turns.
fn wide(gib: u64, segment_bytes: u64, writes: Writes) {
    let segments = u32::try_from((gib << 30) / segment_bytes).expect("few segments");
    for hands in all_hands().repeat(ROUNDS) {
        // A start takes the checkpoint away.
        let directory =
            tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
        writes.fill(directory.path(), segments, segment_bytes);
        let opened = Command::new(std::env::current_exe().expect("the bench runs"))
            .env(OPEN, directory.path())
            .args([segments.to_string(), segment_bytes.to_string(), hands.to_string()])
            .output()
            .expect("the bench can be run once more");
        assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
        print!("wide: {gib} GiB of {writes}, {hands} threads: {}", String::from_utf8_lossy(&opened.stdout));
    }
}

/// Opens the cache in `directory`, and prints what the start found.
#[expect(clippy::cast_precision_loss, reason = "bytes of a file are few")]
fn open_once(directory: &Path) {
    tune_allocator();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>().expect("a number"));
    let mut number = || numbers.next().expect("three numbers");
    let (segments, segment_bytes, hands) = (number(), number(), number());
    let hands = usize::try_from(hands).expect("few threads");
    let bytes = std::fs::metadata(directory.join("index.ckpt")).expect("a checkpoint").len();
    let before = Resident::now().expect("the kernel tells").all;
    let (cache, found) = open_with(directory, segments + 8, segment_bytes, hands);
    let memory = Resident::now().expect("the kernel tells").all.saturating_sub(before);
    assert_eq!((found.covered, found.checkpoints_refused), (segments, 0));
    let extents = found.checkpoint_extents as f64;
    println!(
        "{:.3} s ({} segments, {} extents, of each {:.1} bytes of checkpoint, {:.1} of memory, {:.1} ns)",
        found.seconds,
        found.covered,
        found.checkpoint_extents,
        bytes as f64 / extents,
        memory as f64 / extents,
        found.seconds * 1e9 / extents
    );
    drop(cache);
}

#[expect(clippy::cast_precision_loss, reason = "mebibytes are few")]
fn main() {
    if let Some(directory) = std::env::var_os(FILL) {
        let gib: u64 = std::env::var("GLIDEFS_BENCH_WIDE_GIB").expect("a size").parse().expect("a number");
        let segments = u32::try_from((gib << 30) / SEGMENT_BYTES).expect("few segments");
        return WIDE_WRITES[0].fill_present(Path::new(&directory), segments, SEGMENT_BYTES);
    }
    if let Some(directory) = std::env::var_os(OPEN) {
        return open_once(Path::new(&directory));
    }
    let mib: u64 = std::env::var("GLIDEFS_BENCH_LOG_MIB")
        .map_or(if support::is_short() { 128 } else { LOG_MIB }, |text| {
            text.parse().expect("GLIDEFS_BENCH_LOG_MIB is a number")
        });
    let segment_bytes = 64 << 20;
    let mut ratios = Ratios::new("recovery");
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    fill(directory.path(), mib << 20, segment_bytes);
    // The next opening seals the last segments, and the orderly stop covers all.
    drop(DataPath::over(open(directory.path(), (mib << 20) / segment_bytes + 8, segment_bytes).0));
    let gib = mib as f64 / 1024.0;
    let path = directory.path().join("index.ckpt");
    let checkpoint = std::fs::read(&path).expect("an orderly stop leaves a checkpoint");
    let cases =
        [("checkpoint", false), ("sealed", false), ("unsealed", false), ("sealed", true), ("unsealed", true)];
    for (name, is_cold) in cases {
        let cold = if is_cold { ", cold" } else { "" };
        let mut samples: Vec<_> = all_hands().into_iter().map(|hands| (hands, Vec::new())).collect();
        for _ in 0..ROUNDS {
            // The machine may be busy with other work, more or less: runs with one thread and with several take turns.
            for (hands, samples) in &mut samples {
                // A start takes the checkpoint away.
                if name == "checkpoint" {
                    std::fs::write(&path, &checkpoint).expect("room for the checkpoint");
                } else {
                    let _ = std::fs::remove_file(&path);
                }
                if name == "unsealed" {
                    unseal(directory.path(), segment_bytes);
                }
                if is_cold {
                    evict(directory.path());
                }
                let floor = read_all(directory.path());
                if is_cold {
                    evict(directory.path());
                }
                let segments = (mib << 20) / segment_bytes + 8;
                let (cache, found) = open_with(directory.path(), segments, segment_bytes, *hands);
                drop(cache);
                println!(
                    "{name}{cold}, {hands} threads: {:.4} s a GiB ({} segments, {} covered, {} by their footer, {} entries, {} extents)",
                    found.seconds / gib,
                    found.segments,
                    found.covered,
                    found.footers,
                    found.entries,
                    found.checkpoint_extents
                );
                samples.push((found.seconds * 1e9 / gib, floor.as_secs_f64() * 1e9 / gib));
            }
        }
        for (hands, samples) in samples {
            let threads = if hands == 1 { String::new() } else { format!("/{hands} threads") };
            ratios.add(&format!("recovery/{name}{cold}/GiB{threads}"), "read of the same bytes", samples);
        }
    }
    ratios.save();
    if let Ok(gib) = std::env::var("GLIDEFS_BENCH_WIDE_GIB") {
        let gib = gib.parse().expect("GLIDEFS_BENCH_WIDE_GIB is a number");
        for writes in WIDE_WRITES {
            wide(gib, segment_bytes, writes);
        }
    }
}
