//! A WRITE of 4 KiB and a FLUSH that waits for the store: catalog, cache, writeback and store as in the daemon, without the ring and
//! the device.
//!
//! `store_flush [--exports N] [--latency MS] [--rounds N]` prints a row for 1 and 64 exports, each with 0, 20 and 100 ms more for every
//! request to the store, or for the case asked for. The store is a directory beside the cache, in `GLIDEFS_BENCH_DIR`. All exports
//! are served by one worker, and each has one request under way. The median over the latency is the number of requests to the store
//! for which a FLUSH waits, one after the other.
//!
//! `store_flush --dirty` measures one export beside 10, 1,000 and 20,000 others with data to write back that nothing makes due:
//! latency, CPU time of the process for each FLUSH, and CPU time while nobody asks for anything.
#![allow(clippy::expect_used, reason = "a bench may end")]
#![allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]

mod support;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::stream::{self, BoxStream, StreamExt};
use glidefs::testing::cache::{
    Admission, Cache, Directory, Durability, Known, MonotonicClock, Options, ShardStats, Triggers, Volume,
};
use glidefs::testing::daemon::{DaemonStorage, StoreSide};
use glidefs::testing::router::{
    Catalog, CreateExport, ExportName, ExportSize, InitialContent, PropertiesChange, Router, RouterOptions,
};
use glidefs::testing::store::volume::{VolumeStore, VolumeStoreOptions};
use glidefs::testing::store::{Backend, Operation, Store, StoreOptions, process_variables};
use glidefs::testing::units::{ExportId, SECTOR_BYTES, SectorRange};
use object_store::path::Path as Location;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use support::data_path::rig::{MemoryToken, Rig};
use support::host::InstantKernel;
use support::process_cpu_time;
use tokio::runtime::Runtime;
use tokio::sync::watch;

const SEGMENT_BYTES: u64 = 16 << 20;
const SEGMENTS: u64 = 64;
const EXPORT_BYTES: u64 = 1 << 30;
const BLOCK: usize = 4096;
/// Longest pause of the worker without a wake-up.
const PATIENCE: Duration = Duration::from_millis(100);
/// FLUSHes of an export before the first that counts.
const WARM_UP: usize = 3;
/// Exports made at the same time.
const AT_ONCE: usize = 64;
/// How long nobody asks for anything.
const IDLE: Duration = Duration::from_secs(2);

/// A store that answers late.
#[derive(Debug)]
struct Late {
    inner: Arc<dyn ObjectStore>,
    latency: Duration,
}

impl Late {
    async fn wait(&self) {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "late {}", self.inner)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Late {
    async fn put_opts(
        &self,
        location: &Location,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.wait().await;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Location,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Location, options: GetOptions) -> object_store::Result<GetResult> {
        self.wait().await;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Location>>,
    ) -> BoxStream<'static, object_store::Result<Location>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Location>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Location>) -> object_store::Result<ListResult> {
        self.wait().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Location,
        to: &Location,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A daemon without devices, whose one worker is driven by hand.
struct Daemon {
    rig: Rig<MemoryToken<usize>>,
    volumes: Vec<Arc<Volume>>,
    store: Store,
    keeper: Option<JoinHandle<()>>,
    keeper_stop: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    _router: Arc<Router>,
    _runtime: Runtime,
}

impl Daemon {
    /// A daemon with `exports` exports whose FLUSHes wait for the store, and `dirty` others, each with a write.
    fn new(directory: &Path, (exports, dirty): (usize, usize), latency: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("control threads");
        let place = directory.join("store");
        let url = format!("file://{}", place.display()).parse().expect("a directory");
        let backend = Backend::connect(&url, &process_variables(), true).expect("the store can be made");
        let backend = backend.through(|inner| Arc::new(Late { inner, latency }));
        let store = Store::over(backend, StoreOptions { checked_first: true, ..StoreOptions::default() });
        let catalog = Catalog::open(&directory.join("catalog.redb")).expect("the catalog opens");
        let log = directory.join("log");
        std::fs::create_dir_all(&log).expect("a directory for the log");
        let cache = open(&log, &catalog);
        let options = VolumeStoreOptions {
            notes: catalog.journal(),
            recent_bytes_max: 64 << 20,
            ..VolumeStoreOptions::new(cache.writer())
        };
        let queue = cache.writeback_queue(runtime.handle().clone());
        let side = StoreSide::new(VolumeStore::new(store.clone(), options), Arc::clone(&queue), &catalog);
        let (stop, stopped) = watch::channel(false);
        let never = Duration::from_hours(24);
        let usual =
            Triggers { size_bytes: 32 << 20, age: Duration::from_secs(30), quiet: Duration::from_secs(2) };
        let triggers = if dirty > 0 { Triggers { age: never, quiet: never, ..usual } } else { usual };
        runtime.spawn(cache.writeback(queue, triggers).run(stopped));
        let keeper_stop = Arc::new(AtomicBool::new(false));
        let keeper = {
            let (mut keeper, stop) = (cache.keeper(), Arc::clone(&keeper_stop));
            thread::spawn(move || keeper.run(&stop))
        };
        let me = thread::current();
        cache.on_progress(0, Arc::new(move || me.unpark()));
        let rig = Rig::new(cache.shard(0, Arc::<ShardStats>::default()));
        let storage = Arc::new(DaemonStorage::new(cache.clone(), Some(Arc::new(side))));
        let kernel = Arc::new(InstantKernel::default());
        let router = Router::new(catalog, kernel, storage, options_for(exports + dirty));
        runtime.block_on(router.start());
        let create = |exports, durability| {
            let ids = runtime.block_on(create(&router, exports, durability));
            ids.into_iter().map(|id| cache.volume(id)).collect::<Vec<_>>()
        };
        let waiting = create(exports, Durability::Store);
        let volumes = create(dirty, Durability::Local);
        let mut daemon = Self {
            rig,
            volumes,
            store,
            keeper: Some(keeper),
            keeper_stop,
            stop,
            _router: router,
            _runtime: runtime,
        };
        daemon.write_once();
        daemon.volumes = waiting;
        daemon
    }

    /// Writes to each export, a few at a time.
    fn write_once(&mut self) {
        for at in 0..self.volumes.len() {
            self.write(at, 0);
            while at % AT_ONCE == 0 && !self.rig.shard.idle() {
                self.rig.work();
                self.rig.completed().for_each(|completion| completion.result.expect("the disk works"));
            }
        }
        let completed = self.rig.settle(|| true);
        for completion in completed {
            completion.result.expect("the disk works");
        }
    }

    fn requests(&self) -> [u64; Operation::ALL.len()] {
        Operation::ALL.map(|operation| self.store.stats().of(operation).requests.get())
    }

    /// Writes and flushes each export `rounds` times, one request of an export after the other. Returns the times from the begin of
    /// the WRITE to the end of the FLUSH.
    fn run(&mut self, rounds: usize) -> Vec<Duration> {
        let mut left = vec![rounds; self.volumes.len()];
        let mut begun = vec![Instant::now(); self.volumes.len()];
        let mut is_writing = vec![false; self.volumes.len()];
        let mut times = Vec::with_capacity(rounds * self.volumes.len());
        let (mut idle, mut place) = ((0..self.volumes.len()).collect::<Vec<_>>(), 0_u64);
        loop {
            for at in idle.drain(..) {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                begun[at] = Instant::now();
                is_writing[at] = true;
                self.write(at, (place >> 33) % (EXPORT_BYTES / BLOCK as u64));
            }
            self.rig.work();
            let ended: Vec<_> = self.rig.completed().collect();
            if ended.is_empty() && left.iter().all(|left| *left == 0) {
                return times;
            }
            let is_waiting = ended.is_empty();
            for completion in ended {
                completion.result.expect("disk and store work");
                let at = completion.token.name;
                if std::mem::take(&mut is_writing[at]) {
                    self.rig.shard.flush(&self.volumes[at], MemoryToken::without_data(at));
                    continue;
                }
                times.push(begun[at].elapsed());
                left[at] -= 1;
                if left[at] > 0 {
                    idle.push(at);
                }
            }
            if is_waiting && idle.is_empty() {
                thread::park_timeout(PATIENCE);
            }
        }
    }

    fn write(&mut self, at: usize, block: u64) {
        let reservation = loop {
            match self.rig.shard.admit(BLOCK) {
                Admission::Accept(reservation) => break reservation,
                _ => {
                    self.rig.work();
                    thread::park_timeout(Duration::from_millis(1));
                }
            }
        };
        let sectors = BLOCK as u64 / SECTOR_BYTES;
        let range = SectorRange::new(block * sectors, sectors).expect("a small range");
        let mut data = [0; BLOCK];
        data[..8].copy_from_slice(&block.to_le_bytes());
        self.rig.shard.write(&self.volumes[at], range, false, reservation, MemoryToken::writing(at, &data));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nobody listens when the threads have ended.
        let _ = self.stop.send(true);
        self.keeper_stop.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.take() {
            // A panic of the keeper was reported already.
            let _ = keeper.join();
        }
    }
}

fn open(log: &Path, catalog: &Catalog) -> Cache {
    let options = Options {
        size_bytes: SEGMENTS * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        ..support::cache_options(SEGMENTS)
    };
    let known = Known { exports: catalog.known(), catalog: Arc::new(catalog.handle()), ..Known::local(&[]) };
    let disk = Arc::new(Directory::new(log));
    Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).expect("the cache opens").0
}

fn options_for(exports_max: usize) -> RouterOptions {
    RouterOptions {
        exports_max,
        queue_depth_default: 64,
        parallel_max: 8,
        confirm_patience: Duration::from_secs(10),
        serve_unconfirmed: false,
        waiting_since: None,
        tenures: std::collections::HashMap::new(),
        deaths: Arc::default(),
        boot_id: "a boot".into(),
    }
}

async fn create(router: &Arc<Router>, exports: usize, durability: Durability) -> Vec<ExportId> {
    let creations = stream::iter(0..exports).map(|number| async move {
        let request = CreateExport {
            name: ExportName::new(&format!("{durability:?}-{number}").to_lowercase()).expect("a name"),
            content: InitialContent::Blank(ExportSize::new(EXPORT_BYTES).expect("a size")),
            properties: PropertiesChange { durability: Some(durability), ..PropertiesChange::default() },
            queues: None,
            queue_depth: None,
            detached: false,
        };
        router.create(request).await.expect("an export is created").info.id
    });
    creations.buffer_unordered(AT_ONCE).collect().await
}

fn measure(exports: usize, latency: Duration, rounds: usize) {
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let mut daemon = Daemon::new(directory.path(), (exports, 0), latency);
    daemon.run(WARM_UP);
    let (before, begun) = (daemon.requests(), Instant::now());
    let mut times = daemon.run(rounds);
    let (after, elapsed) = (daemon.requests(), begun.elapsed());
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let flushes = times.len() as f64;
    let [gets, puts, others @ ..] =
        std::array::from_fn::<_, { Operation::ALL.len() }, _>(|at| (after[at] - before[at]) as f64 / flushes);
    println!(
        "| {exports} | {} | {:.2} | {:.2} | {} | {:.0} | {puts:.2} | {gets:.2} | {:.2} |",
        latency.as_millis(),
        at(50),
        at(99),
        if latency.is_zero() { "–".into() } else { format!("{:.2}", at(50) / latency.as_secs_f64() / 1e3) },
        flushes / elapsed.as_secs_f64(),
        others.iter().sum::<f64>(),
    );
}

fn measure_beside(dirty: usize, rounds: usize) {
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let mut daemon = Daemon::new(directory.path(), (1, dirty), Duration::ZERO);
    daemon.run(WARM_UP);
    let begun = process_cpu_time();
    let mut times = daemon.run(rounds);
    let each = process_cpu_time().saturating_sub(begun) / u32::try_from(rounds).expect("few rounds");
    let begun = process_cpu_time();
    thread::sleep(IDLE);
    let idle = process_cpu_time().saturating_sub(begun).as_secs_f64() / IDLE.as_secs_f64();
    times.sort_unstable();
    let p50 = times[times.len() / 2].as_secs_f64() * 1e3;
    println!("| {dirty} | {p50:.2} | {} | {:.2} |", each.as_micros(), idle * 1e2);
}

fn main() {
    let (mut exports, mut latencies, mut rounds) = (vec![1, 64], vec![0, 20, 100], None);
    if support::is_short() {
        (latencies, rounds) = (vec![0, 20], Some(3));
    }
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().and_then(|value| value.parse::<usize>().ok()).expect("a number");
        match word.as_str() {
            "--exports" => exports = vec![value()],
            "--latency" => latencies = vec![value() as u64],
            "--rounds" => rounds = Some(value()),
            "--dirty" => {
                println!(
                    "| exports with data to write back | FLUSH p50, ms | CPU a FLUSH, µs | CPU idle, % |"
                );
                println!("|---:|---:|---:|---:|");
                for dirty in [10, 1000, 20_000] {
                    measure_beside(dirty, 300);
                }
                return;
            }
            // Options of cargo.
            _ => {}
        }
    }
    println!(
        "| exports | latency, ms | p50, ms | p99, ms | p50 / latency | FLUSHes a second | PUTs each | GETs each | others each |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for exports in exports {
        for latency in &latencies {
            let rounds =
                rounds.unwrap_or(if *latency == 0 { 300 } else { 30 }) / if exports > 1 { 10 } else { 1 };
            measure(exports, Duration::from_millis(*latency), rounds.max(3));
        }
    }
}
