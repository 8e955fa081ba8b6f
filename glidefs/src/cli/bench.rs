//! `glidefs bench`: progress on a terminal, and drawing the tables.
//!
//! Does not own the measuring: `bench` does.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::args::bench::{BenchCommand, FileArgs, Topology};
use super::error::CliError;
use super::print;
use super::print::emit;
use super::progress::TerminalBar;
use crate::bench::compare::{self, Compared, Pair};
use crate::bench::figures::CaseRuns;
use crate::bench::machine::ThisMachine;
use crate::bench::plan::{BenchEngine, Case, IoWay, Settings, Workload, cases};
use crate::bench::published::PublishedSetUp;
use crate::bench::report::{self, Table};
use crate::bench::session::{self, SessionEvent};
use crate::config::TimeSpan;
use crate::worker::affinity;

/// Rounds of a comparison: enough for a spread.
const COMPARE_ROUNDS: usize = 4;

#[derive(Serialize)]
struct Measured<'a> {
    machine: &'a ThisMachine,
    direct: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cases: &'a [CaseRuns],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    comparisons: &'a [Compared],
}

pub(super) fn run(command: BenchCommand) -> Result<(), CliError> {
    let BenchCommand::File(args) = command;
    let published = args.table.map(|table| table.set_up(affinity::allowed().map_or(1, |cpus| cpus.len())));
    let settings = settings(&args, published.as_ref());
    let machine = ThisMachine::here(settings.file.as_deref().unwrap_or(&settings.dir));
    let bar = TerminalBar::new("{msg} {wide_bar} {pos}/{len} {elapsed}", 0, true);
    let pairs = pairs(&args, published.as_ref());
    let (groups, compared) = if pairs.is_empty() {
        let cases = chosen_cases(&args, &args.engine);
        (session::measure(&cases, &settings, &mut |step| show(&bar, step))?, Vec::new())
    } else {
        (Vec::new(), session::compare(&pairs, &settings, published.is_some(), &mut |step| show(&bar, step))?)
    };
    drop(bar);
    #[cfg(feature = "plots")]
    if let Some(path) = &args.output.plot {
        draw_plot(path, &groups, &compared)?;
    }
    if args.output.json {
        let source = published.as_ref().map(|set_up| set_up.source);
        let answer = Measured {
            machine: &machine,
            direct: settings.direct,
            source,
            cases: &groups,
            comparisons: &compared,
        };
        return emit(format!("{}\n", serde_json::to_string_pretty(&answer)?).as_bytes());
    }
    let mut tables =
        if compared.is_empty() { vec![report::runs(&groups)] } else { compare::tables(&compared) };
    tables.extend(published.map(|set_up| set_up.side_by_side(&compared)));
    let how = if settings.direct { "direct" } else { "buffered" };
    let runs = if settings.repeat == 1 { "1 run".into() } else { format!("{} runs", settings.repeat) };
    let mut text = format!(
        "{machine}, {how}, {} of {} ({} before it) a case\n",
        runs,
        TimeSpan(settings.duration),
        TimeSpan(settings.warmup)
    );
    for table in &tables {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{}", if args.output.markdown { table.markdown() } else { draw(table) });
    }
    emit(text.as_bytes())
}

fn settings(args: &FileArgs, published: Option<&PublishedSetUp>) -> Settings {
    let here = || published.and_then(PublishedSetUp::default_dir).unwrap_or(Path::new(".")).to_path_buf();
    let options = &args.file;
    let is_comparison = args.compare.is_some() || published.is_some();
    Settings {
        file: options.file.clone(),
        dir: options.dir.clone().unwrap_or_else(here),
        overwrite: options.overwrite,
        size_bytes: options.size,
        direct: options.direct || !options.buffered && published.is_some_and(|set_up| set_up.direct),
        duration: options.duration,
        warmup: options.warmup,
        repeat: options.repeat.unwrap_or(if is_comparison { COMPARE_ROUNDS } else { 1 }),
        verify: options.verify,
    }
}

/// `engine` with the options for all rings.
fn adjusted(args: &FileArgs, engine: BenchEngine) -> BenchEngine {
    if !engine.is_ring() {
        return engine;
    }
    BenchEngine {
        polls_submissions: engine.polls_submissions || args.sqpoll,
        polls_completions: engine.polls_completions || args.iopoll,
        shares_workers: engine.shares_workers || args.topology == Topology::SharedWorkers,
        ..engine
    }
}

fn chosen_cases(args: &FileArgs, engines: &[BenchEngine]) -> Vec<Case> {
    let engines: Vec<BenchEngine> = engines.iter().map(|&engine| adjusted(args, engine)).collect();
    // A size beyond memory is refused later, by the checks of the settings.
    let blocks: Vec<usize> =
        args.bs.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).collect();
    cases(&engines, &args.mode, &blocks, &args.numjobs, &args.iodepth)
}

fn pairs(args: &FileArgs, published: Option<&PublishedSetUp>) -> Vec<Pair> {
    if let Some(set_up) = published {
        return set_up.pairs.clone();
    }
    let Some([before, after]) = args.compare.as_deref() else { return Vec::new() };
    let (before, after) = (adjusted(args, *before), adjusted(args, *after));
    // Workloads of a ring, with every depth. For an engine without depth the pairs of equal workload are dropped.
    let any = BenchEngine::plain(IoWay::Ring);
    let mut pairs: Vec<Pair> = Vec::new();
    for Case { load, .. } in chosen_cases(args, &[any]) {
        let load: Workload = load;
        let pair = Pair::new(before, after, load);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    pairs
}

/// Writes a picture of the runs, or of both sides of every comparison, to `path`.
#[cfg(feature = "plots")]
fn draw_plot(path: &Path, groups: &[CaseRuns], compared: &[Compared]) -> Result<(), CliError> {
    let both: Vec<CaseRuns> =
        compared.iter().flat_map(|compared| [compared.before.clone(), compared.after.clone()]).collect();
    let svg = crate::bench::plot::svg(if both.is_empty() { groups } else { &both })?;
    std::fs::write(path, svg).map_err(|source| CliError::Write { path: path.into(), source })
}

/// A table for a terminal.
fn draw(table: &Table) -> String {
    let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
    let mut drawn = print::table(&header, &[]);
    for row in &table.rows {
        drawn.add_row(row);
    }
    let mut text = format!("{}\n{}\n", table.title, drawn.trim_fmt());
    for note in &table.notes {
        text += note;
        text.push('\n');
    }
    text
}

fn show(bar: &TerminalBar, step: SessionEvent) {
    let (message, done, total) = match step {
        SessionEvent::Filling { done, total } => {
            ("filling the test file, MiB".into(), done >> 20, total >> 20)
        }
        SessionEvent::Running { case, number, of } => (case.to_string(), number as u64, of as u64),
    };
    bar.show_stage(message, done, total);
}
