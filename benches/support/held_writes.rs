//! What writes that a worker holds back cost: in CPU time while nothing happens, and in the time of another export's READs.
//!
//! Owns the cases and the figures. The index of each export may have no memory, so each write waits for the client, for ever, and READs of
//! sectors never written go on.
#![allow(clippy::expect_used, reason = "a bench may end")]
#![allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use glidefs::testing::cache::{Budgets, Cache, Directory, Known, MonotonicClock, Options};
use glidefs::testing::units::ExportId;

use crate::support::data_path::EXPORT_BYTES;
use crate::support::null_device::{Client, Host, on_a_thread};
use crate::support::{directory, process_cpu_time};

const BLOCK: usize = 4096;
/// The export with READs. The others follow.
const READER: ExportId = ExportId(1);
/// Exports, the held writes of each, and the tags of each device: some tags of a device are kept free.
const CASES: [(u32, usize, u16); 6] =
    [(0, 0, 4), (10, 1, 4), (1000, 1, 4), (19_500, 1, 4), (1, 1000, 4096), (1, 3000, 4096)];
/// Queues of a worker, at most: below the usual limit on open files, as each has a place in the ring's file table.
const QUEUES_MAX: u32 = 19_600;
const LENGTH: Duration = Duration::from_secs(2);

/// Prints a row for each case.
pub fn run() {
    println!(
        "| exports | held writes | worker CPU idle, % | others' CPU idle, % | READs a second | worker CPU a READ, µs | p50, µs | p99, µs |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (exports, each, tags) in CASES {
        on_a_thread(|| measure(exports, each, tags));
    }
}

fn measure(exports: u32, each: usize, tags: u16) {
    let directory = tempfile::tempdir_in(directory()).expect("the bench directory can be written");
    let cache = open(directory.path());
    let mut host = Host::new(cache.clone(), QUEUES_MAX);
    let mut writers = host.client();
    let ids = (0..exports).map(|number| ExportId(READER.0 + 1 + number));
    host.attach(&mut writers, ids, tags, EXPORT_BYTES);
    let mut reader = host.client();
    host.attach(&mut reader, [READER], 1, EXPORT_BYTES);
    let held = hold(&mut writers, exports, each);
    let worker = Arc::clone(&reader.worker().load);

    let (worker_before, all_before, begin) = (worker.cpu_time(), process_cpu_time(), Instant::now());
    thread::sleep(LENGTH);
    let elapsed = begin.elapsed().as_secs_f64();
    let worker_idle = worker.cpu_time().saturating_sub(worker_before).as_secs_f64() / elapsed * 1e2;
    let all_idle = process_cpu_time().saturating_sub(all_before).as_secs_f64() / elapsed * 1e2;

    let worker_before = worker.cpu_time();
    let mut times = read(&mut reader);
    let each_read = worker.cpu_time().saturating_sub(worker_before).as_secs_f64() * 1e6 / times.len() as f64;
    let a_second = times.len() as f64 / LENGTH.as_secs_f64();
    times.sort_unstable();
    let within = |per_cent: usize| times[(times.len() - 1) * per_cent / 100].as_secs_f64() * 1e6;
    println!(
        "| {exports} | {held} | {worker_idle:.2} | {:.2} | {a_second:.0} | {each_read:.2} | {:.1} | {:.1} |",
        (all_idle - worker_idle).max(0.0),
        within(50),
        within(99),
    );
}

/// A cache whose exports may have no memory for indexes.
fn open(directory: &std::path::Path) -> Cache {
    let budgets = Budgets { index_bytes_max_per_export: 1, ..Budgets::default() };
    let options = Options { budgets, ..crate::support::cache_options(8) };
    let (disk, clock) = (Arc::new(Directory::new(directory)), Arc::new(MonotonicClock::default()));
    Cache::open(disk, clock, options, Known::local(&[])).expect("the cache opens").0
}

/// Sends `each` writes for each of `exports` exports, and returns their number when all are held.
fn hold(writers: &mut Client, exports: u32, each: usize) -> u64 {
    let waits = Arc::clone(&writers.worker().stats);
    let mut sent = 0;
    for device in 0..exports as usize {
        for (number, tag) in writers.tags(device).take(each).enumerate() {
            writers.request(tag, true, (number * BLOCK) as u64, BLOCK);
            sent += 1;
        }
    }
    writers.submit();
    while waits.index_waits.get() < sent {
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// READs of 4 KiB, one at a time. Returns the time of each.
fn read(reader: &mut Client) -> Vec<Duration> {
    let (mut times, mut answers) = (Vec::new(), Vec::new());
    let tag = reader.tags(0).next().expect("the device has a tag");
    let begin = Instant::now();
    while begin.elapsed() < LENGTH {
        let sent = Instant::now();
        reader.request(tag, false, 0, BLOCK);
        reader.answers(&mut answers);
        times.push(sent.elapsed());
        answers.clear();
    }
    times
}
