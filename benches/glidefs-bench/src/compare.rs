//! Tables of differences between two engines.
//!
//! Owns the order of runs and the verdict. Invariants: the two sides take turns (ABBA…), so that a slow change of the machine meets
//! both sides; a difference that the spread between runs of one side could explain is called "within the spread".

use serde::Serialize;

use crate::error::{self, BenchError};
use crate::figures::{CaseRuns, MeasuredRun, Spread};
use crate::plan::{BenchEngine, Case, Workload, workload_for};
use crate::report::{self, Table};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub before: Case,
    pub after: Case,
}

impl Pair {
    /// The same load on two engines.
    pub fn new(before: BenchEngine, after: BenchEngine, load: Workload) -> Self {
        let case = |engine| Case { engine, load: workload_for(engine, load) };
        Self { before: case(before), after: case(after) }
    }

    /// The cases of `repeat` rounds, in the order of the runs.
    pub fn order(&self, repeat: usize) -> impl Iterator<Item = Case> + use<> {
        let Self { before, after } = *self;
        (0..repeat).flat_map(move |round| if round % 2 == 0 { [before, after] } else { [after, before] })
    }
}

/// The result of comparing one pair.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Runs of the side to compare with.
    pub before: CaseRuns,
    /// Runs of the side under test.
    pub after: CaseRuns,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Compared {
    /// Runs a pair. With `lenient`, an operation that this machine cannot do is noted as unavailable instead of failing the
    /// comparison.
    pub fn run(
        pair: Pair,
        repeat: usize,
        lenient: bool,
        mut run: impl FnMut(Case) -> Result<MeasuredRun, BenchError>,
    ) -> Result<Self, BenchError> {
        let group = |case| CaseRuns { case, runs: Vec::new() };
        let (mut before, mut after) = (group(pair.before), group(pair.after));
        for case in pair.order(repeat) {
            let side = if case == pair.before { &mut before } else { &mut after };
            match run(case) {
                Ok(run) => side.runs.push(run),
                Err(error @ (BenchError::Operation { .. } | BenchError::Setup { .. })) if lenient => {
                    let unavailable = Some(error::chain(&error));
                    return Ok(Self { before, after, unavailable });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { before, after, unavailable: None })
    }

    /// A figure of both sides.
    pub fn spreads(&self, figure: impl Fn(&MeasuredRun) -> f64) -> (Spread, Spread) {
        (self.before.spread(&figure), self.after.spread(&figure))
    }

    /// Whether a figure differs, in words.
    pub fn verdict(&self, figure: impl Fn(&MeasuredRun) -> f64) -> &'static str {
        let (before, after) = self.spreads(figure);
        match before.differs(after) {
            None => "one run: no spread",
            Some(true) => "differs",
            Some(false) => "within the spread",
        }
    }

    /// The cells that name the compared cases.
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![format!("{} → {}", self.before.case.engine, self.after.case.engine)];
        let (before, after) =
            (report::load_cells(self.before.case.load), report::load_cells(self.after.case.load));
        cells.extend(
            before.into_iter().zip(after).map(|(b, a)| if b == a { b } else { format!("{b} → {a}") }),
        );
        cells
    }

    /// A figure of both sides, and the difference.
    pub fn change(&self, figure: impl Fn(&MeasuredRun) -> f64, write: impl Fn(f64) -> String) -> String {
        let (before, after) = self.spreads(figure);
        let change = report::change(before.change_percent(after));
        format!("{} → {} ({change})", write(before.mean), write(after.mean))
    }
}

const LOAD: [&str; 5] = ["engines", "numjobs", "iodepth", "mode", "bs"];

fn table(
    title: &str,
    columns: &[&str],
    compared: &[Compared],
    row: impl Fn(&Compared) -> Vec<String>,
) -> Table {
    let mut table = Table::new(title, &[&LOAD[..], columns].concat());
    for compared in compared {
        let mut cells = compared.cells();
        if let Some(reason) = &compared.unavailable {
            cells.resize(table.header.len(), "–".into());
            let note = format!("{}: not on this machine: {reason}", cells[0]);
            if !table.notes.contains(&note) {
                table.notes.push(note);
            }
        } else {
            cells.extend(row(compared));
        }
        table.rows.push(cells);
    }
    table
}

/// The three tables: throughput, latency, CPU time.
pub fn tables(compared: &[Compared]) -> Vec<Table> {
    let throughput = table(
        "Throughput",
        &[
            "IOPS before",
            "IOPS after",
            "Δ",
            "BW before",
            "BW after",
            "Δ",
            "spread before",
            "spread after",
            "IOPS",
        ],
        compared,
        |c| {
            let (before, after) = c.spreads(|run| run.iops);
            let (bw_before, bw_after) = c.spreads(|run| run.bytes_per_second);
            vec![
                report::iops(before.mean),
                report::iops(after.mean),
                report::change(before.change_percent(after)),
                report::bandwidth(bw_before.mean),
                report::bandwidth(bw_after.mean),
                report::change(bw_before.change_percent(bw_after)),
                report::spread(before),
                report::spread(after),
                c.verdict(|run| run.iops).into(),
            ]
        },
    );
    let names: Vec<&str> = MeasuredRun::LATENCIES.iter().map(|(name, _)| *name).collect();
    let latency = table("Latency", &[&names[..], &["avg"]].concat(), compared, |c| {
        let mut cells: Vec<String> =
            MeasuredRun::LATENCIES.iter().map(|(_, figure)| c.change(figure, report::latency)).collect();
        cells.push(c.verdict(|run| run.latency_nanos.avg).into());
        cells
    });
    let percent = |value: f64| format!("{value:.0}%");
    let cpu = table("CPU time", &["user", "sys", "CPU/op", "CPU/op"], compared, |c| {
        vec![
            c.change(MeasuredRun::user_percent, percent),
            c.change(MeasuredRun::system_percent, percent),
            c.change(MeasuredRun::cpu_nanos_per_operation, report::latency),
            c.verdict(MeasuredRun::cpu_nanos_per_operation).into(),
        ]
    });
    vec![throughput, latency, cpu]
}
