//! The text beside the text of the `prometheus` crate.

use prometheus::TextEncoder;
use prometheus::proto::{self, Bucket, Counter, Gauge, LabelPair, MetricFamily, MetricType};
use proptest::prelude::*;

use super::super::encode;
use super::super::samples::{ExportHistograms, Sample, Samples};
use super::super::table::{Definition, Kind, Unit, all};
use super::AWKWARD_NAMES;
use crate::observe::counter::HistogramSnapshot;

/// The text of the crate.
fn text_of_the_crate(samples: Samples) -> String {
    let mut text = String::new();
    for family in samples.into_families().unwrap() {
        let definition = family.definition();
        let mut model = MetricFamily::default();
        model.set_name(definition.name.to_owned());
        model.set_help(definition.help.to_owned());
        model.set_field_type(match definition.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::SizeHistogram | Kind::LatencyHistogram => MetricType::HISTOGRAM,
        });
        model.set_metric(family.samples().map(|sample| metric(definition, &sample)).collect());
        TextEncoder::new().encode_utf8(&[model], &mut text).unwrap();
    }
    text
}

fn metric(definition: &Definition, sample: &Sample<'_>) -> proto::Metric {
    let pairs = definition.labels.iter().zip(sample.labels()).map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    let mut metric = proto::Metric::from_label(pairs.collect());
    match (definition.kind, sample.cells) {
        (Kind::Counter, [value]) => {
            let mut counter = Counter::default();
            counter.set_value(shown(definition.unit, *value));
            metric.set_counter(counter);
        }
        (Kind::Gauge, [value]) => {
            let mut gauge = Gauge::default();
            gauge.set_value(shown(definition.unit, *value));
            metric.set_gauge(gauge);
        }
        (_, cells) => metric.set_histogram(histogram(definition, cells)),
    }
    metric
}

fn histogram(definition: &Definition, cells: &[u64]) -> proto::Histogram {
    let [counts @ .., sum] = cells else { panic!("a histogram has a sum") };
    let total = |counts: &[u64]| counts.iter().fold(0, |sum: u64, count| sum.wrapping_add(*count));
    let bounds = definition.kind.bounds();
    let buckets = bounds.iter().enumerate().map(|(at, bound)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(shown(definition.unit, *bound));
        bucket.set_cumulative_count(total(&counts[..=at]));
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(total(counts));
    histogram.set_sample_sum(shown(definition.unit, *sum));
    histogram
}

fn shown(unit: Unit, cell: u64) -> f64 {
    if unit == Unit::Seconds { cell as f64 / 1e9 } else { cell as f64 }
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), prop::sample::select(&AWKWARD_NAMES[..]).prop_map(str::to_owned)]
}

/// Cells of all sizes, and some at the edge of exact numbers.
fn cell() -> impl Strategy<Value = u64> {
    let exact = 1_u64 << 53;
    prop_oneof![any::<u64>(), 0..100_000_u64, exact - 2..exact + 3, (0..64_u32).prop_map(|bit| 1 << bit)]
}

/// A metric of the table, three labels of which the metric's own number is used, and cells enough for any kind.
fn sample() -> impl Strategy<Value = (usize, [String; 3], [u64; 14])> {
    (0..all().len(), [label(), label(), label()], prop::array::uniform14(cell()))
}

fn samples(given: &[(usize, [String; 3], [u64; 14])]) -> Samples {
    let mut samples = Samples::new(ExportHistograms::Busy);
    let table: Vec<_> = all().collect();
    for (row, labels, cells) in given {
        let Definition { metric, kind, labels: names, .. } = table[*row];
        let labels: Vec<&str> = labels.iter().map(String::as_str).take(names.len()).collect();
        let (buckets, [above, sum]) = cells.split_at_checked(12).map(|(b, r)| (b, [r[0], r[1]])).unwrap();
        match kind {
            Kind::Counter | Kind::Gauge => samples.value(*metric, &labels, above),
            Kind::SizeHistogram => {
                let buckets = *buckets.first_chunk::<6>().unwrap();
                samples.histogram(*metric, &labels, &HistogramSnapshot { buckets, above, sum });
            }
            Kind::LatencyHistogram => {
                let buckets = *buckets.first_chunk::<12>().unwrap();
                samples.histogram(*metric, &labels, &HistogramSnapshot { buckets, above, sum });
            }
        }
    }
    samples
}

proptest! {
    #[test]
    fn the_text_is_the_text_of_the_prometheus_crate(given in prop::collection::vec(sample(), 0..24)) {
        let mut text = String::new();
        encode::encode(samples(&given), &mut text).unwrap();
        prop_assert_eq!(text, text_of_the_crate(samples(&given)));
    }
}
