//! Figures of exports: what their queues counted, summed over the queues, and how many are in which state.
//!
//! Does not own which exports exist. Invariant: no label comes from anywhere but the export's name and fixed words.

use std::sync::Arc;

use crate::observe::counter::{Counter, Histogram, HistogramSnapshot};
use crate::observe::io::QueueStats;
use crate::observe::metrics::registry::FigureSource;
use crate::observe::metrics::samples::Samples;
use crate::observe::metrics::table::Metric;

/// What is shown of one export.
#[derive(Clone, Debug)]
pub struct ExportFigures {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of its newest data that only the local cache holds, where that is known.
    pub dirty_bytes: Option<u64>,
    /// How long the oldest of it has been so, nanoseconds; `None` where there is no store.
    pub at_risk_nanos: Option<u64>,
    /// Bytes that are damaged; `None` where there is no store.
    pub damaged_bytes: Option<u64>,
    /// Packs that a read of one sector may have to ask, and packs in all; `None` where there is no store.
    pub packs: Option<(u64, u64)>,
    /// Data in the cut on its way to the store, and how much of that is there, bytes; `None` where there is none.
    pub cut: Option<(u64, u64)>,
    /// Counters of every queue it has had since the daemon started.
    pub queues: Vec<Arc<QueueStats>>,
}

/// Shows the exports that `list` returns, each name once.
pub fn exports(list: impl Fn() -> Vec<ExportFigures> + Send + Sync + 'static) -> Arc<dyn FigureSource> {
    Arc::new(move |out: &mut Samples| {
        for figures in list() {
            collect(&figures, out);
        }
    })
}

/// Shows how many exports are in each of `states`, given the state of every export.
pub fn states(
    states: &'static [&'static str],
    list: impl Fn() -> Vec<&'static str> + Send + Sync + 'static,
) -> Arc<dyn FigureSource> {
    Arc::new(move |out: &mut Samples| {
        let current = list();
        for state in states {
            let exports = current.iter().filter(|other| *other == state).count();
            out.value(Metric::RouterExports, &[state], exports as u64);
        }
    })
}

fn collect(figures: &ExportFigures, out: &mut Samples) {
    let ExportFigures { name, size_bytes, dirty_bytes, at_risk_nanos, damaged_bytes, packs, cut, queues } =
        figures;
    let export = name.as_str();
    let total = |cell: fn(&QueueStats) -> &Counter| -> u64 {
        queues.iter().fold(0, |sum, queue| sum.wrapping_add(cell(queue).get()))
    };

    let read_size = merged(queues, |queue| &queue.read_size);
    let write_size = merged(queues, |queue| &queue.write_size);
    out.histogram(Metric::ReadIoSize, &[export], &read_size);
    out.histogram(Metric::WriteIoSize, &[export], &write_size);

    for (operation, operations) in [
        ("read", read_size.count()),
        ("write", write_size.count()),
        ("flush", total(|queue| &queue.flushes)),
        ("zero", total(|queue| &queue.zeroes)),
    ] {
        out.value(Metric::ExportOperations, &[export, operation], operations);
    }
    for (operation, bytes) in
        [("read", read_size.sum), ("write", write_size.sum), ("zero", total(|queue| &queue.zero_bytes))]
    {
        out.value(Metric::ExportBytes, &[export, operation], bytes);
    }
    for (operation, latency) in [
        ("read", merged(queues, |queue| &queue.read_latency)),
        ("write", merged(queues, |queue| &queue.write_latency)),
        ("flush", merged(queues, |queue| &queue.flush_latency)),
    ] {
        out.histogram(Metric::ExportLatency, &[export, operation], &latency);
    }
    for (operation, errors) in [
        ("read", total(|queue| &queue.read_errors)),
        ("write", total(|queue| &queue.write_errors)),
        ("flush", total(|queue| &queue.flush_errors)),
    ] {
        out.value(Metric::ExportErrors, &[export, operation], errors);
    }
    out.value(Metric::ExportInFlight, &[export], total(|queue| &queue.in_flight));
    out.value(Metric::ExportSize, &[export], *size_bytes);
    if let Some(dirty_bytes) = dirty_bytes {
        out.value(Metric::ExportDirty, &[export], *dirty_bytes);
    }
    if let Some(at_risk_nanos) = at_risk_nanos {
        out.value(Metric::ExportAtRisk, &[export], *at_risk_nanos);
    }
    if let Some(damaged_bytes) = damaged_bytes {
        out.value(Metric::ExportDamaged, &[export], *damaged_bytes);
    }
    if let Some((total_bytes, uploaded_bytes)) = cut {
        out.value(Metric::ExportCut, &[export], *total_bytes);
        out.value(Metric::ExportCutUploaded, &[export], *uploaded_bytes);
    }
    if let Some((fan_out, packs)) = packs {
        out.value(Metric::ExportFanOut, &[export], *fan_out);
        out.value(Metric::ExportPacks, &[export], *packs);
    }
}

/// One histogram of all queues.
fn merged<const N: usize>(
    queues: &[Arc<QueueStats>],
    cell: fn(&QueueStats) -> &Histogram<N>,
) -> HistogramSnapshot<N> {
    let mut sum = HistogramSnapshot::default();
    for queue in queues {
        sum.merge(&cell(queue).snapshot());
    }
    sum
}
