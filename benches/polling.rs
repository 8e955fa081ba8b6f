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
use std::time::Duration;

use support::null_device::{Client, Host, Round};

const ROUNDS: usize = 9;

fn main() {
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
    let hosts = percents.map(|percent| Host::new(NonZeroU8::new(percent)));
    let mut clients: Vec<Client> = hosts.iter().map(Host::client).collect();
    println!(
        "| Think, µs | polling_percent | Request, µs | Ratio | CPU of the worker, µs | CPU of both, µs | Ratio | Polled, µs | Polls with news |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for think in thinks {
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); percents.len()];
        for number in 0..ROUNDS {
            for step in 0..percents.len() {
                let way = if number % 2 == 0 { step } else { percents.len() - 1 - step };
                clients[way].run(think, length / 8);
                rounds[way].push(clients[way].run(think, length));
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
