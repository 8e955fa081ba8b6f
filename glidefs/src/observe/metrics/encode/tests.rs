//! The lines written here beside the text of the `prometheus` crate.

use proptest::prelude::*;

use super::{lines, write_family};
use crate::observe::counter::{Histogram, IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};
use crate::observe::metrics::samples::{ExportHistograms, Samples};
use crate::observe::metrics::table::{Definition, Kind, all};
use crate::observe::metrics::tests::AWKWARD_NAMES;

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
                let histogram = Histogram::of(&IO_SIZE_BOUNDS_BYTES, buckets, above, sum);
                samples.histogram(*metric, &labels, &histogram);
            }
            Kind::LatencyHistogram => {
                let histogram = Histogram::of(&LATENCY_BOUNDS_NANOS, buckets, above, sum);
                samples.histogram(*metric, &labels, &histogram);
            }
        }
    }
    samples
}

proptest! {
    #[test]
    fn the_lines_are_the_text_of_the_prometheus_crate(given in prop::collection::vec(sample(), 0..24)) {
        for family in samples(&given).into_families() {
            let (mut ours, mut of_the_crate) = (String::new(), String::new());
            lines::write_family(&family, &mut ours);
            write_family(&family, &mut of_the_crate).unwrap();
            prop_assert_eq!(ours, of_the_crate);
        }
    }
}
