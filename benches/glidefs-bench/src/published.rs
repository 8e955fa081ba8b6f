//! Set-ups that others have measured, with the published figures.
//!
//! Owns the set-ups, scaled to a machine, and the published figures with sources. Does not own running the set-ups. The published
//! figures come from other machines: only whether a technique helps carries over, not by how much.

use std::path::Path;

use clap::ValueEnum;

use crate::compare::{Compared, Pair};
use crate::figures::MeasuredRun;
use crate::plan::{BenchEngine, IoWay, Mode, Workload};
use crate::report::{self, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Published {
    /// Registered against plain buffers, in memory.
    FixedBuffers,
    /// Registered against vectored buffers, on a drive.
    FixedVsVectored,
    /// A ring a core against a pool of blocking threads.
    RingPerCore,
    /// Polling instead of system calls and interrupts.
    Polled,
}

/// A published figure, and the figure of this machine to compare.
struct Row {
    what: &'static str,
    published: &'static str,
    /// Index of the pair to compare with.
    pair: usize,
    figure: LocalFigure,
}

/// The figure to take from a pair's runs.
#[derive(Clone, Copy)]
enum LocalFigure {
    Iops,
    NanosPerOperation,
    SystemPercent,
}

/// A set-up for one machine.
pub struct PublishedSetUp {
    pub source: &'static str,
    pub conditions: &'static str,
    pub pairs: Vec<Pair>,
    pub direct: bool,
    /// In memory, if there is a file system there.
    pub in_memory: bool,
    rows: Vec<Row>,
}

const RING: BenchEngine = BenchEngine::plain(IoWay::Ring);
const FIXED: BenchEngine = BenchEngine::plain(IoWay::RingFixed);
const VECTORED: BenchEngine = BenchEngine::plain(IoWay::RingVectored);
const KIB: usize = 1024;

fn load(mode: Mode, kib: usize, numjobs: usize, iodepth: usize) -> Workload {
    Workload { mode, block_bytes: kib * KIB, numjobs, iodepth }
}

impl Published {
    /// The set-up on a machine with `cpus` CPUs.
    pub fn set_up(self, cpus: usize) -> PublishedSetUp {
        match self {
            Self::FixedBuffers => fixed_buffers(cpus),
            Self::FixedVsVectored => fixed_vs_vectored(),
            Self::RingPerCore => ring_per_core(cpus),
            Self::Polled => polled(),
        }
    }
}

fn fixed_buffers(cpus: usize) -> PublishedSetUp {
    let many = cpus.clamp(2, 16);
    let mut pairs = Vec::new();
    for mode in [Mode::Randwrite, Mode::Randread] {
        for numjobs in [1, many] {
            for iodepth in [1, 16] {
                pairs.push(Pair::new(RING, FIXED, load(mode, 4, numjobs, iodepth)));
            }
        }
    }
    let published = [
        ("1 job, depth 1, randwrite", "185k → 193k (+4.3%)"),
        ("1 job, depth 16, randwrite", "575k → 608k (+5.7%)"),
        ("16 jobs, depth 1, randwrite", "893k → 1117k (+25.1%)"),
        ("16 jobs, depth 16, randwrite", "805k → 1040k (+29.2%)"),
        ("1 job, depth 1, randread", "232k → 236k (+1.7%)"),
        ("1 job, depth 16, randread", "682k → 694k (+1.8%)"),
        ("16 jobs, depth 1, randread", "2663k → 2710k (+1.8%)"),
        ("16 jobs, depth 16, randread", "4955k → 5495k (+10.9%)"),
    ];
    let rows = published.into_iter().enumerate();
    PublishedSetUp {
        source: "ClickHouse silk, pull request 72 (June 2026)",
        conditions: "one m8id.8xlarge (32 CPUs), 1 GiB file in /dev/shm, 4 KiB, 60 s; 16 jobs there are as many as CPUs here, at least 2",
        pairs,
        direct: false,
        in_memory: true,
        rows: rows
            .map(|(pair, (what, published))| Row { what, published, pair, figure: LocalFigure::Iops })
            .collect(),
    }
}

fn fixed_vs_vectored() -> PublishedSetUp {
    let mut pairs = Vec::new();
    for kib in [4, 32, 128] {
        for iodepth in [1, 16, 128] {
            pairs.push(Pair::new(RING, FIXED, load(Mode::Randread, kib, 1, iodepth)));
        }
    }
    for iodepth in [1, 4, 16] {
        pairs.push(Pair::new(FIXED, VECTORED, load(Mode::Randread, 128, 1, iodepth)));
    }
    let row = |what, published, pair, figure| Row { what, published, pair, figure };
    PublishedSetUp {
        source: "P. Nowoczynski, IO_uring Fixed Buffer Versus Non-Fixed Buffer Performance Comparison on NVMe (February 2021)",
        conditions: "one NVMe drive, O_DIRECT, random reads, one process on one core",
        pairs,
        direct: true,
        in_memory: false,
        rows: vec![
            row(
                "4 KiB, depth 128: plain → registered, IOPS",
                "close to +10% at high depths",
                2,
                LocalFigure::Iops,
            ),
            row("32 KiB, depth 128: plain → registered, IOPS", "equal", 5, LocalFigure::Iops),
            row("128 KiB, depth 128: plain → registered, IOPS", "equal", 8, LocalFigure::Iops),
            row(
                "128 KiB, depth 16: plain → registered, system CPU",
                "3 to 8 points less",
                7,
                LocalFigure::SystemPercent,
            ),
            row(
                "128 KiB, depth 1: registered → 32 × 4 KiB, IOPS",
                "visibly lower until the drive is busy",
                9,
                LocalFigure::Iops,
            ),
            row(
                "128 KiB, depth 4: registered → 32 × 4 KiB, IOPS",
                "equal: the drive is busy",
                10,
                LocalFigure::Iops,
            ),
            row(
                "128 KiB, depth 4: registered → 32 × 4 KiB, system CPU",
                "higher",
                10,
                LocalFigure::SystemPercent,
            ),
        ],
    }
}

fn ring_per_core(cpus: usize) -> PublishedSetUp {
    let shared = BenchEngine { shares_workers: true, ..RING };
    let threads = BenchEngine::plain(IoWay::Threads(128));
    let at_once = load(Mode::Randread, 4, cpus.clamp(1, 16), 256);
    PublishedSetUp {
        source: "D. Shulyak, uring: Golang library for io_uring (2020)",
        conditions: "Samsung EVO 960, ext4, 40 GB, O_DIRECT, Linux 5.8; 16 rings that share kernel workers, 100,000 readers, against 128 threads",
        pairs: vec![Pair::new(threads, shared, at_once), Pair::new(RING, shared, at_once)],
        direct: true,
        in_memory: false,
        rows: vec![
            Row {
                what: "128 threads → a ring a core, time an operation",
                published: "1901 ns → 1709 ns (−10.1%)",
                pair: 0,
                figure: LocalFigure::NanosPerOperation,
            },
            Row {
                what: "rings with workers of their own → shared, time an operation",
                published: "not given",
                pair: 1,
                figure: LocalFigure::NanosPerOperation,
            },
        ],
    }
}

fn polled() -> PublishedSetUp {
    let pread = BenchEngine::plain(IoWay::Pread);
    let mut pairs = Vec::new();
    for iodepth in [1, 32] {
        let load = load(Mode::Randread, 4, 1, iodepth);
        if iodepth == 1 {
            pairs.push(Pair::new(pread, RING, load));
        }
        pairs.push(Pair::new(RING, FIXED, load));
        pairs.push(Pair::new(FIXED, BenchEngine { polls_submissions: true, ..FIXED }, load));
        pairs.push(Pair::new(FIXED, BenchEngine { polls_completions: true, ..FIXED }, load));
    }
    let row = |what, published, pair, figure| Row { what, published, pair, figure };
    PublishedSetUp {
        source: "J. Axboe, Faster IO through io_uring, Kernel Recipes (September 2019)",
        conditions: "fast NVMe drives, O_DIRECT, one core; polling for completions trades CPU time for latency, up to a point",
        pairs,
        direct: true,
        in_memory: false,
        rows: vec![
            row(
                "depth 32: plain → registered, time an operation",
                "about 100 ns less",
                4,
                LocalFigure::NanosPerOperation,
            ),
            row("depth 32: system call → SQPOLL, IOPS", "one core submits for another", 5, LocalFigure::Iops),
            row(
                "depth 32: interrupts → IOPOLL, IOPS",
                "1 to 2 million IOPS a core; AIO 500k",
                6,
                LocalFigure::Iops,
            ),
            row(
                "depth 1: interrupts → IOPOLL, time an operation",
                "lower",
                3,
                LocalFigure::NanosPerOperation,
            ),
        ],
    }
}

impl PublishedSetUp {
    /// Directory of the test file when the user names none.
    pub fn default_dir(&self) -> Option<&'static Path> {
        let memory = Path::new("/dev/shm");
        (self.in_memory && memory.is_dir()).then_some(memory)
    }

    /// The published figures next to the figures of this machine. `compared` has the results of the pairs, in order.
    pub fn side_by_side(&self, compared: &[Compared]) -> Table {
        let mut table = Table::new("Published and here", &["what", "published", "here", "verdict here"]);
        for row in &self.rows {
            let (here, verdict) = match compared.get(row.pair) {
                Some(compared) if compared.unavailable.is_none() => row.figure.of(compared),
                _ => ("not on this machine".into(), "–"),
            };
            table.rows.push(vec![row.what.into(), row.published.into(), here, verdict.into()]);
        }
        table.notes.push(format!("Published: {}. {}.", self.source, self.conditions));
        table
    }
}

impl LocalFigure {
    fn of(self, compared: &Compared) -> (String, &'static str) {
        match self {
            Self::Iops => show(compared, |run| run.iops, report::iops),
            Self::NanosPerOperation => show(
                compared,
                |run| if run.iops > 0.0 { 1e9 / run.iops } else { 0.0 },
                |nanos| format!("{nanos:.0} ns"),
            ),
            Self::SystemPercent => {
                let (before, after) = compared.spreads(MeasuredRun::system_percent);
                let points = after.mean - before.mean;
                let text = format!("{:.0}% → {:.0}% ({points:+.0} points)", before.mean, after.mean)
                    .replace('-', "−");
                (text, compared.verdict(MeasuredRun::system_percent))
            }
        }
    }
}

fn show(
    compared: &Compared,
    figure: impl Fn(&MeasuredRun) -> f64,
    write: impl Fn(f64) -> String,
) -> (String, &'static str) {
    (compared.change(&figure, write), compared.verdict(figure))
}
