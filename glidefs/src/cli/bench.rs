//! `glidefs bench`: arguments, progress on a terminal, and drawing the tables.
//!
//! Does not own what is measured or how: `bench` does.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{CliError, emit, print};
use crate::bench::compare::{self, Compared, Pair};
use crate::bench::figures::Group;
use crate::bench::machine::Machine;
use crate::bench::plan::{Case, Engine, Load, Mode, Settings, cases};
use crate::bench::published::{Published, SetUp};
use crate::bench::report::{self, Table};
use crate::bench::session::{self, Step};
use crate::bench::{BenchError, plot};
use crate::config::{ByteSize, TimeSpan};
use crate::worker::affinity;

/// Rounds of a comparison: enough for a spread.
const COMPARE_ROUNDS: usize = 4;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Measure the ways of reading and writing a file on this machine
    #[command(after_help = "Examples:\n  \
        glidefs bench file --dir /var/lib/glidefs --direct\n  \
        glidefs bench file --engine pread,ring,ring-fixed --numjobs 1,4 --iodepth 1,16 --mode randread --json\n  \
        glidefs bench file --compare ring ring-fixed --repeat 6 --direct\n  \
        glidefs bench file --table fixed-buffers\n\n\
        Engines: pread (one thread a job), threads:N (N threads in all), ring, ring-fixed (registered buffers), \
        ring-vectored (pieces of 4KiB), ring-vectored-fixed. Rings take +sqpoll, +iopoll and +shared, as in ring-fixed+sqpoll.")]
    File(Box<FileArgs>),
}

/// How rings of one run are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Topology {
    /// A ring a job, each with kernel workers of its own
    RingPerThread,
    /// A ring a job, all of them with the same kernel workers
    SharedWorkers,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is measured")]
pub(super) struct FileArgs {
    /// Engines to measure
    #[arg(long, value_delimiter = ',', value_name = "ENGINE", default_value = "pread,ring,ring-fixed", value_parser = engine)]
    pub engine: Vec<Engine>,
    /// What jobs do: read, write, randread, randwrite
    #[arg(long, value_delimiter = ',', value_name = "MODE", default_value = "randread,randwrite", value_parser = mode)]
    pub mode: Vec<Mode>,
    /// Bytes an operation moves
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "4KiB", value_parser = size)]
    pub bs: Vec<u64>,
    /// Jobs, a thread each, pinned to CPUs where there are enough
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1")]
    pub numjobs: Vec<usize>,
    /// Operations a job keeps in flight; engines without a ring have one
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1,16")]
    pub iodepth: Vec<usize>,
    /// How the rings of a run share the kernel's workers (since Linux 5.12 this matters with --sqpoll only)
    #[arg(long, value_enum, default_value = "ring-per-thread")]
    pub topology: Topology,
    /// A kernel thread takes the submissions of every ring
    #[arg(long)]
    pub sqpoll: bool,
    /// Poll for the completions of every ring; needs --direct and a device with poll queues
    #[arg(long)]
    pub iopoll: bool,
    /// Compare two engines, taking turns: tables of differences
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], value_parser = engine, conflicts_with_all = ["engine", "table"])]
    pub compare: Option<Vec<Engine>>,
    /// Run a set-up that others have published, next to their figures
    #[arg(long, value_name = "NAME", value_parser = published, conflicts_with_all = ["engine", "mode", "bs", "numjobs", "iodepth", "topology", "sqpoll", "iopoll"])]
    pub table: Option<Published>,
    #[command(flatten)]
    pub file: FileOptions,
    #[command(flatten)]
    pub output: BenchOutput,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where and how long")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that is typed")]
pub(super) struct FileOptions {
    /// Use this file or block device, and keep it
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub file: Option<PathBuf>,
    /// Make a file here that is gone afterwards [default: the current directory, /dev/shm for tables of memory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Replace the content of --file if it exists
    #[arg(long, requires = "file")]
    pub overwrite: bool,
    /// Bytes of the file that are used
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,
    /// Past the page cache (O_DIRECT)
    #[arg(long, conflicts_with = "buffered")]
    pub direct: bool,
    /// Through the page cache, the default except for tables of drives
    #[arg(long)]
    pub buffered: bool,
    /// How long each run is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub duration: Duration,
    /// How long each run goes on before that
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub warmup: Duration,
    /// Runs of each case [default: 1; 4 for comparisons]
    #[arg(long, value_name = "N")]
    pub repeat: Option<usize>,
    /// Check every block that is read; costs time
    #[arg(long)]
    pub verify: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct BenchOutput {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print Markdown
    #[arg(long)]
    pub markdown: bool,
    /// Draw IOPS over depth into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

fn engine(text: &str) -> Result<Engine, String> {
    text.parse()
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse()
}

fn size(text: &str) -> Result<u64, String> {
    text.parse().map(|size: ByteSize| size.0).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    text.parse().map(|span: TimeSpan| span.0).map_err(|error| error.to_string())
}

fn published(text: &str) -> Result<Published, String> {
    let names = Published::ALL.map(|(name, _)| name).join(", ");
    let found = Published::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, table)| *table).ok_or_else(|| format!("'{text}' is no table: use one of {names}"))
}

/// Everything that was measured, for `--json`.
#[derive(Serialize)]
struct Answer<'a> {
    machine: &'a Machine,
    direct: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cases: &'a [Group],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    comparisons: &'a [Compared],
}

/// `glidefs bench …`
pub(super) fn run(command: BenchCommand) -> Result<(), CliError> {
    let BenchCommand::File(args) = command;
    let published = args.table.map(|table| table.set_up(affinity::allowed().map_or(1, |cpus| cpus.len())));
    let settings = settings(&args, published.as_ref());
    let machine = Machine::here(settings.file.as_deref().unwrap_or(&settings.dir));
    let bar = Bar::new();
    let pairs = pairs(&args, published.as_ref());
    let (groups, compared) = if pairs.is_empty() {
        let cases = chosen_cases(&args, &args.engine);
        (session::measure(&cases, &settings, &mut |step| bar.show(step))?, Vec::new())
    } else {
        (Vec::new(), session::compare(&pairs, &settings, published.is_some(), &mut |step| bar.show(step))?)
    };
    drop(bar);
    if let Some(path) = &args.output.plot {
        let both: Vec<Group> =
            compared.iter().flat_map(|compared| [compared.before.clone(), compared.after.clone()]).collect();
        write_file(path, &plot::svg(if both.is_empty() { &groups } else { &both })?)?;
    }
    if args.output.json {
        let source = published.as_ref().map(|set_up| set_up.source);
        let answer = Answer {
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

fn settings(args: &FileArgs, published: Option<&SetUp>) -> Settings {
    let here = || published.and_then(SetUp::default_dir).unwrap_or(Path::new(".")).to_path_buf();
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

/// `engine` with what was asked for all rings.
fn adjusted(args: &FileArgs, engine: Engine) -> Engine {
    if !engine.is_ring() {
        return engine;
    }
    Engine {
        polls_submissions: engine.polls_submissions || args.sqpoll,
        polls_completions: engine.polls_completions || args.iopoll,
        shares_workers: engine.shares_workers || args.topology == Topology::SharedWorkers,
        ..engine
    }
}

fn chosen_cases(args: &FileArgs, engines: &[Engine]) -> Vec<Case> {
    let engines: Vec<Engine> = engines.iter().map(|&engine| adjusted(args, engine)).collect();
    // A size beyond memory is refused by the checks, whatever becomes of it here.
    let blocks: Vec<usize> =
        args.bs.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).collect();
    cases(&engines, &args.mode, &blocks, &args.numjobs, &args.iodepth)
}

fn pairs(args: &FileArgs, published: Option<&SetUp>) -> Vec<Pair> {
    if let Some(set_up) = published {
        return set_up.pairs.clone();
    }
    let Some([before, after]) = args.compare.as_deref() else { return Vec::new() };
    let (before, after) = (adjusted(args, *before), adjusted(args, *after));
    // Loads as a ring has them; an engine without depth runs each once.
    let any = Engine::plain(crate::bench::plan::Way::Ring);
    let mut pairs: Vec<Pair> = Vec::new();
    for Case { load, .. } in chosen_cases(args, &[any]) {
        let load: Load = load;
        let pair = Pair::new(before, after, load);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    pairs
}

fn write_file(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|source| CliError::Write { path: path.into(), source })
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

/// Progress, when somebody watches.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    fn show(&self, step: Step) {
        let Some(bar) = &self.0 else { return };
        let (message, done, total) = match step {
            Step::Filling { done, total } => ("filling the test file, MiB".into(), done >> 20, total >> 20),
            Step::Running { case, number, of } => (case.to_string(), number as u64, of as u64),
        };
        bar.set_length(total);
        bar.set_message(message);
        bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        Self::Bench(error)
    }
}
