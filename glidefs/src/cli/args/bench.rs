//! The arguments of `glidefs bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::bench::plan::{BenchEngine, Mode};
use crate::bench::published::Published;
use crate::config::{ByteSize, TimeSpan};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum BenchCommand {
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

/// How the rings of one run are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Topology {
    /// A ring a job, with kernel workers of its own
    RingPerThread,
    /// A ring a job, and shared kernel workers
    SharedWorkers,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is measured")]
pub(in crate::cli) struct FileArgs {
    /// Engines to measure
    #[arg(long, value_delimiter = ',', value_name = "ENGINE", default_value = "pread,ring,ring-fixed", value_parser = engine)]
    pub engine: Vec<BenchEngine>,
    /// Operations of the jobs: read, write, randread, randwrite
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
    pub compare: Option<Vec<BenchEngine>>,
    /// Run a published set-up, and print the published figures too
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
pub(in crate::cli) struct FileOptions {
    /// Use this file or block device, and keep the file
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub file: Option<PathBuf>,
    /// Make a temporary file in this directory [default: the current directory, /dev/shm for tables of memory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Replace the content of an existing --file
    #[arg(long, requires = "file")]
    pub overwrite: bool,
    /// Bytes of the file to use
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
    /// How long each run goes on before measuring
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub warmup: Duration,
    /// Runs of each case [default: 1; 4 for comparisons]
    #[arg(long, value_name = "N")]
    pub repeat: Option<usize>,
    /// Check every block read; costs time
    #[arg(long)]
    pub verify: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(in crate::cli) struct BenchOutput {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print Markdown
    #[arg(long)]
    pub markdown: bool,
    /// Draw IOPS over depth into this file; needs a glidefs built with `--features plots`
    #[arg(long, value_name = "FILE.svg", value_parser = plot_file)]
    pub plot: Option<PathBuf>,
}

fn engine(text: &str) -> Result<BenchEngine, String> {
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

/// Takes the path of a plot. A program without the feature `plots` refuses, and says how to get the feature.
fn plot_file(text: &str) -> Result<PathBuf, String> {
    if cfg!(feature = "plots") {
        return Ok(text.into());
    }
    Err("this glidefs was built without plots: build it with `cargo build --release --features plots`, \
        or leave --plot out"
        .into())
}

fn published(text: &str) -> Result<Published, String> {
    let names = Published::ALL.map(|(name, _)| name).join(", ");
    let found = Published::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, table)| *table).ok_or_else(|| format!("'{text}' is no table: use one of {names}"))
}
