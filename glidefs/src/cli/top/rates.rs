//! Rates: the difference of two answers of `/v1/top` over the time between.
//!
//! Owns the arithmetic. Invariants: a rate is never negative; a rate that cannot be known, because the counters began anew or were not
//! in both answers, is `None`, never 0; the rates of the host are the sums of those of the exports.

use std::collections::HashMap;

use serde::Serialize;

use crate::api::wire::{Top, TopExport, TopIo, TopRequests};

/// All rates of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// The time between the two answers; `None` with answers of two daemons.
    pub seconds: Option<f64>,
    pub host: HostRates,
    pub exports: Vec<Rates>,
}

/// The rates of all exports together, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct HostRates {
    pub reads: Option<f64>,
    pub writes: Option<f64>,
    pub flushes: Option<f64>,
    pub read_bytes: Option<f64>,
    pub written_bytes: Option<f64>,
    pub errors: Option<f64>,
}

/// One export: what it does a second, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub name: String,
    pub state: String,
    pub size_bytes: u64,
    /// Requests of all kinds a second.
    pub iops: Option<f64>,
    pub read_bytes: Option<f64>,
    pub written_bytes: Option<f64>,
    /// Mean latency of READ, WRITE and FLUSH, nanoseconds; `None` without requests.
    pub mean_nanoseconds: Option<f64>,
    /// Latency below which 99 of 100 requests stayed, by interpolation inside a bucket, nanoseconds.
    pub p99_nanoseconds: Option<f64>,
    /// Time that requests waited for limits, index and log, nanoseconds a second.
    pub wait_nanoseconds: Option<f64>,
    pub errors: Option<f64>,
    pub in_flight: u64,
    pub dirty_bytes: u64,
    pub at_risk_seconds: u64,
    pub waiting_for: Option<String>,
}

/// The counters of an export, or their growth, or that of all exports: in this order, then a number for each bucket of latency.
type Counters = Vec<u64>;
const READS: usize = 0;
const READ_BYTES: usize = 1;
const WRITES: usize = 2;
const WRITTEN_BYTES: usize = 3;
const FLUSHES: usize = 4;
const ZEROES: usize = 5;
const ERRORS: usize = 6;
const LATENCY: usize = 7;
const WAITS: usize = 8;
const BUCKETS: usize = 9;

/// The time between two answers of one daemon.
fn seconds_between(before: &Top, now: &Top) -> Option<f64> {
    let nanos = now.uptime_nanoseconds.checked_sub(before.uptime_nanoseconds)?;
    (before.instance == now.instance && nanos > 0).then_some(nanos as f64 / 1e9)
}

impl Sample {
    /// The rates between two answers.
    pub fn of(before: &Top, now: &Top) -> Self {
        let seconds = seconds_between(before, now);
        let bounds = &now.latency_bounds_nanoseconds;
        let known =
            before.exports.iter().filter_map(|export| Some((export.name.as_str(), export.io.as_ref()?)));
        let known: HashMap<&str, &TopIo> = known.collect();
        let mut host: Counters = vec![0; BUCKETS];
        let mut of = |export: &TopExport| {
            let grown = seconds
                .zip(known.get(export.name.as_str()).zip(export.io.as_ref()))
                .and_then(|(_, (before, io))| grown(before, io, bounds.len()));
            for (sum, count) in host.iter_mut().zip(grown.iter().flatten()) {
                *sum = sum.saturating_add(*count);
            }
            rates(export, grown.as_ref().zip(seconds), bounds)
        };
        let exports = now.exports.iter().map(&mut of).collect();
        let rate = |counter: usize| seconds.map(|seconds| host[counter] as f64 / seconds);
        let host = HostRates {
            reads: rate(READS),
            writes: rate(WRITES),
            flushes: rate(FLUSHES),
            read_bytes: rate(READ_BYTES),
            written_bytes: rate(WRITTEN_BYTES),
            errors: rate(ERRORS),
        };
        Self { seconds, host, exports }
    }
}

fn rates(export: &TopExport, grown: Option<(&Counters, f64)>, bounds: &[u64]) -> Rates {
    // An export that was not used has no requests.
    let unused = export.io.is_none().then_some(0.0);
    let rate = |counters: &[usize]| match grown {
        Some((grown, seconds)) => {
            Some(counters.iter().map(|&counter| grown[counter]).sum::<u64>() as f64 / seconds)
        }
        None => unused,
    };
    let timed = grown.map(|(grown, _)| (grown[READS] + grown[WRITES] + grown[FLUSHES], grown[LATENCY]));
    let timed = timed.filter(|(requests, _)| *requests > 0);
    Rates {
        name: export.name.clone(),
        state: export.state.clone(),
        size_bytes: export.size_bytes,
        iops: rate(&[READS, WRITES, FLUSHES, ZEROES]),
        read_bytes: rate(&[READ_BYTES]),
        written_bytes: rate(&[WRITTEN_BYTES]),
        mean_nanoseconds: timed.map(|(requests, nanos)| nanos as f64 / requests as f64),
        p99_nanoseconds: grown.and_then(|(grown, _)| quantile(0.99, &grown[BUCKETS..], bounds)),
        wait_nanoseconds: rate(&[WAITS]),
        errors: rate(&[ERRORS]),
        in_flight: export.io.as_ref().map_or(0, |io| io.in_flight),
        dirty_bytes: export.dirty_bytes,
        at_risk_seconds: export.at_risk_seconds,
        waiting_for: export.waiting_for.clone(),
    }
}

/// The growth between two looks; `None` if the counters began anew.
fn grown(before: &TopIo, now: &TopIo, bounds: usize) -> Option<Counters> {
    let pairs = counters(now, bounds).into_iter().zip(counters(before, bounds));
    let grown = pairs.map(|(now, before)| now.checked_sub(before)).collect::<Option<_>>();
    grown.filter(|_| before.id == now.id)
}

fn counters(io: &TopIo, bounds: usize) -> Counters {
    let timed = [&io.read, &io.write, &io.flush];
    let sum = |figures: &[u64]| figures.iter().copied().fold(0, u64::saturating_add);
    let mut counters = vec![
        io.read.operations,
        io.read.bytes,
        io.write.operations,
        io.write.bytes,
        io.flush.operations,
        io.zero.operations,
        sum(&timed.map(|one| one.errors)),
        sum(&timed.map(|one| one.latency_nanoseconds)),
        sum(&[io.limit_wait_nanoseconds, io.index_wait_nanoseconds, io.log_wait_nanoseconds]),
    ];
    let bucket =
        |place: usize| sum(&timed.map(|one: &TopRequests| one.latency.get(place).copied().unwrap_or(0)));
    counters.extend((0..=bounds).map(bucket));
    counters
}

/// The latency below which `share` of the requests stayed, by linear interpolation inside a bucket. Of requests above the last bound
/// the bound is all that is known.
fn quantile(share: f64, buckets: &[u64], bounds: &[u64]) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let mut rank = share * total as f64;
    let mut low = 0.0;
    for (count, bound) in
        buckets.iter().map(|count| *count as f64).zip(bounds.iter().map(|bound| *bound as f64))
    {
        if count > 0.0 && rank <= count {
            return Some(low + (bound - low) * rank / count);
        }
        rank -= count;
        low = bound;
    }
    bounds.last().map(|bound| *bound as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: [u64; 3] = [10, 100, 1000];

    fn requests(operations: u64) -> TopRequests {
        TopRequests {
            operations,
            bytes: operations * 4096,
            errors: operations / 10,
            latency_nanoseconds: operations * 50,
            latency: vec![0, operations],
        }
    }

    fn export(name: &str, id: u32, operations: u64) -> TopExport {
        let (read, write) = (requests(operations), requests(operations / 2));
        let io = TopIo { id, read, write, ..TopIo::default() };
        TopExport { name: name.into(), state: "serving".into(), io: Some(io), ..TopExport::default() }
    }

    fn top(seconds: u64, exports: Vec<TopExport>) -> Top {
        Top {
            pid: 7,
            instance: "first".into(),
            uptime_nanoseconds: seconds * 1_000_000_000,
            latency_bounds_nanoseconds: BOUNDS.to_vec(),
            exports,
            ..Top::default()
        }
    }

    #[test]
    fn rates_are_the_growth_over_the_time_between_two_answers() {
        let sample = Sample::of(&top(10, vec![export("a", 1, 100)]), &top(12, vec![export("a", 1, 300)]));
        let one = &sample.exports[0];
        assert_eq!(sample.seconds, Some(2.0));
        assert_eq!(
            (one.iops, one.read_bytes, one.written_bytes),
            (Some(150.0), Some(409_600.0), Some(204_800.0))
        );
        assert_eq!((one.mean_nanoseconds, one.errors), (Some(50.0), Some(15.0)));
        assert_eq!((sample.host.reads, sample.host.writes), (Some(100.0), Some(50.0)));
        let p99 = one.p99_nanoseconds.unwrap();
        assert!((99.0..=99.2).contains(&p99), "{p99}");
    }

    #[test]
    fn counters_that_began_anew_give_no_rate_instead_of_a_wrong_one() {
        let before = top(10, vec![export("a", 1, 100)]);
        let same = top(12, vec![export("a", 1, 100)]);
        assert_eq!(Sample::of(&before, &same).exports[0].iops, Some(0.0));
        // Another daemon, whose clock may be ahead or behind.
        for seconds in [1, 10, 12] {
            let restarted = Top { instance: "second".into(), ..top(seconds, vec![export("a", 1, 500)]) };
            let sample = Sample::of(&before, &restarted);
            assert_eq!((sample.seconds, sample.exports[0].iops, sample.host.reads), (None, None, None));
        }
        // An answer asked for before, or twice the same.
        for seconds in [9, 10] {
            assert_eq!(Sample::of(&before, &top(seconds, vec![export("a", 1, 500)])).seconds, None);
        }
        // Another export of the same name, and counters that went back.
        for export in [export("a", 2, 500), export("a", 1, 99)] {
            let sample = Sample::of(&before, &top(12, vec![export]));
            assert_eq!((sample.exports[0].iops, sample.host.reads), (None, Some(0.0)));
        }
        // An export that begins to be used: its requests before are not known.
        let unused = TopExport { io: None, ..export("a", 1, 0) };
        assert_eq!(Sample::of(&top(10, vec![unused.clone()]), &same).exports[0].iops, None);
        assert_eq!(Sample::of(&before, &top(12, vec![unused])).exports[0].iops, Some(0.0));
    }

    /// Counters of an export in two answers, and its ids there.
    type Pair = (u16, u16, u32, u32);

    proptest! {
        #[test]
        fn a_rate_is_never_negative_and_the_host_does_what_its_exports_do(
            pairs in prop::collection::vec((any::<u16>(), any::<u16>(), 0..3_u32, 0..3_u32), 0..20),
            times in (0..100_u64, 0..100_u64),
        ) {
            let name = |place: usize| format!("vm-{place}");
            let all = |pick: fn(&Pair) -> (u16, u32)| {
                let exports = pairs.iter().enumerate().map(|(place, pair)| {
                    let (operations, id) = pick(pair);
                    export(&name(place), id, operations.into())
                });
                exports.collect::<Vec<_>>()
            };
            let before = top(times.0, all(|pair| (pair.0, pair.2)));
            let now = top(times.1, all(|pair| (pair.1, pair.3)));
            let sample = Sample::of(&before, &now);
            prop_assert_eq!(sample.seconds.is_some(), times.1 > times.0);
            let mut iops = 0.0;
            for (one, pair) in sample.exports.iter().zip(&pairs) {
                let is_known = times.1 > times.0 && pair.2 == pair.3 && pair.1 >= pair.0;
                prop_assert_eq!(one.iops.is_some(), is_known, "{:?} {:?}", one, pair);
                let rates = [one.iops, one.read_bytes, one.written_bytes, one.wait_nanoseconds, one.errors];
                prop_assert!(rates.into_iter().flatten().all(|rate| rate >= 0.0), "{:?}", one);
                prop_assert!(one.mean_nanoseconds.is_none_or(|mean| mean > 0.0 && mean <= 1000.0), "{:?}", one);
                iops += one.iops.unwrap_or(0.0);
            }
            if let (Some(reads), Some(writes)) = (sample.host.reads, sample.host.writes) {
                prop_assert!((reads + writes - iops).abs() < 1e-6 * (1.0 + iops));
            }
        }

        #[test]
        fn a_quantile_lies_in_the_bucket_of_its_request(buckets in prop::collection::vec(0..50_u64, 4), share in 0.01..1.0_f64) {
            let total: u64 = buckets.iter().sum();
            let found = quantile(share, &buckets, &BOUNDS);
            prop_assert_eq!(found.is_some(), total > 0);
            if let Some(found) = found {
                let rank = share * total as f64;
                let mut below = 0.0;
                let place = buckets.iter().position(|count| { below += *count as f64; below >= rank }).unwrap_or(3);
                let low = if place == 0 { 0.0 } else { BOUNDS[place.min(3) - 1] as f64 };
                let high = BOUNDS[place.min(2)] as f64;
                prop_assert!(low - 1e-6 <= found && found <= high + 1e-6, "{} not in {}..{}", found, low, high);
            }
        }
    }
}
