//! Results: one run, and several runs of one case with the spread.
//!
//! Owns the arithmetic. Latencies are kept to three significant digits (hdrhistogram).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::plan::Case;

/// The longest latency that is recorded as such, nanoseconds.
const LATENCY_NANOS_MAX: u64 = 60_000_000_000;

#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        // The library takes these constant bounds: low ≥ 1, high ≥ 2 × low, at most five digits.
        #[expect(
            clippy::expect_used,
            reason = "the bounds are constants that are valid, as every test shows"
        )]
        Self(Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, 3).expect("valid bounds"))
    }
}

impl Latencies {
    /// Counts one operation; more than a minute counts as a minute.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the operations of another job.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures for tables and JSON.
    pub fn figures(&self) -> LatencyFigures {
        LatencyFigures {
            avg: self.0.mean(),
            p50: self.0.value_at_quantile(0.5),
            p95: self.0.value_at_quantile(0.95),
            p99: self.0.value_at_quantile(0.99),
            p999: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyFigures {
    pub avg: f64,
    /// Half of the operations took at most this long, in nanoseconds; p95, p99 and p999 likewise.
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p999: u64,
    pub max: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Spent in the process's own code.
    pub user: Duration,
    /// Spent in the kernel for the process.
    pub system: Duration,
}

/// One run of one case.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredRun {
    #[serde(flatten)]
    pub case: Case,
    /// Length of the measured window.
    pub seconds: f64,
    /// Operations completed in the window.
    pub operations: u64,
    pub bytes: u64,
    pub iops: f64,
    pub bytes_per_second: f64,
    /// Nanoseconds from start to completion of an operation.
    pub latency_nanos: LatencyFigures,
    /// CPU time of the process's own code, seconds.
    pub user_seconds: f64,
    /// CPU time of the kernel for the process, including the kernel's worker threads, seconds.
    pub system_seconds: f64,
}

/// A figure of a run.
pub type Figure = fn(&MeasuredRun) -> f64;

#[expect(clippy::cast_precision_loss, reason = "figures are shown to a few digits")]
impl MeasuredRun {
    /// A run of `case` with operations of these `latencies`, which moved `bytes` within `measured` and used `cpu`.
    pub fn new(case: Case, measured: Duration, latencies: &Latencies, bytes: u64, cpu: CpuTime) -> Self {
        let (seconds, operations) = (measured.as_secs_f64(), latencies.count());
        Self {
            case,
            seconds,
            operations,
            bytes,
            iops: operations as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency_nanos: latencies.figures(),
            user_seconds: cpu.user.as_secs_f64(),
            system_seconds: cpu.system.as_secs_f64(),
        }
    }

    /// CPUs busy in the process's own code, per cent of one.
    pub fn user_percent(&self) -> f64 {
        100.0 * self.user_seconds / self.seconds
    }

    /// CPUs busy in the kernel for the process, per cent of one.
    pub fn system_percent(&self) -> f64 {
        100.0 * self.system_seconds / self.seconds
    }

    /// CPU time an operation cost, nanoseconds.
    pub fn cpu_nanos_per_operation(&self) -> f64 {
        1e9 * (self.user_seconds + self.system_seconds) / self.operations.max(1) as f64
    }

    /// Latency figures as numbers to calculate with, nanoseconds.
    pub const LATENCIES: [(&'static str, Figure); 5] = [
        ("avg", |run| run.latency_nanos.avg),
        ("p50", |run| run.latency_nanos.p50 as f64),
        ("p95", |run| run.latency_nanos.p95 as f64),
        ("p99", |run| run.latency_nanos.p99 as f64),
        ("p99.9", |run| run.latency_nanos.p999 as f64),
    ];
}

/// All runs of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseRuns {
    #[serde(flatten)]
    pub case: Case,
    /// All runs, in the order they were made.
    pub runs: Vec<MeasuredRun>,
}

impl CaseRuns {
    /// A figure over the runs.
    pub fn spread(&self, figure: impl Fn(&MeasuredRun) -> f64) -> Spread {
        Spread::of(&self.runs, figure)
    }
}

/// A figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub mean: f64,
    /// Half the distance between the highest and the lowest; `None` for a single run.
    pub half_range: Option<f64>,
}

impl Spread {
    /// The spread of `figure` over `runs`; zero without runs.
    #[expect(clippy::cast_precision_loss, reason = "there are few runs")]
    pub fn of(runs: &[MeasuredRun], figure: impl Fn(&MeasuredRun) -> f64) -> Self {
        let values: Vec<f64> = runs.iter().map(figure).collect();
        if values.is_empty() {
            return Self { mean: 0.0, half_range: None };
        }
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            half_range: (values.len() > 1).then_some((high - low) / 2.0),
        }
    }

    /// Half the range in per cent of the mean.
    pub fn percent(self) -> Option<f64> {
        self.half_range.map(|half| if self.mean == 0.0 { 0.0 } else { 100.0 * half / self.mean })
    }

    /// The difference of `after` from this spread's mean, per cent.
    pub fn change_percent(self, after: Self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { 100.0 * (after.mean - self.mean) / self.mean }
    }

    /// Whether `after` differs by more than both spreads together; `None` when one side has no spread.
    pub fn differs(self, after: Self) -> Option<bool> {
        Some((after.mean - self.mean).abs() > self.half_range? + after.half_range?)
    }
}
