//! Tables of runs.
//!
//! Owns the content of a table and how figures are written. Does not own how a table is drawn on a terminal.

use std::fmt::Write;

use crate::figures::{CaseRuns, MeasuredRun, Spread};
use crate::plan::Workload;

/// A table, ready to be drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    /// Rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
    /// Remarks that a reader needs to understand the table.
    pub notes: Vec<String>,
}

impl Table {
    pub fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(ToString::to_string).collect();
        Self { title: title.into(), header, ..Self::default() }
    }

    pub fn markdown(&self) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).chain(self.header.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
            })
            .collect();
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("### {}\n\n", self.title);
        text += &line(&self.header);
        text += &line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>());
        for row in &self.rows {
            text += &line(row);
        }
        for note in &self.notes {
            // Writing to a string does not fail.
            let _ = write!(text, "\n{note}\n");
        }
        text
    }
}

/// Operations a second, rounded, with `k` for thousands.
pub fn iops(value: f64) -> String {
    match value {
        v if v >= 100_000.0 => format!("{:.0}k", v / 1e3),
        v if v >= 10_000.0 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

pub fn bandwidth(value: f64) -> String {
    format!("{:.1} MiB/s", value / f64::from(1 << 20))
}

/// A latency given in nanoseconds.
pub fn latency(nanos: f64) -> String {
    match nanos {
        n if n >= 1e9 => format!("{:.2} s", n / 1e9),
        n if n >= 1e7 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} µs", n / 1e3),
    }
}

/// A difference in per cent, with a sign.
pub fn change(percent: f64) -> String {
    let text = format!("{percent:+.1}%");
    if text == "-0.0%" { "+0.0%".into() } else { text.replace('-', "−") }
}

/// Half the range of several runs, or a dash for one.
pub fn spread(spread: Spread) -> String {
    spread.percent().map_or_else(|| "–".into(), |percent| format!("±{percent:.1}%"))
}

/// The cells that describe a workload.
pub fn load_cells(load: Workload) -> Vec<String> {
    vec![
        load.numjobs.to_string(),
        load.iodepth.to_string(),
        load.mode.to_string(),
        format!("{}k", load.block_bytes >> 10),
    ]
}

/// All runs, a row each case; several runs of a case are shown as the mean.
pub fn runs(groups: &[CaseRuns]) -> Table {
    let mut table = Table::new(
        "Runs",
        &[
            "engine", "numjobs", "iodepth", "mode", "bs", "IOPS", "spread", "BW", "avg", "p50", "p95", "p99",
            "p99.9", "user", "sys", "CPU/op",
        ],
    );
    for group in groups {
        let rate = group.spread(|run| run.iops);
        let mut row = vec![group.case.engine.to_string()];
        row.extend(load_cells(group.case.load));
        row.extend([iops(rate.mean), spread(rate), bandwidth(group.spread(|run| run.bytes_per_second).mean)]);
        row.extend(MeasuredRun::LATENCIES.iter().map(|(_, figure)| latency(group.spread(figure).mean)));
        row.extend([
            format!("{:.0}%", group.spread(MeasuredRun::user_percent).mean),
            format!("{:.0}%", group.spread(MeasuredRun::system_percent).mean),
            latency(group.spread(MeasuredRun::cpu_nanos_per_operation).mean),
        ]);
        table.rows.push(row);
    }
    table.notes.push(
        "user and sys: CPU time of the process, the kernel's threads for it included, in per cent of one CPU. \
         spread: half the range of the runs in per cent of their mean."
            .into(),
    );
    table
}
