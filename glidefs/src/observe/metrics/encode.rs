//! From samples to the text format of Prometheus, version 0.0.4.
//!
//! Owns the translation of cells to the model of Prometheus: cumulative buckets, seconds instead of nanoseconds. The
//! `prometheus` crate writes and escapes the text of the host's metrics. A metric of exports has thousands of samples, and the
//! crate's model of a sample takes a dozen allocations: so [`lines`] writes those metrics. A test compares both texts for all metrics.
//! Invariant: HELP and TYPE stand directly above the samples of the metric, and a metric without samples is left out.

mod lines;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::samples::{ExportHistograms, Family, Sample, Samples};
use super::table::{Definition, Kind, Unit};

/// The label of metrics with samples of each export.
const EXPORT_LABEL: &str = "export";

/// The figures which `collect` adds, in the text format. The time grows with the number of exports, so asynchronous callers use a
/// blocking thread.
pub fn encode(
    histograms: ExportHistograms,
    collect: impl FnOnce(&mut Samples),
) -> prometheus::Result<String> {
    let mut samples = Samples::new(histograms);
    collect(&mut samples);
    let mut text = String::new();
    for family in samples.into_families() {
        if family.definition.labels.contains(&EXPORT_LABEL) {
            lines::write_family(&family, &mut text);
        } else {
            write_family(&family, &mut text)?;
        }
    }
    // The text is kept until the last client has it, and its memory is counted.
    text.shrink_to_fit();
    Ok(text)
}

/// Appends a metric as the crate writes the metric.
fn write_family(family: &Family, text: &mut String) -> prometheus::Result<()> {
    TextEncoder::new().encode_utf8(&[model(family)], text)
}

/// A metric with all samples, in the model of the crate.
fn model(family: &Family) -> MetricFamily {
    let definition = family.definition;
    let mut model = MetricFamily::default();
    model.set_name(definition.name.to_owned());
    model.set_help(definition.help.to_owned());
    model.set_field_type(match definition.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::SizeHistogram | Kind::LatencyHistogram => MetricType::HISTOGRAM,
    });
    model.set_metric(family.samples().map(|sample| metric(definition, sample)).collect());
    model
}

fn metric(definition: &Definition, sample: Sample<'_>) -> Metric {
    let cells = sample.cells;
    let mut metric = Metric::from_label(
        definition.labels.iter().zip(sample.labels()).map(|(name, value)| label_pair(name, value)).collect(),
    );
    match (definition.kind, cells) {
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
        (_, [counts @ .., sum]) => metric.set_histogram(histogram(definition, counts, *sum)),
        (_, []) => {}
    }
    metric
}

/// `counts` has one count per bucket, not cumulative, and the count above the last bound.
fn histogram(definition: &Definition, counts: &[u64], sum: u64) -> Histogram {
    let mut buckets = Vec::with_capacity(definition.kind.bounds().len());
    let mut cumulative = 0_u64;
    for (bound, count) in definition.kind.bounds().iter().zip(counts) {
        cumulative = cumulative.wrapping_add(*count);
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(shown(definition.unit, *bound));
        bucket.set_cumulative_count(cumulative);
        buckets.push(bucket);
    }
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets);
    // The crate adds the bucket +Inf with this count.
    histogram.set_sample_count(counts.iter().fold(0, |total, count| total.wrapping_add(*count)));
    histogram.set_sample_sum(shown(definition.unit, sum));
    histogram
}

fn label_pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// The value of a cell in the metric's unit. Prometheus has floating-point numbers only: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "the text format has no integers")]
fn shown(unit: Unit, cell: u64) -> f64 {
    match unit {
        Unit::Seconds => cell as f64 / 1e9,
        Unit::Bytes | Unit::Number | Unit::Info => cell as f64,
    }
}

#[cfg(test)]
mod tests;
