//! The cost of an acknowledged write, beside a plain `pwrite` of the same bytes to the same file system.
//!
//! A case is a batch of WRITEs from admission to completion: checksums, one append, index, counters. The floor is as many `pwrite`
//! calls into files as long and as old as the segments. Both overwrite older bytes, and both leave the bytes in the page cache; the
//! cache's keeper syncs sealed segments meanwhile, the floor syncs nothing. Also the cost of a read of cached data, beside a
//! `pread`.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use glidefs::testing::units::REQUEST_BYTES_MAX;
use support::data_path::{DataPath, SEGMENT_BYTES};
use support::{BenchGroup, Ratios};

/// Segments, and bytes of the plain file.
const SEGMENTS: u64 = 10;
const FILE_BYTES: u64 = SEGMENTS * SEGMENT_BYTES;
/// The written part of the export. Less than the cache, so that nothing needs to be cleaned.
const SPAN_BYTES: u64 = 128 << 20;
const MIB: usize = 1 << 20;
/// Scatters consecutive writes; prime to every number of blocks.
const STRIDE: u64 = 1237;

/// The plain file, written like the log: from the front to the end, and again.
struct Plain {
    file: File,
    at: u64,
    bytes: Vec<u8>,
}

impl Plain {
    fn new(directory: &std::path::Path) -> Self {
        let path = directory.join("plain");
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path);
        let file = file.expect("the bench directory can be written");
        let bytes = vec![0x5a; 64 * REQUEST_BYTES_MAX];
        for offset in (0..FILE_BYTES).step_by(MIB) {
            file.write_all_at(&bytes[..MIB], offset).expect("the disk has room");
        }
        file.sync_all().expect("the disk works");
        Self { file, at: 0, bytes }
    }

    fn next(&mut self, bytes: usize) -> u64 {
        let at = if self.at + bytes as u64 > FILE_BYTES { 0 } else { self.at };
        self.at = at + bytes as u64;
        at
    }

    /// Writes `bytes` bytes `batch` times, each time from another buffer, like the requests of a batch.
    fn write(&mut self, batch: u64, bytes: usize) {
        for place in 0..batch {
            let (at, from) = (self.next(bytes), usize::try_from(place).unwrap_or(0) * bytes);
            self.file.write_all_at(&self.bytes[from..from + bytes], at).expect("the disk works");
        }
    }

    fn read(&mut self, bytes: usize) {
        let at = self.next(bytes);
        self.file.read_exact_at(&mut self.bytes[..bytes], at).expect("the disk works");
    }
}

fn appends(group: &mut BenchGroup<'_>, ratios: &mut Ratios, path: &mut DataPath, plain: &mut Plain) {
    let mut number = 0;
    for (name, bytes) in [("4KiB", 4 << 10), ("16KiB", 16 << 10), ("128KiB", 128 << 10)] {
        for batch in [1_u64, 8, 64] {
            let blocks = SPAN_BYTES / bytes as u64;
            group.throughput(Throughput::Bytes(batch * bytes as u64));
            let case = || {
                for _ in 0..batch {
                    path.write(number * STRIDE % blocks * bytes as u64, bytes);
                    number += 1;
                }
                path.turn();
            };
            let floor = || plain.write(batch, bytes);
            ratios.against(group, &format!("append/{name}/batch_of_{batch}"), "pwrite", floor, case);
            path.settle();
        }
    }
}

fn reads(group: &mut BenchGroup<'_>, ratios: &mut Ratios, path: &mut DataPath, plain: &mut Plain) {
    for offset in (0..SPAN_BYTES).step_by(128 << 10) {
        path.write(offset, 128 << 10);
        path.turn();
    }
    path.settle();
    let mut number = 0;
    for (name, bytes) in [("4KiB", 4 << 10), ("128KiB", 128 << 10)] {
        let blocks = SPAN_BYTES / bytes as u64;
        group.throughput(Throughput::Bytes(bytes as u64));
        let case = || {
            path.read(number * STRIDE % blocks * bytes as u64, bytes);
            path.turn();
            number += 1;
        };
        ratios.against(group, &format!("read/{name}"), "pread", || plain.read(bytes), case);
        path.settle();
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut ratios = Ratios::new("log");
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let mut path = DataPath::new(directory.path(), SEGMENTS);
    let mut plain = Plain::new(directory.path());
    // Every segment is written once before measuring, like the plain file.
    for number in 0..FILE_BYTES / (128 << 10) {
        path.write(number * (128 << 10) % SPAN_BYTES, 128 << 10);
        path.turn();
    }
    path.settle();
    let mut group = criterion.benchmark_group("log");
    appends(&mut group, &mut ratios, &mut path, &mut plain);
    reads(&mut group, &mut ratios, &mut path, &mut plain);
    group.finish();
    ratios.save();
    criterion.final_summary();
}
