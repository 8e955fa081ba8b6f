//! `glidefs-bench`: the cost of different ways of file I/O on this machine.
//!
//! ```text
//!  args.rs       what is typed
//!    ▼
//!  plan.rs       the measurements to make: cases, engines, durations
//!    ▼
//!  run.rs        all runs in order, and one case: threads, warm-up, the clock, CPU time
//!    ├─ machine.rs    the machine the runs are made on
//!    ├─ test_file.rs  the test file, and the pattern in each block
//!    └─ jobs.rs       the two kinds of job: pread and pwrite, or a full ring
//!    ▼
//!  figures.rs    results: one run, and several runs of one case with the spread
//!    ├─ report.rs     tables of runs
//!    ├─ compare.rs    tables of differences
//!    ├─ published.rs  set-ups that others have measured, with the published figures
//!    └─ plot.rs       a picture
//! ```
//!
//! Uses nothing of the daemon. Invariants: a file that existed is not written without leave; an incomplete transfer fails the run
//! instead of being counted; runs of two compared engines take turns, so a machine that slows down slows both engines.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::float_cmp, clippy::cast_precision_loss, reason = "tests may")
)]

mod args;
mod compare;
mod error;
mod figures;
mod jobs;
mod machine;
mod plan;
mod plot;
mod published;
mod report;
mod run;
mod test_file;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use serde::Serialize;

use self::args::{BenchArgs, BenchCommand, FileArgs};
use self::compare::{Compared, Pair};
use self::error::BenchError;
use self::figures::CaseRuns;
use self::machine::ThisMachine;
use self::plan::{BenchEngine, IoWay, Settings, cases};
use self::published::PublishedSetUp;

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

fn main() -> ExitCode {
    let done = match BenchArgs::parse().command {
        BenchCommand::File(args) => measure(&args),
        BenchCommand::Man { dir } => clap_mangen::generate_to(BenchArgs::command(), dir)
            .map(|()| String::new())
            .map_err(BenchError::Output),
    };
    match done.and_then(|text| Ok(std::io::stdout().write_all(text.as_bytes())?)) {
        Err(BenchError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("glidefs-bench: {}", error::chain(&error));
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// Makes all runs that `args` ask for, and returns the text to print.
fn measure(args: &FileArgs) -> Result<String, BenchError> {
    let published =
        args.table.map(|table| table.set_up(machine::allowed_cpus().map_or(1, |cpus| cpus.len())));
    let settings = settings(args, published.as_ref());
    let machine = ThisMachine::here(settings.file.as_deref().unwrap_or(&settings.dir));
    let pairs = pairs(args, published.as_ref());
    let (groups, compared) = if pairs.is_empty() {
        let cases = cases(&args.engine, &args.mode, &args.bs, &args.numjobs, &args.iodepth);
        (run::measure(&cases, &settings, &show)?, Vec::new())
    } else {
        (Vec::new(), run::compare(&pairs, &settings, published.is_some(), &show)?)
    };
    show("", 0, 0);
    if let Some(path) = &args.plot {
        let both = compared.iter().flat_map(|pair| [pair.before.clone(), pair.after.clone()]);
        let drawn: Vec<CaseRuns> = groups.iter().cloned().chain(both).collect();
        let fail = |source| BenchError::Prepare { path: path.clone(), source };
        std::fs::write(path, plot::svg(&drawn)?).map_err(fail)?;
    }
    if args.json {
        let answer = Measured {
            machine: &machine,
            direct: settings.direct,
            source: published.as_ref().map(|set_up| set_up.source),
            cases: &groups,
            comparisons: &compared,
        };
        return Ok(format!("{}\n", serde_json::to_string_pretty(&answer).map_err(std::io::Error::from)?));
    }
    let mut tables =
        if compared.is_empty() { vec![report::runs(&groups)] } else { compare::tables(&compared) };
    tables.extend(published.map(|set_up| set_up.side_by_side(&compared)));
    let mut text = format!(
        "{machine}, {}, {} of {} ({} before it) a case\n",
        if settings.direct { "direct" } else { "buffered" },
        if settings.repeat == 1 { "1 run".into() } else { format!("{} runs", settings.repeat) },
        humantime::format_duration(settings.duration),
        humantime::format_duration(settings.warmup)
    );
    for table in &tables {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{}", table.markdown());
    }
    Ok(text)
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

fn pairs(args: &FileArgs, published: Option<&PublishedSetUp>) -> Vec<Pair> {
    if let Some(set_up) = published {
        return set_up.pairs.clone();
    }
    let Some([before, after]) = args.compare.as_deref() else { return Vec::new() };
    // Workloads of a ring, with every depth. For an engine without depth the pairs of equal workload are dropped.
    let any = BenchEngine::plain(IoWay::Ring);
    let mut pairs: Vec<Pair> = Vec::new();
    for case in cases(&[any], &args.mode, &args.bs, &args.numjobs, &args.iodepth) {
        let pair = Pair::new(*before, *after, case.load);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    pairs
}

/// Shows progress in one line of a terminal; an empty `message` clears the line.
fn show(message: &str, done: u64, total: u64) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    if message.is_empty() {
        eprint!("\r\x1b[K");
    } else {
        eprint!("\r\x1b[K{message} {done}/{total}");
    }
}
