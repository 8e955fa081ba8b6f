//! The cost of the index at ten million extents, beside the copy of 4 KiB that every request makes anyway.
//!
//! Extents are 4 KiB blocks. An insert replaces an existing block, as a guest does when overwriting its disk; a look-up asks for
//! one block. Random blocks miss every cache of the processor, on purpose. `GLIDEFS_BENCH_EXTENTS` sets the number of extents.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use glidefs::testing::cache::index::{Backing, Extent, Index, IndexLoader, Refs};
use glidefs::testing::units::{FRAME_SECTORS, SectorRange, Seq};
use support::Ratios;

/// Odd multiplier of a full-period sequence over a power of two.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

fn extent(block: u64, seq: u64) -> Extent {
    let range = SectorRange::new(block * FRAME_SECTORS, FRAME_SECTORS).expect("a small range");
    // Consecutive extents lie more than a block apart in the segment, so neighbours do not merge.
    let sector = u32::try_from(seq * 16 % (1 << 30)).unwrap_or(0);
    Extent { range, seq: Seq(seq), backing: Backing::Data { number: 0, sector } }
}

fn scattered(number: u64, blocks: u64) -> u64 {
    // The high half of a 64-bit product is uniform below `blocks`.
    let product = u128::from(number.wrapping_mul(SCATTER)) * u128::from(blocks);
    u64::try_from(product >> 64).unwrap_or(0)
}

fn memcpy() -> impl FnMut() {
    let (source, mut target) = (vec![1_u8; 4096], vec![0_u8; 4096]);
    move || black_box(&mut target[..]).copy_from_slice(black_box(&source))
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut ratios = Ratios::new("index");
    let blocks: u64 = support::extents().into();
    let mut index = Index::default();
    let mut seq = 0;
    let mut count = 0_i64;
    let mut refs = |told: Refs| count += i64::from(told.extents);
    let start = Instant::now();
    for block in 0..blocks {
        seq += 1;
        index.insert(extent(block, seq), &mut refs);
    }
    println!(
        "{blocks} extents inserted in order, {} ns each",
        start.elapsed().as_nanos() / u128::from(blocks.max(1))
    );

    let mut group = criterion.benchmark_group("index");
    let mut number = 0;
    ratios.against(&mut group, "index/insert/sequential", "memcpy 4 KiB", memcpy(), || {
        seq += 1;
        number += 1;
        index.insert(extent(number % blocks, seq), &mut refs);
    });
    ratios.against(&mut group, "index/insert/random", "memcpy 4 KiB", memcpy(), || {
        seq += 1;
        index.insert(extent(scattered(seq, blocks), seq), &mut refs);
    });
    // An index as a start leaves it: packed.
    let mut loader = IndexLoader::default();
    for block in 0..blocks {
        assert!(loader.push(&extent(block, block + 1), &mut |_| {}), "blocks ascend");
    }
    let loaded = loader.finish(&mut |_| {});
    for (form, index) in [("", &index), ("/loaded", &loaded)] {
        let name = format!("index/lookup{form}/sequential");
        ratios.against(&mut group, &name, "memcpy 4 KiB", memcpy(), || {
            number += 1;
            index.lookup(extent(number % blocks, 1).range, |piece| {
                black_box(piece);
            });
        });
        let name = format!("index/lookup{form}/random");
        ratios.against(&mut group, &name, "memcpy 4 KiB", memcpy(), || {
            number += 1;
            index.lookup(extent(scattered(number, blocks), 1).range, |piece| {
                black_box(piece);
            });
        });
    }
    group.finish();
    assert_eq!(u64::try_from(count), Ok(index.len() as u64), "every insert was counted");
    ratios.save();
    criterion.final_summary();
}
