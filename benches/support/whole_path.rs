//! Requests through a whole worker: ring, cache, checksums, log and files as in the daemon; a null device in the kernel's place.
//!
//! Owns the cases, the content, and the figures. Worker and client have a CPU each, which other threads share: the keeper, and other
//! programs. `worker` prints a row for each case: of several rounds the one with most requests a second, and the range of all rounds.
#![allow(clippy::expect_used, reason = "a bench may end")]
#![allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
#![allow(clippy::cast_possible_truncation, reason = "content is any bytes")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glidefs::testing::cache::{Cache, Directory, Known, MonotonicClock, Options};
use glidefs::testing::units::ExportId;
use glidefs::testing::worker::cpu_clock;
use nix::time::{ClockId, clock_gettime};

use crate::support::data_path::{DataPath, EXPORT_BYTES, SEGMENT_BYTES};
use crate::support::null_device::{Client, Host, Tag, on_a_thread};
use crate::support::process_cpu_time;

const EXPORT: ExportId = ExportId(1);
const SMALL: usize = 4096;
const LARGE: usize = 128 << 10;
/// Bytes written in small blocks, and behind these the bytes written in large ones.
const SMALL_BYTES: u64 = 128 << 20;
const LARGE_BYTES: u64 = 64 << 20;
const SEGMENTS: u64 = 64;
const TAGS: u16 = 64;
/// Scatters consecutive blocks; prime to the number of small blocks.
const STRIDE: u64 = 12_347;

/// Requests of one kind at random places, `depth` at a time.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    is_write: bool,
    bytes: usize,
    depth: u16,
}

/// READs come first: WRITEs leave content without stamps.
const CASES: [Case; 6] = [
    Case { name: "read-4k-d1", is_write: false, bytes: SMALL, depth: 1 },
    Case { name: "read-4k-d32", is_write: false, bytes: SMALL, depth: 32 },
    Case { name: "read-128k-d8", is_write: false, bytes: LARGE, depth: 8 },
    Case { name: "write-4k-d1", is_write: true, bytes: SMALL, depth: 1 },
    Case { name: "write-4k-d32", is_write: true, bytes: SMALL, depth: 32 },
    Case { name: "write-128k-d8", is_write: true, bytes: LARGE, depth: 8 },
];

impl Case {
    /// The byte offset of the block which `random` chooses.
    fn place(&self, random: u64) -> u64 {
        let (first, bytes) = if self.bytes == SMALL { (0, SMALL_BYTES) } else { (SMALL_BYTES, LARGE_BYTES) };
        first + random % (bytes / self.bytes as u64) * self.bytes as u64
    }
}

/// What is asked for on the command line.
struct Choice {
    case: String,
    length: Duration,
    rounds: usize,
    mapped_bytes: u64,
    is_polling: bool,
    places: Vec<PathBuf>,
}

impl Choice {
    fn parse(mut words: impl Iterator<Item = String>) -> Self {
        let mut choice = Self {
            case: String::new(),
            length: Duration::from_secs(1),
            rounds: 5,
            mapped_bytes: 256 << 20,
            is_polling: false,
            places: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("the option has a value");
            match word.as_str() {
                "--case" => choice.case = value(),
                "--seconds" => choice.length = Duration::from_secs_f64(value().parse().expect("seconds")),
                "--rounds" => choice.rounds = value().parse().expect("a number of rounds"),
                "--mapped" => choice.mapped_bytes = value().parse::<u64>().expect("MiB") << 20,
                "--poll" => choice.is_polling = true,
                // Options of cargo.
                _ if word.starts_with("--") => {}
                _ => choice.places.push(word.into()),
            }
        }
        if choice.places.is_empty() {
            choice.places = vec!["/dev/shm".into(), crate::support::directory()];
        }
        choice
    }
}

/// Figures of a round; times of a CPU are microseconds a request.
#[derive(Clone, Default)]
struct Round {
    a_second: f64,
    worker: f64,
    client: f64,
    others: f64,
    /// Microseconds within which 50, 99 and 99.9 per cent of the requests were answered.
    within: [f64; 3],
    /// The part of READs served from mapped segments, and the number of WRITEs which waited for log space.
    mapped: f64,
    waited: u64,
}

/// Runs what the words behind `worker` ask for.
pub fn run(words: impl Iterator<Item = String>) {
    let choice = Choice::parse(words);
    println!(
        "| place | case | requests/s | range | worker CPU, µs | client CPU, µs | others' CPU, µs | p50, µs | p99, µs | p99.9, µs | mapped | waited |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for place in &choice.places {
        on_a_thread(|| run_in(place, &choice));
    }
}

fn run_in(place: &Path, choice: &Choice) {
    let directory = tempfile::tempdir_in(place).expect("the place can be written");
    write_log(directory.path());
    let mut host = Host::new(open(directory.path(), choice.mapped_bytes), 64);
    let mut client = host.client();
    host.attach(&mut client, [EXPORT], TAGS, EXPORT_BYTES);
    for case in CASES.iter().filter(|case| case.name.contains(&choice.case)) {
        warm_up(&mut client, case, choice);
        let mut rounds: Vec<Round> =
            (0..choice.rounds).map(|_| measure(&mut client, case, choice, choice.length)).collect();
        rounds.sort_by(|one, other| one.a_second.total_cmp(&other.a_second));
        print(place, case, &rounds);
    }
}

fn print(place: &Path, case: &Case, rounds: &[Round]) {
    let (worst, best) = (&rounds[0], &rounds[rounds.len() - 1]);
    println!(
        "| {} | `{}` | {:.0} | {:.0} to {:.0} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {:.2} | {} |",
        place.display(),
        case.name,
        best.a_second,
        worst.a_second,
        best.a_second,
        best.worker,
        best.client,
        best.others,
        best.within[0],
        best.within[1],
        best.within[2],
        best.mapped,
        best.waited,
    );
}

/// Writes all of the log once, so that no block of a file is new, and then the content: each block has its place as a stamp.
fn write_log(directory: &Path) {
    let mut path = DataPath::new(directory, SEGMENTS);
    let mut data: Vec<u8> = (0..LARGE).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let (small, large) = (SMALL_BYTES / SMALL as u64, LARGE_BYTES / LARGE as u64);
    let first = (0..SEGMENTS * SEGMENT_BYTES / LARGE as u64)
        .map(|number| (SMALL_BYTES + number % large * LARGE as u64, LARGE));
    let content = (0..small).map(|number| (number * STRIDE % small * SMALL as u64, SMALL));
    for (number, (offset, bytes)) in first.chain(content).enumerate() {
        data[..8].copy_from_slice(&offset.to_le_bytes());
        path.write_data(offset, &data[..bytes]);
        if number % 8 == 7 {
            path.turn();
        }
    }
    path.flush();
    path.settle();
}

/// Opens the cache, which seals all segments.
fn open(directory: &Path, mapped_bytes_max: u64) -> Cache {
    let options = Options { mapped_bytes_max, ..crate::support::cache_options(SEGMENTS) };
    let (disk, clock) = (Arc::new(Directory::new(directory)), Arc::new(MonotonicClock::default()));
    Cache::open(disk, clock, options, Known::local(&[EXPORT])).expect("the cache opens").0
}

/// Runs the case until a long round is served as the round before: what is read often is mapped then. Checks what is read.
fn warm_up(client: &mut Client, case: &Case, choice: &Choice) {
    drive(client, case, choice, (choice.length, true));
    let mut before = -1.0;
    loop {
        let round = measure(client, case, choice, choice.length);
        if case.is_write || round.mapped - before < 0.01 {
            return;
        }
        before = round.mapped;
    }
}

fn measure(client: &mut Client, case: &Case, choice: &Choice, length: Duration) -> Round {
    let own = cpu_clock().expect("a clock");
    let cpu_time = |clock: ClockId| clock_gettime(clock).map(Duration::from).expect("a clock");
    let stats = Arc::clone(&client.worker().shard_stats);
    let load = Arc::clone(&client.worker().load);
    let times = || [load.cpu_time(), cpu_time(own), process_cpu_time()];
    let counts = || [stats.reads.get(), stats.reads_mapped.get(), stats.delays.get() + stats.waits.get()];
    let (times_before, counts_before, begin) = (times(), counts(), Instant::now());
    let mut latencies = drive(client, case, choice, (length, false));
    let (elapsed, times_after, counts_after) = (begin.elapsed(), times(), counts());
    let count = latencies.len() as f64;
    let [worker, own, all] = std::array::from_fn(|at| {
        times_after[at].saturating_sub(times_before[at]).as_secs_f64() * 1e6 / count
    });
    let [reads, mapped, waited] = std::array::from_fn(|at| counts_after[at] - counts_before[at]);
    latencies.sort_unstable();
    let within = |per_mille: usize| f64::from(latencies[(latencies.len() - 1) * per_mille / 1000]) / 1e3;
    Round {
        a_second: count / elapsed.as_secs_f64(),
        worker,
        client: own,
        others: (all - worker - own).max(0.0),
        within: [within(500), within(990), within(999)],
        mapped: if reads == 0 { 0.0 } else { mapped as f64 / reads as f64 },
        waited,
    }
}

/// Sends requests for a time, and returns how long each took, nanoseconds. With stamps each READ is checked.
fn drive(client: &mut Client, case: &Case, choice: &Choice, (length, stamped): (Duration, bool)) -> Vec<u32> {
    let mut latencies = Vec::with_capacity(1 << 20);
    let (mut sent, mut places) = (vec![Instant::now(); case.depth.into()], vec![0; case.depth.into()]);
    let (begin, mut random) = (Instant::now(), 1_u64);
    let mut free: Vec<Tag> = client.tags(0).take(case.depth.into()).collect();
    let (mut under_way, mut now) = (0, begin);
    loop {
        if now - begin < length {
            for tag in free.drain(..) {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = case.place(random >> 33);
                if stamped && case.is_write {
                    client.stamp(tag, place);
                }
                client.request(tag, case.is_write, place, case.bytes);
                (sent[usize::from(tag.1)], places[usize::from(tag.1)]) = (now, place);
                under_way += 1;
            }
        } else if under_way == 0 {
            return latencies;
        }
        free.clear();
        if choice.is_polling {
            client.poll_answers(&mut free);
        } else {
            client.answers(&mut free);
        }
        now = Instant::now();
        under_way -= free.len();
        for tag in &free {
            let at = usize::from(tag.1);
            latencies.push(u32::try_from((now - sent[at]).as_nanos()).unwrap_or(u32::MAX));
            if stamped && !case.is_write {
                assert_eq!(client.stamp_of(*tag), places[at], "a READ has the content of its place");
            }
        }
    }
}
