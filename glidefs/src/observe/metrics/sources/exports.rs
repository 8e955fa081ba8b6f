//! Figures of exports: the counters summed over the queues, and the number of exports in each state.
//!
//! Does not own the list of exports. Invariant: a label value is the name of an export or a fixed word.

use std::sync::Arc;

use crate::observe::counter::{Counter, Histogram, HistogramSnapshot};
use crate::observe::io::QueueStats;
use crate::observe::metrics::registry::FigureSource;
use crate::observe::metrics::samples::Samples;
use crate::observe::metrics::table::Metric;

/// The figures of one export.
#[derive(Clone, Debug)]
pub struct ExportFigures {
    /// Name of the export.
    pub name: String,
    /// Size of the export, bytes.
    pub size_bytes: u64,
    /// Bytes at risk; `None` if unknown.
    pub dirty_bytes: Option<u64>,
    /// How long the oldest data has been at risk, nanoseconds; `None` without a store.
    pub at_risk_nanos: Option<u64>,
    /// Bytes known to be damaged; `None` without a store.
    pub damaged_bytes: Option<u64>,
    /// Most packs that a READ of one sector may have to ask, and number of packs; `None` without a store.
    pub packs: Option<(u64, u64)>,
    /// Data in the cut on the way to the store, and the part already in the store, bytes; `None` without such a cut.
    pub cut: Option<(u64, u64)>,
    /// Limits which are set, or have let a request wait since the daemon started.
    pub limits: Vec<LimitFigures>,
    /// Counters of every queue the export has had since the daemon started.
    pub queues: Vec<Arc<QueueStats>>,
}

/// The figures of one limit of an export.
#[derive(Clone, Debug)]
pub struct LimitFigures {
    /// Name of the limit.
    pub name: &'static str,
    /// Operations or bytes a second; `None` without this limit.
    pub rate: Option<u64>,
    /// Requests which waited because of the limit.
    pub throttled: u64,
    /// How long these requests waited, nanoseconds.
    pub waited_nanos: u64,
}

/// Shows the exports from `list`. Each name must come once.
pub fn exports(list: impl Fn() -> Vec<ExportFigures> + Send + Sync + 'static) -> Arc<dyn FigureSource> {
    Arc::new(move |out: &mut Samples| {
        for figures in list() {
            collect(&figures, out);
        }
    })
}

/// Shows the number of exports in each of `states`. `list` gives the state of every export.
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
    let ExportFigures {
        name,
        size_bytes,
        dirty_bytes,
        at_risk_nanos,
        damaged_bytes,
        packs,
        cut,
        limits,
        queues,
    } = figures;
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
    for LimitFigures { name: limit, rate, throttled, waited_nanos } in limits {
        out.value(Metric::ExportThrottled, &[export, limit], *throttled);
        out.value(Metric::ExportThrottledTime, &[export, limit], *waited_nanos);
        if let Some(rate) = rate {
            out.value(Metric::ExportLimit, &[export, limit], *rate);
        }
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

/// The sum of one histogram over all queues.
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
