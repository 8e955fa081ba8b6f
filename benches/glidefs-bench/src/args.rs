//! The arguments of `glidefs-bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::plan::{BenchEngine, Mode};
use crate::published::Published;

/// The cost of each way of reading and writing on this machine
#[derive(Debug, Parser)]
#[command(name = "glidefs-bench", version)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the ways of reading and writing a file
    #[command(after_help = "Examples:\n  \
        glidefs-bench file --dir /var/lib/glidefs --direct\n  \
        glidefs-bench file --engine pread,ring,ring-fixed --numjobs 1,4 --iodepth 1,16 --mode randread --json\n  \
        glidefs-bench file --compare ring ring-fixed --repeat 6 --direct\n  \
        glidefs-bench file --table fixed-buffers\n\n\
        Engines: pread (one thread a job), threads:N (N threads in all), ring, ring-fixed (registered buffers), \
        ring-vectored (pieces of 4KiB), ring-vectored-fixed. Rings take +sqpoll (a kernel thread takes submissions), \
        +iopoll (polls for completions; needs --direct and a device with poll queues) and +shared (one pool of kernel \
        workers), as in ring-fixed+sqpoll.")]
    File(Box<FileArgs>),
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// The directory for the pages
        #[arg(long)]
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is measured")]
pub struct FileArgs {
    /// Engines to measure
    #[arg(long, value_delimiter = ',', value_name = "ENGINE", default_value = "pread,ring,ring-fixed")]
    pub engine: Vec<BenchEngine>,
    /// Operations of the jobs
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "MODE",
        default_value = "randread,randwrite"
    )]
    pub mode: Vec<Mode>,
    /// Bytes an operation moves
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "4KiB", value_parser = block_size)]
    pub bs: Vec<usize>,
    /// Jobs, a thread each, pinned to CPUs where there are enough
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1")]
    pub numjobs: Vec<usize>,
    /// Operations a job keeps in flight; engines without a ring have one
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1,16")]
    pub iodepth: Vec<usize>,
    /// Compare two engines, taking turns: tables of differences
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["engine", "table"])]
    pub compare: Option<Vec<BenchEngine>>,
    /// Run a published set-up, and print the published figures too
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["engine", "mode", "bs", "numjobs", "iodepth"])]
    pub table: Option<Published>,
    #[command(flatten)]
    pub file: FileOptions,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Draw IOPS over depth into this file
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where and how long")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that is typed")]
pub struct FileOptions {
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
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long each run goes on before measuring
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,
    /// Runs of each case [default: 1; 4 for comparisons]
    #[arg(long, value_name = "N")]
    pub repeat: Option<usize>,
    /// Check every block read; costs time
    #[arg(long)]
    pub verify: bool,
}

/// Reads a number of bytes with a unit: `4KiB`, `512MiB`, `1GiB`.
fn size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    let bytes = number.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("'{text}' is no size: use a number with KiB, MiB, GiB or TiB, such as 4KiB"))
}

fn block_size(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?).map_err(|error| error.to_string())
}
