//! Single-writer counters and histograms for the I/O path.
//!
//! Owns the cells in memory. Does not own names, help texts and encoding (`metrics`). Invariant: one thread at a time writes
//! a cell; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writer. An update is a load, an add and a store: no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Call only from the thread that owns this cell.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Takes `n` away, for gauges. Call only from the thread that owns this cell.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Makes the value `n`, for gauges. Call only from the thread that owns this cell.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Makes the value at least `n`, for gauges. Call only from the thread that owns this cell.
    #[inline]
    pub fn raise(&self, n: u64) {
        self.set(self.get().max(n));
    }

    /// The value as last stored.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A histogram over `N` fixed upper bounds (inclusive, ascending) and +Inf, with one writer.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    buckets: [Counter; N],
    above: Counter,
    sum: Counter,
}

impl<const N: usize> Histogram<N> {
    /// An empty histogram with the upper bounds `bounds`, ascending.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            buckets: std::array::from_fn(|_| Counter::default()),
            above: Counter::default(),
            sum: Counter::default(),
        }
    }

    /// Counts `value` in the first bucket whose bound is at least `value`. Call only from the owning thread.
    #[inline]
    pub fn record(&self, value: u64) {
        self.sum.add(value);
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.buckets.get(bucket).unwrap_or(&self.above).add(1);
    }

    /// A histogram with these cells.
    #[cfg(test)]
    pub fn of(bounds: &'static [u64; N], buckets: &[u64], above: u64, sum: u64) -> Self {
        let all = Self::new(bounds);
        all.buckets.iter().zip(buckets).for_each(|(cell, count)| cell.set(*count));
        all.above.set(above);
        all.sum.set(sum);
        all
    }

    /// Counts per bucket (not cumulative), and the count above the last bound.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().chain([&self.above]).map(Counter::get)
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts().fold(0, u64::wrapping_add)
    }

    /// Sum of all recorded values.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }

    /// Adds what `other` has recorded.
    pub fn merge(&self, other: &Self) {
        for (mine, count) in self.buckets.iter().chain([&self.above]).zip(other.counts()) {
            mine.add(count);
        }
        self.sum.add(other.sum());
    }
}

impl Default for Histogram<6> {
    fn default() -> Self {
        Self::new(&IO_SIZE_BOUNDS_BYTES)
    }
}

impl Default for Histogram<12> {
    fn default() -> Self {
        Self::new(&LATENCY_BOUNDS_NANOS)
    }
}

/// Upper bounds of the I/O size histograms, bytes.
pub const IO_SIZE_BOUNDS_BYTES: [u64; 6] = [4096, 8192, 16_384, 32_768, 65_536, 131_072];

/// Upper bounds of the latency histograms, nanoseconds.
pub const LATENCY_BOUNDS_NANOS: [u64; 12] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    50_000_000,
    250_000_000,
    1_000_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_equal_to_a_bound_counts_in_that_bucket() {
        let histogram = Histogram::new(&IO_SIZE_BOUNDS_BYTES);
        for bytes in [512, 4096, 4097, 131_072, 131_073] {
            histogram.record(bytes);
        }
        assert!(histogram.counts().eq([2, 1, 0, 0, 0, 1, 1]));
        assert_eq!(histogram.sum(), 512 + 4096 + 4097 + 131_072 + 131_073);
    }
}
