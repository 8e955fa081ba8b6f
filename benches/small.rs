//! Small steps of every request: checksums, counters, finding an export by name. Beside a copy of 4 KiB.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use glidefs::testing::cache::Volume;
use glidefs::testing::cache::format::frame_crc;
use glidefs::testing::checksum::crc32c;
use glidefs::testing::observe::counter::Histogram;
use glidefs::testing::observe::counter::{IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};
use glidefs::testing::units::{FRAME_BYTES, REQUEST_BYTES_MAX};
use support::host::{name, router};
use support::{BenchGroup, Ratios};

const EXPORTS: u32 = 20_000;
const COPY: &str = "memcpy 4 KiB";

fn memcpy() -> impl FnMut() {
    let (source, mut target) = (vec![1_u8; FRAME_BYTES], vec![0_u8; FRAME_BYTES]);
    move || black_box(&mut target[..]).copy_from_slice(black_box(&source))
}

fn checksums(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    let frame: Vec<u8> = (0..FRAME_BYTES).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    ratios.against(group, "frame_crc/4KiB", COPY, memcpy(), || {
        black_box(frame_crc(black_box(&frame)));
    });
    let request = frame.repeat(REQUEST_BYTES_MAX / FRAME_BYTES);
    ratios.against(group, "crc32c/128KiB", COPY, memcpy(), || {
        black_box(crc32c(black_box(&request)));
    });
}

fn histograms(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    let sizes = Histogram::new(&IO_SIZE_BOUNDS_BYTES);
    ratios.against(group, "histogram/size/same", COPY, memcpy(), || sizes.record(black_box(4096)));
    let latencies = Histogram::new(&LATENCY_BOUNDS_NANOS);
    let mut nanos = 0_u64;
    ratios.against(group, "histogram/latency/varied", COPY, memcpy(), || {
        // From 8 µs to 128 µs, never twice the same in a row.
        nanos = nanos.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        latencies.record(black_box(8_000 + (nanos >> 47)));
    });
    black_box((sizes, latencies));
}

fn resolve(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("memory for a catalog");
    let router = router(directory.path(), EXPORTS, EXPORTS, Box::new(|id| Arc::new(Volume::new(id))));
    let names: Vec<String> = (0..EXPORTS).map(name).collect();
    let mut number = 0_usize;
    ratios.against(group, "router/resolve/20000_exports", COPY, memcpy(), || {
        number = (number + 7919) % names.len();
        black_box(router.show(black_box(&names[number]))).expect("it is there");
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut ratios = Ratios::new("small");
    let mut group = criterion.benchmark_group("small");
    checksums(&mut group, &mut ratios);
    histograms(&mut group, &mut ratios);
    resolve(&mut group, &mut ratios);
    group.finish();
    ratios.save();
    criterion.final_summary();
}
