//! A request at depth 1 through a whole worker, asleep between requests or looking at its ring: time, and CPU time of both sides.
//!
//! A null device stands for the kernel's driver: a client on another CPU puts its request into the worker's ring as ublk does, by a
//! message which the worker's thread has to pick up, and sleeps until the worker's answer comes in the same way. Between an answer and the
//! next request the client computes for a while. Each round measures every way in turn, the next round in the opposite order, so the load of
//! other programs meets all of them.
//!
//! `polling [THINK_US,…] [SECONDS]` prints a table: the medians over rounds, and the ratios to a worker which always sleeps, each of
//! one round: the median of nine, and in brackets the second and the eighth.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glidefs::testing::cache::{Cache, Directory, Known, MonotonicClock};
use glidefs::testing::units::ExportId;
use glidefs::testing::worker::cpu_clock;
use nix::time::{ClockId, clock_gettime};
use support::null_device::{Client, Host, on_a_thread};

const ROUNDS: usize = 9;
const EXPORT: ExportId = ExportId(1);
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 4096;

/// Figures of a round, microseconds a request; `found` is a part of all waits which began with a look at the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    request: f64,
    worker: f64,
    client: f64,
    polled: f64,
    found: f64,
}

/// A worker which may poll for so many per cent of a CPU, over a fresh cache.
fn host(polling_percent: u8) -> (tempfile::TempDir, Host) {
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let options = support::cache_options(16);
    let (disk, clock) = (Arc::new(Directory::new(directory.path())), Arc::new(MonotonicClock::default()));
    let (cache, _) = Cache::open(disk, clock, options, Known::local(&[EXPORT])).expect("the cache opens");
    (directory, Host::new(cache, 64, NonZeroU8::new(polling_percent)))
}

/// Sends WRITEs and READs of 4 KiB, one at a time, for `length`; `think` passes between an answer and the next request.
#[allow(clippy::cast_precision_loss, reason = "figures of a bench")]
fn run(client: &mut Client, think: Duration, length: Duration) -> Round {
    let own = cpu_clock().expect("a clock");
    let cpu_time = |clock: ClockId| clock_gettime(clock).map(Duration::from).expect("a clock");
    let stats = Arc::clone(client.worker().stats());
    let load = Arc::clone(client.worker().load());
    let polling = || [stats.poll_nanos.get(), stats.polls.get(), stats.polls_with_news.get()];
    let tag = client.tags(0).next().expect("the device has a tag");
    let (polling_before, begin) = (polling(), Instant::now());
    let (worker_before, own_before) = (load.cpu_time(), cpu_time(own));
    let (mut waited, mut thought, mut count) = (Duration::ZERO, Duration::ZERO, 0_u64);
    let mut answers = Vec::new();
    while begin.elapsed() < length {
        let sent = Instant::now();
        client.request(tag, count.is_multiple_of(2), count * 1237 % BLOCKS * BLOCK_BYTES as u64, BLOCK_BYTES);
        client.answers(&mut answers);
        let answered = Instant::now();
        assert_eq!(answers.len(), 1, "a request has one answer");
        answers.clear();
        waited += answered - sent;
        count += 1;
        while answered.elapsed() < think {
            std::hint::spin_loop();
        }
        thought += answered.elapsed();
    }
    let micros = |time: Duration| time.as_nanos() as f64 / 1000.0 / count as f64;
    let polling_after = polling();
    let [nanos, polls, found] = std::array::from_fn(|at| polling_after[at] - polling_before[at]);
    Round {
        request: micros(waited),
        worker: micros(load.cpu_time().saturating_sub(worker_before)),
        client: micros(cpu_time(own).saturating_sub(own_before).saturating_sub(thought)),
        polled: micros(Duration::from_nanos(nanos)),
        found: if polls == 0 { 0.0 } else { found as f64 / polls as f64 },
    }
}

fn main() {
    on_a_thread(compare);
}

fn compare() {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let thinks: Vec<Duration> = words
        .next()
        .unwrap_or_else(|| "0,20,50,100".into())
        .split(',')
        .map(|micros| Duration::from_micros(micros.parse().expect("microseconds")))
        .collect();
    let seconds: f64 = words.next().map_or(0.3, |word| word.parse().expect("seconds"));
    let length = Duration::from_secs_f64(seconds);
    // The last way is the first again: the difference between the two is that of the load of other programs.
    let percents = [0, 20, 100, 0];
    let mut hosts = percents.map(host);
    let mut clients: Vec<Client> = Vec::new();
    for (_, host) in &mut hosts {
        let mut client = host.client();
        host.attach(&mut client, [EXPORT], 1, BLOCKS * BLOCK_BYTES as u64);
        clients.push(client);
    }
    println!(
        "| Think, µs | polling_percent | Request, µs | Ratio | CPU of the worker, µs | CPU of both, µs | Ratio | Polled, µs | Polls with news |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for think in thinks {
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); percents.len()];
        for number in 0..ROUNDS {
            for step in 0..percents.len() {
                let way = if number % 2 == 0 { step } else { percents.len() - 1 - step };
                run(&mut clients[way], think, length / 8);
                rounds[way].push(run(&mut clients[way], think, length));
            }
        }
        for (percent, way) in percents.iter().zip(&rounds) {
            let of = |figure: fn(&Round) -> f64| middle(way.iter().map(figure).collect()).0;
            let ratio = |figure: fn(&Round) -> f64| {
                let ratios = way.iter().zip(&rounds[0]).map(|(it, base)| figure(it) / figure(base));
                let (median, low, high) = middle(ratios.collect());
                format!("{median:.2} ({low:.2}–{high:.2})")
            };
            println!(
                "| {} | {percent} | {:.1} | {} | {:.1} | {:.1} | {} | {:.1} | {:.0} % |",
                think.as_micros(),
                of(|it| it.request),
                ratio(|it| it.request),
                of(|it| it.worker),
                of(|it| it.worker + it.client),
                ratio(|it| it.worker + it.client),
                of(|it| it.polled),
                of(|it| it.found) * 100.0,
            );
        }
    }
}

/// The median of the figures of all rounds, and the figures next to the lowest and to the highest.
fn middle(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[ROUNDS / 2], figures[1], figures[ROUNDS - 2])
}
