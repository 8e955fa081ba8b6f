//! The figures of one scrape, before encoding.
//!
//! Owns the compact form of figures on the way from the sources to the encoder: a few growing arrays per metric, so that a
//! scrape of many thousand exports needs no allocation per sample, and little memory. Does not own the text (`encode`).
//! Invariant: every kept sample fits the metric's row in the table; a sample that does not fit is left out, and fails the tests.

use serde::{Deserialize, Serialize};

use super::table::{self, Definition, Metric};
use crate::observe::counter::Histogram;

/// Which exports have histograms on a scrape.
///
/// An export is busy while the export has a device that was used: more requests than a look for partitions and file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportHistograms {
    /// No export has histograms, busy or not.
    None,
    /// Busy exports have histograms, and others do not.
    #[default]
    Busy,
    /// Every export; the other figures of every export are complete as well.
    All,
}

/// The figures of one scrape.
#[derive(Debug)]
pub struct Samples {
    pub histograms: ExportHistograms,
    /// One family per metric, in the order of the table.
    families: Vec<Family>,
}

/// All samples of one metric.
#[derive(Debug)]
pub(super) struct Family {
    /// The metric's row of the table.
    pub definition: &'static Definition,
    /// The label values of all samples, one after the other.
    label_text: String,
    /// Where each label value ends in `label_text`.
    label_ends: Vec<usize>,
    /// Cells of all samples. A sample of a counter or gauge has one cell. A sample of a histogram has the count of each
    /// bucket (not cumulative), the count above the last bound, and the sum.
    cells: Vec<u64>,
}

/// One sample: label values and cells.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    family: &'a Family,
    /// Where the first label value of the sample is in `label_ends`.
    first_label: usize,
    pub cells: &'a [u64],
}

impl<'a> Sample<'a> {
    /// The label values, in the order of the table.
    pub fn labels(&self) -> impl Iterator<Item = &'a str> {
        let (family, first) = (self.family, self.first_label);
        (first..first + family.definition.labels.len()).map(|label| family.label(label))
    }
}

impl Samples {
    /// An empty set of figures.
    pub(super) fn new(histograms: ExportHistograms) -> Self {
        Self { histograms, families: table::all().map(Family::new).collect() }
    }

    /// Adds the value of a counter or gauge. Times are in nanoseconds.
    ///
    /// `labels` are the label values in the order of the table. A sample that does not fit the table is a mistake of the
    /// source, and is left out.
    pub fn value(&mut self, metric: Metric, labels: &[&str], value: u64) {
        self.add(metric, labels, 1, [value]);
    }

    /// Adds the values of several counters or gauges that have the same labels.
    pub fn values(&mut self, labels: &[&str], values: impl IntoIterator<Item = (Metric, u64)>) {
        for (metric, value) in values {
            self.value(metric, labels, value);
        }
    }

    /// Adds a histogram that was recorded with the bounds of the metric's kind.
    pub fn histogram<const N: usize>(&mut self, metric: Metric, labels: &[&str], histogram: &Histogram<N>) {
        self.add(metric, labels, N + 2, histogram.counts().chain([histogram.sum()]));
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
        let fits = (family.cells_per_sample(), expected.len()) == (cell_count, labels.len());
        debug_assert!(fits, "a sample of {name} is not as the table of metrics says");
        if fits {
            for label in labels {
                family.label_text.push_str(label);
                family.label_ends.push(family.label_text.len());
            }
            family.cells.extend(cells);
        }
    }

    /// The metrics with samples, in the order of the table.
    pub(super) fn into_families(self) -> impl Iterator<Item = Family> {
        self.families.into_iter().filter(|family| !family.cells.is_empty())
    }
}

impl Family {
    fn new(definition: &'static Definition) -> Self {
        Self { definition, label_text: String::new(), label_ends: Vec::new(), cells: Vec::new() }
    }

    /// Number of cells per sample.
    fn cells_per_sample(&self) -> usize {
        match self.definition.kind.bounds().len() {
            0 => 1,
            buckets => buckets + 2,
        }
    }

    /// The samples in the order in which the sources gave them.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        let label_count = self.definition.labels.len();
        self.cells.chunks(self.cells_per_sample()).enumerate().map(move |(sample, cells)| Sample {
            family: self,
            first_label: sample * label_count,
            cells,
        })
    }

    fn label(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |previous| self.label_ends[previous]);
        &self.label_text[start..self.label_ends[index]]
    }
}
