//! A case and its floor, measured in turns.
//!
//! A floor is the least possible work instead: a copy of 4 KiB, a plain `pwrite` of the same bytes, one `fdatasync`. Owns the
//! pairing and the file of ratios. Invariant: each sample of a case is followed at once by a sample of the floor, so a machine that
//! slows down slows both, and the ratio says more than either time does. Nothing is asserted.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use serde_json::{Value, json};

pub type BenchGroup<'a> = BenchmarkGroup<'a, WallTime>;

/// The results of one bench program, printed one by one, and written to `bench/NAME.json` in the target directory.
pub struct Ratios {
    path: PathBuf,
    rows: BTreeMap<String, Value>,
}

/// Nanoseconds a call, of the case and of the floor.
type RatioSample = (f64, f64);

impl Ratios {
    /// Results of the bench program `name`. Keeps the figures in the file for cases that are not run this time.
    pub fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .with_file_name(if super::is_short() { "bench-short" } else { "bench" })
            .join(format!("{name}.json"));
        let known = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Vec<Value>>(&bytes).ok());
        let rows = known.unwrap_or_default().into_iter();
        let rows = rows.filter_map(|row| Some((row["id"].as_str()?.to_owned(), row))).collect();
        Self { path, rows }
    }

    /// Measures `case` beside `floor`, both equally often, and prints the ratio of the times.
    pub fn against(
        &mut self,
        group: &mut BenchGroup<'_>,
        id: &str,
        floor_name: &str,
        mut floor: impl FnMut(),
        mut case: impl FnMut(),
    ) {
        self.against_timed(
            group,
            id,
            floor_name,
            |count| timed(count, &mut floor),
            |count| timed(count, &mut case),
        );
    }

    /// As [`Self::against`], for a case and a floor that return the time of `count` calls.
    pub fn against_timed(
        &mut self,
        group: &mut BenchGroup<'_>,
        id: &str,
        floor_name: &str,
        mut floor: impl FnMut(u64) -> Duration,
        mut case: impl FnMut(u64) -> Duration,
    ) {
        let mut samples = Vec::new();
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|count| {
                let time = case(count);
                samples.push((nanos(time, count), nanos(floor(count), count)));
                time
            });
        });
        self.add(id, floor_name, samples);
    }

    /// Adds samples measured without criterion.
    pub fn add(&mut self, id: &str, floor_name: &str, samples: Vec<RatioSample>) {
        // There are no samples when a filter excludes the case.
        let (Some(time), Some(floor), Some(ratio)) = (
            median(samples.iter().map(|sample| sample.0)),
            median(samples.iter().map(|sample| sample.1)),
            median(samples.iter().map(|sample| sample.0 / sample.1)),
        ) else {
            return;
        };
        println!("{id:<40} {time:>12.1} ns = {ratio:>7.3} x {floor_name} ({floor:.1} ns)\n");
        let row =
            json!({ "id": id, "nanos": time, "floor": floor_name, "floor_nanos": floor, "ratio": ratio });
        self.rows.insert(id.to_owned(), row);
    }

    pub fn save(self) {
        let rows: Vec<Value> = self.rows.into_values().collect();
        let text = format!("{:#}\n", Value::Array(rows));
        let written =
            self.path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&self.path, text));
        match written {
            Ok(()) => println!("ratios: {}", self.path.display()),
            Err(error) => eprintln!("{} cannot be written: {error}", self.path.display()),
        }
    }
}

/// The time of `count` calls.
#[inline]
pub fn timed(count: u64, work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        work();
    }
    start.elapsed()
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls are far below 2^52")]
fn nanos(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e9 / count.max(1) as f64
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
