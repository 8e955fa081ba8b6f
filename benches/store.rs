//! The cost of a store: requests and bytes of typical uses, read latency by the place of the data, and the effect of writeback on
//! the latency of writes. Prints the tables that `scripts/store-cost` puts into docs/operations.md.
//!
//! `store [--size MIB] [--reads N]` writes SIZE at random and SIZE in order. The store is a directory, so a request costs no
//! network: add the network's latency to each. Every layer is the daemon's but the ring and the device.
#![allow(clippy::expect_used, reason = "a bench may end")]
#![allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, ready};
use glidefs::testing::cache::{Cache, CacheCatalog, Directory, Known, MonotonicClock, SeqMarks, Triggers};
use glidefs::testing::store::gc::{self, GcOptions};
use glidefs::testing::store::volume::{Resume, StatePoint, VolumeStore, VolumeStoreOptions, VolumeWriter};
use glidefs::testing::store::{
    Access, Backend, BlockCache, BlockCacheOptions, Operation, Store, StoreOptions, SystemClock,
    process_variables,
};
use glidefs::testing::units::{ExportId, SECTOR_BYTES, Seq};
use support::data_path::{DataPath, EXPORT_BYTES};
use tokio::runtime::Runtime;
use tokio::sync::watch;

const EXPORT: ExportId = ExportId(1);
const SMALL: usize = 4096;
const LARGE: usize = 128 << 10;
/// Segments of the cache: 2 GiB.
const SEGMENTS: u64 = 32;
const NEVER: Duration = Duration::from_hours(24);

#[derive(Debug)]
struct Nothing;

impl CacheCatalog for Nothing {
    fn evicted(&self, _: &[(ExportId, Seq)]) -> std::io::Result<()> {
        Ok(())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, std::io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

/// Random numbers (SplitMix64), the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 31)
    }

    /// Fills `data` with incompressible bytes.
    fn fill(&mut self, data: &mut [u8]) {
        for word in data.as_chunks_mut::<8>().0 {
            *word = self.next().to_le_bytes();
        }
    }
}

/// A host with an empty cache, and a store that may hold data of other hosts.
struct Host {
    path: DataPath,
    remote: VolumeWriter,
    volumes: VolumeStore,
    stop: watch::Sender<bool>,
    runtime: Runtime,
}

impl Host {
    /// Takes over or makes the volume `name` of the store in `directory`.
    fn new(directory: &Path, cache_name: &str, name: &str, opens: bool, triggers: Triggers) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads for the store");
        let url = format!("file://{}", directory.join("store").display()).parse().expect("a directory");
        let backend = Backend::connect(&url, &process_variables(), true).expect("the store can be made");
        let store = Store::over(backend, StoreOptions::default());
        let access = Access::ReadWrite;
        runtime.block_on(store.check(access)).expect("it is a store");
        let cache_directory = directory.join(cache_name);
        std::fs::create_dir_all(&cache_directory).expect("the directory can be written");
        let block_cache = runtime.block_on(BlockCache::open(BlockCacheOptions {
            directory: Some(cache_directory.clone()),
            memory_bytes_max: 64 << 20,
            disk_bytes_max: 1 << 30,
        }));
        let options = support::cache_options(SEGMENTS);
        let known = Known {
            exports: vec![(EXPORT, SeqMarks::default())],
            catalog: Arc::new(Nothing),
            ..Known::local(&[])
        };
        let disk = Arc::new(Directory::new(&cache_directory));
        let opened = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known);
        let (cache, _) = opened.expect("the cache opens");
        let options = VolumeStoreOptions {
            block_cache: Some(block_cache.expect("the block cache opens")),
            ..VolumeStoreOptions::new(cache.writer())
        };
        let volumes = VolumeStore::new(store, options);
        let name = name.parse().expect("a name");
        let remote = runtime.block_on(async {
            if opens {
                // The host that wrote the volume has not released it.
                volumes.take_over(&name).await
            } else {
                volumes.create(&name, EXPORT_BYTES / SECTOR_BYTES).await
            }
        });
        let remote = remote.expect("the store works");
        let queue = cache.writeback_queue(runtime.handle().clone());
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(cache.writeback(Arc::clone(&queue), triggers).run(stopped));
        let sectors = EXPORT_BYTES / SECTOR_BYTES;
        let volume = cache.begin(EXPORT, remote.cut());
        volume.link_to_store(remote.clone(), queue, sectors, sectors);
        Self { path: DataPath::over(cache), remote, volumes, stop, runtime }
    }

    /// Writes everything back, and waits for the end.
    fn write_back(&mut self) {
        self.path.flush();
        self.path.settle();
        let volume = self.path.cache().volume(EXPORT);
        self.runtime.block_on(volume.written_back()).expect("the store works");
    }

    /// Returns once the background merging of packs is done.
    fn at_rest(&self) {
        let mut before = self.spent();
        loop {
            std::thread::sleep(Duration::from_secs(2));
            let now = self.spent();
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn spent(&self) -> Spent {
        let stats = self.volumes.store().stats();
        Spent(Operation::ALL.map(|operation| {
            let of = stats.of(operation);
            (of.requests.get(), of.bytes.get())
        }))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody listens when the threads have ended.
        let _ = self.stop.send(true);
    }
}

/// Requests and bytes, by kind.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Spent([(u64, u64); Operation::ALL.len()]);

impl Spent {
    fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| (self.0[at].0 - before.0[at].0, self.0[at].1 - before.0[at].1)))
    }

    /// Prints a row of the table: bytes asked for, requests, bytes up and down, and bytes moved for each byte asked for (up for
    /// writes, down for reads).
    fn row(self, what: &str, asked_bytes: Option<u64>, is_write: bool) {
        let [(gets, got), (puts, put), (lists, _), (deletes, _), (heads, _)] = self.0;
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
        let moved = if is_write { put } else { got };
        let ratio = asked_bytes.map_or("–".into(), |asked| format!("{:.2}", moved as f64 / asked as f64));
        println!(
            "| {what} | {} | {puts} | {gets} | {} | {} | {} | {ratio} |",
            asked_bytes.map_or("–".into(), mib),
            lists + deletes + heads,
            mib(put),
            mib(got),
        );
    }
}

/// Writes `bytes` in pieces of `piece` bytes, at random offsets below `bytes` or in order, with a FLUSH now and then. Then writes
/// everything back.
fn write_all(host: &mut Host, bytes: u64, piece: usize, at_random: bool) {
    let (mut random, mut data) = (Random(piece as u64), vec![0; piece]);
    let pieces = bytes / piece as u64;
    for number in 0..pieces {
        random.fill(&mut data);
        let place = if at_random { random.next() % pieces } else { number };
        host.path.write_data(place * piece as u64, &data);
        if number % 16 == 15 {
            host.path.turn();
        }
        if number % 4096 == 4095 {
            host.path.flush();
            host.path.settle();
        }
    }
    host.write_back();
}

/// Reads like a starting system: files here and there, each from begin to end. Returns the number of bytes read.
fn boot(host: &mut Host, written_bytes: u64) -> u64 {
    let (mut random, mut asked) = (Random(3), 0);
    while asked < written_bytes.min(256 << 20) {
        let file = (16 << 10) << (random.next() % 7);
        let begin = random.next() % (written_bytes - file) / SMALL as u64 * SMALL as u64;
        let mut at = begin;
        while at < begin + file {
            let bytes = LARGE.min(usize::try_from(begin + file - at).unwrap_or(LARGE));
            host.path.read_through(at, bytes);
            at += bytes as u64;
        }
        asked += file;
    }
    asked
}

/// Median and 99th percentile of `reads` runs of `read`, microseconds.
fn latency(reads: u64, mut read: impl FnMut(u64)) -> (f64, f64) {
    let mut times: Vec<Duration> = (0..reads)
        .map(|number| {
            let begun = Instant::now();
            read(number);
            begun.elapsed()
        })
        .collect();
    percentiles(&mut times)
}

fn percentiles(times: &mut [Duration]) -> (f64, f64) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    (at(50), at(99))
}

fn latencies(directory: &Path, written_bytes: u64, reads: u64) {
    let quiet = Triggers { size_bytes: u64::MAX, age: NEVER, quiet: NEVER };
    let mut host = Host::new(directory, "reader", "sequential", true, quiet);
    let pieces = written_bytes / SMALL as u64;
    let mut random = Random(11);
    let blocks: Vec<u64> = (0..reads).map(|_| random.next() % pieces * SMALL as u64).collect();
    let place = |number: u64| blocks[usize::try_from(number).unwrap_or(0)];
    println!("\n| 4 KiB read from | p50, µs | p99, µs |\n|---|---:|---:|");
    let row = |what: &str, (p50, p99): (f64, f64)| println!("| {what} | {p50:.1} | {p99:.1} |");
    let miss = latency(reads, |number| host.path.read_through(place(number), SMALL));
    row("the store (a directory): nothing is here", miss);
    let block_cache = latency(reads, |number| host.path.read_through(place(number), SMALL));
    row("the block cache", block_cache);
    for number in 0..reads {
        host.path.write(place(number), SMALL);
        host.path.turn();
    }
    host.path.flush();
    host.path.settle();
    let hit = latency(reads, |number| host.path.read_through(place(number), SMALL));
    row("the log, in the page cache", hit);
}

/// Latency of 4 KiB writes without and with writeback at the same time, in turns.
fn writes_beside_writeback(directory: &Path) {
    const ROUNDS: usize = 6;
    let writes = if support::is_short() { 300 } else { 30_000 };
    let busy = Triggers { size_bytes: 4 << 20, age: NEVER, quiet: NEVER };
    let never = Triggers { size_bytes: u64::MAX, ..busy };
    let mut hosts = [
        Host::new(directory, "quiet", "quiet", false, never),
        Host::new(directory, "busy", "busy", false, busy),
    ];
    let (mut random, mut data, mut times) = (Random(7), vec![0; SMALL], [Vec::new(), Vec::new()]);
    random.fill(&mut data);
    for _ in 0..ROUNDS {
        for (host, times) in hosts.iter_mut().zip(&mut times) {
            for _ in 0..writes {
                let place = random.next() % (1 << 16) * SMALL as u64;
                let begun = Instant::now();
                host.path.write_data(place, &data);
                host.path.turn();
                times.push(begun.elapsed());
                // The client pauses, so that writeback has time to run beside the writes.
                let pause = Instant::now();
                while pause.elapsed() < Duration::from_micros(20) {
                    std::hint::spin_loop();
                }
            }
            host.write_back();
        }
    }
    let mean = |times: &[Duration]| times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64 * 1e6;
    let means = [mean(&times[0]), mean(&times[1])];
    let [quiet, busy] = times.each_mut().map(|times| percentiles(times));
    let packs = hosts[1].spent().0[1].0;
    println!("\n| 4 KiB write | mean, µs | p50, µs | p99, µs |\n|---|---:|---:|---:|");
    println!("| nothing is written back | {:.2} | {:.2} | {:.2} |", means[0], quiet.0, quiet.1);
    println!("| beside writeback ({packs} objects) | {:.2} | {:.2} | {:.2} |", means[1], busy.0, busy.1);
    println!("| ratio | {:.2} | {:.2} | {:.2} |", means[1] / means[0], busy.0 / quiet.0, busy.1 / quiet.1);
}

fn main() {
    let mut words = std::env::args().skip(1);
    let (mut size_bytes, mut reads) =
        if support::is_short() { (16_u64 << 20, 100) } else { (256_u64 << 20, 2000) };
    while let Some(word) = words.next() {
        let mut value = || words.next().and_then(|value| value.parse::<u64>().ok()).expect("a number");
        match word.as_str() {
            "--size" => size_bytes = value() << 20,
            "--reads" => reads = value(),
            // Options of cargo.
            _ => {}
        }
    }
    let place = support::directory();
    let usual =
        Triggers { size_bytes: 32 << 20, age: Duration::from_secs(30), quiet: Duration::from_secs(2) };

    println!("| | asked, MiB | PUT | GET | others | up, MiB | down, MiB | moved a byte asked |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for (what, piece, at_random) in
        [("random 4 KiB writes", SMALL, true), ("sequential 128 KiB writes", LARGE, false)]
    {
        let directory = tempfile::tempdir_in(&place).expect("the bench directory can be written");
        let name = if at_random { "random" } else { "sequential" };
        let mut host = Host::new(directory.path(), "writer", name, false, usual);
        let before = host.spent();
        write_all(&mut host, size_bytes, piece, at_random);
        host.at_rest();
        host.spent().since(before).row(what, Some(size_bytes), true);
        if at_random {
            continue;
        }
        let before = host.spent();
        host.runtime
            .block_on(host.remote.snapshot(&"monday".parse().expect("a name")))
            .expect("the store works");
        host.spent().since(before).row("snapshot", None, true);
        let before = host.spent();
        let point =
            StatePoint { volume: host.remote.id(), snapshot: Some("monday".parse().expect("a name")) };
        host.runtime
            .block_on(host.volumes.fork(&point, &"fork".parse().expect("a name")))
            .expect("the store works");
        host.spent().since(before).row("fork", None, true);
        let before = host.spent();
        let options = GcOptions::default();
        let collected = gc::collect(host.volumes.store(), &SystemClock, &options);
        host.runtime.block_on(collected).expect("the store works");
        host.spent().since(before).row("a run of garbage collection", None, true);
        drop(host);
        let mut reader = Host::new(directory.path(), "booting", "sequential", true, usual);
        let before = reader.spent();
        let asked = boot(&mut reader, size_bytes);
        reader.spent().since(before).row("reads of a starting system, cold", Some(asked), false);
        drop(reader);
        latencies(directory.path(), size_bytes, reads);
        writes_beside_writeback(directory.path());
    }
}
