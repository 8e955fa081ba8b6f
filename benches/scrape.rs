//! A scrape of `/metrics` of a host with thousands of exports, as text: the exports, their volumes and the cache.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use glidefs::testing::daemon::{MemoryHolders, measured_figures};
use glidefs::testing::observe::{ExportHistograms, encode};
use support::data_path::{self, SEGMENT_BYTES};
use support::host::router;
use support::{BenchGroup, Ratios};

const EXPORTS: u32 = 5025;
const ATTACHED: u32 = 4092;
const BUSY: usize = 32;
const COPY: &str = "memcpy 1 MiB";

fn memcpy() -> impl FnMut() {
    let (source, mut target) = (vec![1_u8; 1 << 20], vec![0_u8; 1 << 20]);
    move || black_box(&mut target[..]).copy_from_slice(black_box(&source))
}

fn scrapes(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("memory for a catalog");
    let log = tempfile::tempdir_in(support::directory()).expect("a directory for a log");
    let (cache, _) = data_path::open(log.path(), 8, SEGMENT_BYTES);
    let volumes = cache.clone();
    let router = router(directory.path(), EXPORTS, ATTACHED, Box::new(move |id| volumes.volume(id)));
    for export in router.exports().iter().take(BUSY) {
        let stats = export.queue_stats(0);
        for request in 0..100_000_u64 {
            stats.read_size.record(4096 << (request % 6));
            stats.read_latency.record(7_919 * (request % 1_000));
            stats.write_size.record(4096);
            stats.write_latency.record(7_919 * (request % 1_000));
        }
    }
    let holders = MemoryHolders {
        workers: Vec::new(),
        shards: Vec::new(),
        cache,
        router,
        block_cache: None,
        volumes: None,
        api: Arc::default(),
    };
    let scrape = |histograms| {
        let text = encode(histograms, |out| measured_figures(&holders, true, out));
        text.expect("the figures fit the table")
    };
    for (id, histograms) in [
        ("5025_exports/32_busy/histograms_busy", ExportHistograms::Busy),
        ("5025_exports/32_busy/histograms_none", ExportHistograms::None),
        ("5025_exports/32_busy/histograms_all", ExportHistograms::All),
    ] {
        println!("{id}: a scrape has {} bytes", scrape(histograms).len());
        ratios.against(group, id, COPY, memcpy(), || {
            black_box(scrape(histograms));
        });
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut ratios = Ratios::new("scrape");
    let mut group = criterion.benchmark_group("scrape");
    scrapes(&mut group, &mut ratios);
    group.finish();
    ratios.save();
    criterion.final_summary();
}
