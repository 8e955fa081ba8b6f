//! Small steps of every request: checksums, counters, finding an export by name. Beside a copy of 4 KiB.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use criterion::Criterion;
use futures_util::future::BoxFuture;
use glidefs::testing::cache::Volume;
use glidefs::testing::cache::format::frame_crc;
use glidefs::testing::export::Export;
use glidefs::testing::observe::counter::Histogram;
use glidefs::testing::observe::counter::{IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};
use glidefs::testing::router::{
    Catalog, CreateExport, DeviceError, DeviceId, DeviceOptions, Devices, ExportName, ExportSize,
    FoundDevice, InitialContent, Router, RouterOptions, SettingsChange, Storage,
};
use glidefs::testing::store::gc::{GcError, GcOptions, GcReport};
use glidefs::testing::store::volume::{DeletedVolume, Resume, VolumeError};
use glidefs::testing::units::{ExportId, FRAME_BYTES};
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
    black_box((sizes.snapshot(), latencies.snapshot()));
}

/// A kernel that makes any device at once.
#[derive(Default)]
struct InstantKernel(AtomicU32);

impl Devices for InstantKernel {
    fn attach(
        &self,
        _: Arc<Export>,
        _: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> BoxFuture<'_, Result<DeviceId, DeviceError>> {
        let next = DeviceId(self.0.fetch_add(1, Ordering::Relaxed));
        Box::pin(std::future::ready(Ok(preferred.unwrap_or(next))))
    }

    fn find(&self, _: &Export, _: DeviceId) -> BoxFuture<'_, Result<Option<FoundDevice>, DeviceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn recover(&self, _: Arc<Export>, _: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn detach(&self, _: ExportId, _: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn resize(&self, _: &Export, _: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Data;

impl Storage for Data {
    fn volume(&self, id: ExportId, _: u64, _: Option<&Resume>) -> Arc<Volume> {
        Arc::new(Volume::new(id))
    }

    fn begin(&self, _: ExportName, _: InitialContent) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn regain(&self, _: ExportName, _: Arc<Volume>) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn rescue(
        &self,
        _: ExportName,
        _: Arc<Volume>,
        _: u64,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn delete(&self, _: Arc<Volume>) -> BoxFuture<'_, Result<(), VolumeError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn collect(&self, _: GcOptions) -> BoxFuture<'_, Result<Option<GcReport>, GcError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn deleted(&self) -> BoxFuture<'_, Result<Option<Vec<DeletedVolume>>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn reach(&self) -> BoxFuture<'_, Result<(), VolumeError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn names(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn link(&self, _: &Volume, _: u64, _: &Resume) {}

    fn remove(&self, _: ExportId) {}
}

fn name(number: u32) -> String {
    format!("customer-{:04}.disk-{number:05}", number % 977)
}

/// A router with many exports. The catalog is in memory, because the time of making the catalog does not count.
fn router(directory: &std::path::Path) -> Arc<Router> {
    let options = RouterOptions {
        exports_max: EXPORTS as usize,
        queues_default: 1,
        queue_depth_default: 64,
        on_unreachable_default: glidefs::testing::cache::OnUnreachable::Wait,
        parallel_max: 64,
        serve_unconfirmed: false,
        confirm_patience: Duration::from_secs(10),
        boot_id: "bench".into(),
    };
    let catalog = Catalog::open(&directory.join("catalog.redb")).expect("the catalog opens");
    let router = Router::new(catalog, Arc::new(InstantKernel::default()), Arc::new(Data), options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        router.start().await;
        for number in 0..EXPORTS {
            let request = CreateExport {
                name: ExportName::new(&name(number)).expect("a good name"),
                content: InitialContent::Blank(ExportSize::new(1 << 30).expect("a good size")),
                durability: glidefs::testing::cache::Durability::Local,
                on_unreachable: None,
                settings: SettingsChange::default(),
                queues: None,
                queue_depth: None,
                detached: false,
            };
            router.create(request).await.expect("the export is made");
        }
    });
    router
}

fn resolve(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("memory for a catalog");
    let router = router(directory.path());
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
