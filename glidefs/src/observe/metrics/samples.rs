//! The figures of one scrape, before they are text.
//!
//! Owns the compact form in which sources hand figures over: a few growing arrays a metric, so that a scrape of many
//! thousand exports costs neither an allocation a sample nor much memory. Does not own the text (`encode`).
//! Invariant: what is kept fits its row of the table; what does not is refused and remembered.

use super::error::MetricsError;
use super::table::{self, Definition, Metric};
use crate::observe::counter::HistogramSnapshot;

/// The figures of one scrape.
#[derive(Debug)]
pub struct Samples {
    /// In the order of the table.
    families: Vec<Family>,
    refused: Option<MetricsError>,
}

/// All samples of one metric.
#[derive(Debug)]
pub(super) struct Family {
    definition: &'static Definition,
    /// The values of all labels of all samples, one after the other.
    label_text: String,
    /// Where each label value ends in `label_text`.
    label_ends: Vec<usize>,
    /// A counter or gauge has one cell a sample; a histogram its buckets (not cumulative), the count above the last
    /// bound, and the sum.
    cells: Vec<u64>,
    samples: usize,
}

/// One sample: the values of its labels and its cells.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    pub labels: Vec<&'a str>,
    pub cells: &'a [u64],
}

impl Samples {
    /// No figures yet.
    pub(super) fn new() -> Self {
        Self { families: table::all().map(Family::new).collect(), refused: None }
    }

    /// Adds the value of a counter or gauge. Times are in nanoseconds.
    ///
    /// `labels` are the values of the labels the table names, in its order. A sample that does not fit the table is a
    /// mistake in the source: it is left out, and the scrape fails with its name.
    pub fn value(&mut self, metric: Metric, labels: &[&str], value: u64) {
        self.add(metric, labels, 1, [value]);
    }

    /// Adds the values of several counters or gauges that have the same labels.
    pub fn values(&mut self, labels: &[&str], values: impl IntoIterator<Item = (Metric, u64)>) {
        for (metric, value) in values {
            self.value(metric, labels, value);
        }
    }

    /// Adds a histogram, recorded with the bounds of the metric's kind.
    pub fn histogram<const N: usize>(
        &mut self,
        metric: Metric,
        labels: &[&str],
        snapshot: &HistogramSnapshot<N>,
    ) {
        let cells = snapshot.buckets.into_iter().chain([snapshot.above, snapshot.sum]);
        self.add(metric, labels, N + 2, cells);
    }

    fn add(
        &mut self,
        metric: Metric,
        labels: &[&str],
        cell_count: usize,
        cells: impl IntoIterator<Item = u64>,
    ) {
        let family = &mut self.families[metric as usize];
        let Definition { name, labels: expected, .. } = *family.definition;
        if family.cells_per_sample() != cell_count {
            self.refuse(MetricsError::Kind { name });
        } else if expected.len() != labels.len() {
            self.refuse(MetricsError::Labels { name, expected, given: labels.len() });
        } else {
            for label in labels {
                family.label_text.push_str(label);
                family.label_ends.push(family.label_text.len());
            }
            family.cells.extend(cells);
            family.samples += 1;
        }
    }

    fn refuse(&mut self, error: MetricsError) {
        self.refused.get_or_insert(error);
    }

    /// The metrics that have samples, in the order of the table; or the first mistake a source made.
    pub(super) fn into_families(self) -> Result<impl Iterator<Item = Family>, MetricsError> {
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self.families.into_iter().filter(|family| family.samples > 0)),
        }
    }
}

impl Family {
    fn new(definition: &'static Definition) -> Self {
        Self { definition, label_text: String::new(), label_ends: Vec::new(), cells: Vec::new(), samples: 0 }
    }

    /// Cells that each sample has.
    fn cells_per_sample(&self) -> usize {
        match self.definition.kind.bounds().len() {
            0 => 1,
            buckets => buckets + 2,
        }
    }

    /// The metric.
    pub fn definition(&self) -> &'static Definition {
        self.definition
    }

    /// The samples in the order in which they were given.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        let (label_count, cell_count) = (self.definition.labels.len(), self.cells_per_sample());
        (0..self.samples).map(move |sample| Sample {
            labels: (sample * label_count..(sample + 1) * label_count)
                .map(|label| self.label(label))
                .collect(),
            cells: &self.cells[sample * cell_count..(sample + 1) * cell_count],
        })
    }

    fn label(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |previous| self.label_ends[previous]);
        &self.label_text[start..self.label_ends[index]]
    }
}
