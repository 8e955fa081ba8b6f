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
    /// The time between the two answers; `None` with one answer, or with answers of two daemons.
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

/// The time between two answers of one daemon.
fn seconds_between(before: &Top, now: &Top) -> Option<f64> {
    let nanos = now.uptime_nanoseconds.checked_sub(before.uptime_nanoseconds)?;
    (before.instance == now.instance && nanos > 0).then_some(nanos as f64 / 1e9)
}

impl Sample {
    /// The rates between two answers; without rates if there is one only.
    pub fn of(before: Option<&Top>, now: &Top) -> Self {
        let pair = before.and_then(|before| Some((before, seconds_between(before, now)?)));
        let known: HashMap<&str, &TopIo> = pair
            .iter()
            .flat_map(|(before, _)| &before.exports)
            .filter_map(|export| Some((export.name.as_str(), export.io.as_ref()?)))
            .collect();
        let seconds = pair.map(|(_, seconds)| seconds);
        let bounds = &now.latency_bounds_nanoseconds;
        let mut host = Grown::default();
        let rates = now.exports.iter().map(|export| {
            let before = known.get(export.name.as_str());
            let grown = before.zip(export.io.as_ref()).and_then(|(before, io)| Grown::between(before, io));
            if let Some(grown) = &grown {
                host.add(grown);
            }
            rates(export, grown.as_ref().zip(seconds), bounds)
        });
        let exports = rates.collect();
        let rate = |count: u64| seconds.map(|seconds| count as f64 / seconds);
        let host = HostRates {
            reads: rate(host.read.operations),
            writes: rate(host.write.operations),
            flushes: rate(host.flush.operations),
            read_bytes: rate(host.read.bytes),
            written_bytes: rate(host.write.bytes),
            errors: rate(host.errors()),
        };
        Self { seconds, host, exports }
    }
}

fn rates(export: &TopExport, grown: Option<(&Grown, f64)>, bounds: &[u64]) -> Rates {
    let mut rates = Rates {
        name: export.name.clone(),
        state: export.state.clone(),
        size_bytes: export.size_bytes,
        in_flight: export.io.as_ref().map_or(0, |io| io.in_flight),
        dirty_bytes: export.dirty_bytes,
        at_risk_seconds: export.at_risk_seconds,
        waiting_for: export.waiting_for.clone(),
        ..Rates::default()
    };
    let Some((grown, seconds)) = grown else {
        // An export that was not used has no requests.
        let unused = export.io.is_none().then_some(0.0);
        return Rates {
            iops: unused,
            read_bytes: unused,
            written_bytes: unused,
            wait_nanoseconds: unused,
            errors: unused,
            ..rates
        };
    };
    let rate = |count: u64| Some(count as f64 / seconds);
    let timed = [&grown.read, &grown.write, &grown.flush];
    let requests: u64 = timed.iter().map(|one| one.operations).sum();
    let nanos: u64 = timed.iter().map(|one| one.latency_nanoseconds).sum();
    rates.iops = rate(requests + grown.zero.operations);
    rates.read_bytes = rate(grown.read.bytes);
    rates.written_bytes = rate(grown.write.bytes);
    rates.wait_nanoseconds = rate(grown.wait_nanoseconds);
    rates.errors = rate(grown.errors());
    rates.mean_nanoseconds = (requests > 0).then(|| nanos as f64 / requests as f64);
    let mut latency = Vec::new();
    for one in timed {
        add_each(&mut latency, &one.latency);
    }
    rates.p99_nanoseconds = quantile(0.99, &latency, bounds);
    rates
}

/// The growth of the counters of one export, or of all.
#[derive(Clone, Debug, Default)]
struct Grown {
    read: TopRequests,
    write: TopRequests,
    flush: TopRequests,
    zero: TopRequests,
    wait_nanoseconds: u64,
}

impl Grown {
    /// The growth between two looks; `None` if the counters began anew.
    fn between(before: &TopIo, now: &TopIo) -> Option<Self> {
        let waited = |io: &TopIo| {
            let waits = [io.limit_wait_nanoseconds, io.index_wait_nanoseconds, io.log_wait_nanoseconds];
            waits.into_iter().fold(0_u64, u64::saturating_add)
        };
        if before.id != now.id {
            return None;
        }
        Some(Self {
            read: grown(&before.read, &now.read)?,
            write: grown(&before.write, &now.write)?,
            flush: grown(&before.flush, &now.flush)?,
            zero: grown(&before.zero, &now.zero)?,
            wait_nanoseconds: waited(now).checked_sub(waited(before))?,
        })
    }

    fn errors(&self) -> u64 {
        [&self.read, &self.write, &self.flush, &self.zero].into_iter().map(|one| one.errors).sum()
    }

    fn add(&mut self, other: &Self) {
        for (sum, one) in [
            (&mut self.read, &other.read),
            (&mut self.write, &other.write),
            (&mut self.flush, &other.flush),
            (&mut self.zero, &other.zero),
        ] {
            sum.operations = sum.operations.saturating_add(one.operations);
            sum.bytes = sum.bytes.saturating_add(one.bytes);
            sum.errors = sum.errors.saturating_add(one.errors);
        }
    }
}

fn grown(before: &TopRequests, now: &TopRequests) -> Option<TopRequests> {
    let at = |buckets: &[u64], place: usize| buckets.get(place).copied().unwrap_or(0);
    let places = before.latency.len().max(now.latency.len());
    let buckets = (0..places).map(|place| at(&now.latency, place).checked_sub(at(&before.latency, place)));
    let latency = buckets.collect::<Option<_>>()?;
    Some(TopRequests {
        operations: now.operations.checked_sub(before.operations)?,
        bytes: now.bytes.checked_sub(before.bytes)?,
        errors: now.errors.checked_sub(before.errors)?,
        latency_nanoseconds: now.latency_nanoseconds.checked_sub(before.latency_nanoseconds)?,
        latency,
    })
}

/// Adds each number of `other` to the number at the same place of `sum`.
fn add_each(sum: &mut Vec<u64>, other: &[u64]) {
    if sum.len() < other.len() {
        sum.resize(other.len(), 0);
    }
    for (sum, one) in sum.iter_mut().zip(other) {
        *sum = sum.saturating_add(*one);
    }
}

/// The latency below which `share` of the requests stayed, by linear interpolation inside a bucket. Of requests above the last bound
/// the bound is all that is known.
pub(super) fn quantile(share: f64, buckets: &[u64], bounds: &[u64]) -> Option<f64> {
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
