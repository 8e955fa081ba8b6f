//! Figures of exports, and the number of exports in each state.
//!
//! Owns which figures of an export a scrape shows: a host has thousands of exports, few of them busy. Does not own the list of
//! exports. Invariants: a label value is the name of an export or a fixed word; an export that is not busy, with nothing at risk,
//! damaged or in trouble, has one line.

use crate::observe::io::QueueStats;
use crate::observe::metrics::samples::{ExportHistograms, Samples};
use crate::observe::metrics::table::Metric;

/// The figures of one export.
#[derive(Clone, Copy, Debug)]
pub struct ExportFigures<'a> {
    pub name: &'a str,
    /// Size of the export, bytes.
    pub size_bytes: u64,
    /// Whether the export may have a device, and the device has had more requests than a look for partitions and file systems.
    pub is_used: bool,
    /// Bytes at risk; `None` if unknown.
    pub dirty_bytes: Option<u64>,
    /// How long the oldest data has been at risk, nanoseconds; `None` without a store.
    pub at_risk_nanos: Option<u64>,
    /// Bytes known to be damaged; `None` without a store.
    pub damaged_bytes: Option<u64>,
    /// The packs in the store; `None` without a store.
    pub packs: Option<Packs>,
    /// Data in the cut on the way to the store, and the part already in the store, bytes; `None` without such a cut.
    pub cut: Option<(u64, u64)>,
    /// Time in which writes were held back because of the index, nanoseconds.
    pub index_held_nanos: u64,
    /// Log space for data not in the store; `None` without a store.
    pub log: Option<LogFigures>,
    /// Names of the limits which are set, or have let a request wait since the daemon started, each with how long requests waited
    /// because of it, nanoseconds.
    pub limits: &'a [(&'static str, u64)],
    /// The counters of all queues since the daemon started; `None` if unknown.
    pub io: Option<&'a QueueStats>,
}

/// The use that an export makes of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFigures {
    pub bytes: u64,
    /// Time in which writes were held back, nanoseconds.
    pub held_nanos: u64,
}

/// The packs of an export in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packs {
    /// Most packs that a READ of one sector may have to ask.
    pub fan_out: u64,
    pub count: u64,
    /// Whether writes are slowed until packs were merged.
    pub slows_writes: bool,
}

/// Shows the number of exports in each of the states `names`, which is in `counts` at the same place.
pub fn states(names: &[&'static str], counts: &[u64], out: &mut Samples) {
    for (state, exports) in names.iter().zip(counts) {
        out.value(Metric::RouterExports, &[state], *exports);
    }
}

/// Shows an export. Each name must come once.
pub fn export(figures: &ExportFigures<'_>, out: &mut Samples) {
    let is_whole = out.histograms == ExportHistograms::All;
    let is_busy = figures.is_used;
    if is_busy || is_whole {
        counters(figures.name, figures.io.unwrap_or(&QueueStats::default()), out);
    }
    let labels = &[figures.name];
    out.value(Metric::ExportSize, labels, figures.size_bytes);
    for (metric, value) in [
        (Metric::ExportDirty, figures.dirty_bytes),
        (Metric::ExportAtRisk, figures.at_risk_nanos),
        (Metric::ExportDamaged, figures.damaged_bytes),
    ] {
        if let Some(value) = value.filter(|value| is_busy || is_whole || *value > 0) {
            out.value(metric, labels, value);
        }
    }
    for (limit, waited_nanos) in figures.limits.iter().filter(|_| is_busy || is_whole) {
        out.value(Metric::ExportThrottledTime, &[figures.name, limit], *waited_nanos);
    }
    if is_busy || is_whole || figures.index_held_nanos > 0 {
        out.value(Metric::ExportIndexHeldTime, labels, figures.index_held_nanos);
    }
    if let Some(log) = figures.log.filter(|log| is_busy || is_whole || log.held_nanos > 0) {
        out.value(Metric::ExportLog, labels, log.bytes);
        out.value(Metric::ExportLogHeldTime, labels, log.held_nanos);
    }
    if let Some((total_bytes, uploaded_bytes)) = figures.cut {
        out.value(Metric::ExportCut, labels, total_bytes);
        out.value(Metric::ExportCutUploaded, labels, uploaded_bytes);
    }
    if let Some(packs) = figures.packs.filter(|packs| is_busy || is_whole || packs.slows_writes) {
        out.value(Metric::ExportFanOut, labels, packs.fan_out);
        out.value(Metric::ExportPacks, labels, packs.count);
    }
}

/// Shows the requests of an export, with histograms unless none are wanted.
fn counters(export: &str, io: &QueueStats, out: &mut Samples) {
    if out.histograms != ExportHistograms::None {
        out.histogram(Metric::ReadIoSize, &[export], &io.read_size);
        out.histogram(Metric::WriteIoSize, &[export], &io.write_size);
        for (operation, latency) in
            [("read", &io.read_latency), ("write", &io.write_latency), ("flush", &io.flush_latency)]
        {
            out.histogram(Metric::ExportLatency, &[export, operation], latency);
        }
    }
    for (operation, operations) in [
        ("read", io.read_size.count()),
        ("write", io.write_size.count()),
        ("flush", io.flushes.get()),
        ("zero", io.zeroes.get()),
    ] {
        out.value(Metric::ExportOperations, &[export, operation], operations);
    }
    for (operation, bytes) in
        [("read", io.read_size.sum()), ("write", io.write_size.sum()), ("zero", io.zero_bytes.get())]
    {
        out.value(Metric::ExportBytes, &[export, operation], bytes);
    }
    for (operation, errors) in
        [("read", &io.read_errors), ("write", &io.write_errors), ("flush", &io.flush_errors)]
    {
        out.value(Metric::ExportErrors, &[export, operation], errors.get());
    }
    out.value(Metric::ExportInFlight, &[export], io.in_flight.get());
}
