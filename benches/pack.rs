//! Building a pack: the processor time of writeback, beside a copy of the same bytes.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::Criterion;
use glidefs::testing::store::format::{EncodedPack, PackBuilder, PackOptions};
use glidefs::testing::store::{PackId, SystemEntropy, VolumeId};
use glidefs::testing::units::{SECTOR_BYTES, Seq};
use rand::{RngExt, SeedableRng};
use support::Ratios;

const PACK_BYTES: usize = 8 << 20;

/// Incompressible bytes, and lines of a log.
fn contents() -> [(&'static str, Bytes); 2] {
    let mut random = vec![0; PACK_BYTES];
    rand::rngs::SmallRng::seed_from_u64(1).fill(&mut random[..]);
    let mut text = String::with_capacity(PACK_BYTES + 100);
    let mut number = 0_u64;
    while text.len() < PACK_BYTES {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let _ = writeln!(
            text,
            "2026-11-21T10:{:02} worker={} wrote {} bytes",
            number >> 58,
            number >> 60,
            number >> 44
        );
    }
    text.truncate(PACK_BYTES);
    [("random", random.into()), ("text", text.into_bytes().into())]
}

/// A pack of `data` in runs of `step` bytes, with gaps of the same length.
fn build(data: &Bytes, step: usize) -> EncodedPack {
    let options = PackOptions {
        volume: VolumeId::random(&SystemEntropy),
        pack: PackId::random(&SystemEntropy),
        level: 0,
        first_seq: Seq(1),
        last_seq: Seq(2),
    };
    let mut builder = PackBuilder::new(options).expect("a level zstd knows");
    for at in (0..data.len()).step_by(step) {
        let start = 2 * at as u64 / SECTOR_BYTES;
        builder.push_data(start, data.slice(at..at + step)).expect("it fits");
    }
    builder.finish().expect("it holds data")
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut ratios = Ratios::new("pack");
    let mut group = criterion.benchmark_group("pack");
    for (name, data) in contents() {
        for step in [4 << 10, 128 << 10] {
            let mut target = vec![0_u8; PACK_BYTES];
            let copy = || black_box(&mut target[..]).copy_from_slice(black_box(&data));
            let case = format!("build/{name}/{}KiB", step >> 10);
            ratios.against(&mut group, &case, "memcpy 8 MiB", copy, || {
                black_box(build(black_box(&data), step));
            });
        }
    }
    group.finish();
    ratios.save();
    criterion.final_summary();
}
