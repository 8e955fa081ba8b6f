//! Set-ups that others have measured, with the figures they published.
//!
//! Owns the set-ups, scaled to a machine, and the published figures with their sources. Does not own running them. The figures
//! are those of other machines: what carries over is whether something helps, not by how much.

use std::path::Path;

use super::compare::{Compared, Pair};
use super::figures::Run;
use super::plan::{Engine, Load, Mode, Way};
use super::report::{self, Table};

/// Which set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A published figure, and what to hold against it.
struct Row {
    what: &'static str,
    published: &'static str,
    /// Which pair, and which figure of it.
    here: Option<(usize, Here)>,
}

/// What a figure of this machine shows.
#[derive(Clone, Copy)]
enum Here {
    Iops,
    NanosPerOperation,
    SystemPercent,
}

/// A set-up for one machine.
pub struct SetUp {
    /// Who measured it.
    pub source: &'static str,
    /// On what, and how.
    pub conditions: &'static str,
    /// What is compared.
    pub pairs: Vec<Pair>,
    /// Past the page cache.
    pub direct: bool,
    /// In memory, if there is a file system there.
    pub in_memory: bool,
    rows: Vec<Row>,
}

const RING: Engine = Engine::plain(Way::Ring);
const FIXED: Engine = Engine::plain(Way::RingFixed);
const VECTORED: Engine = Engine::plain(Way::RingVectored);
const KIB: usize = 1024;

fn load(mode: Mode, kib: usize, numjobs: usize, iodepth: usize) -> Load {
    Load { mode, block_bytes: kib * KIB, numjobs, iodepth }
}

impl Published {
    /// All of them, by the names they are asked for with.
    pub const ALL: [(&'static str, Self); 4] = [
        ("fixed-buffers", Self::FixedBuffers),
        ("fixed-vs-vectored", Self::FixedVsVectored),
        ("ring-per-core", Self::RingPerCore),
        ("polled", Self::Polled),
    ];

    /// The set-up on a machine with `cpus` CPUs.
    pub fn set_up(self, cpus: usize) -> SetUp {
        match self {
            Self::FixedBuffers => fixed_buffers(cpus),
            Self::FixedVsVectored => fixed_vs_vectored(),
            Self::RingPerCore => ring_per_core(cpus),
            Self::Polled => polled(),
        }
    }
}

fn fixed_buffers(cpus: usize) -> SetUp {
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
    SetUp {
        source: "ClickHouse silk, pull request 72 (June 2026)",
        conditions: "one m8id.8xlarge (32 CPUs), 1 GiB file in /dev/shm, 4 KiB, 60 s; 16 jobs there are as many as CPUs here, at least 2",
        pairs,
        direct: false,
        in_memory: true,
        rows: rows
            .map(|(pair, (what, published))| Row { what, published, here: Some((pair, Here::Iops)) })
            .collect(),
    }
}

fn fixed_vs_vectored() -> SetUp {
    let mut pairs = Vec::new();
    for kib in [4, 32, 128] {
        for iodepth in [1, 16, 128] {
            pairs.push(Pair::new(RING, FIXED, load(Mode::Randread, kib, 1, iodepth)));
        }
    }
    for iodepth in [1, 4, 16] {
        pairs.push(Pair::new(FIXED, VECTORED, load(Mode::Randread, 128, 1, iodepth)));
    }
    let row = |what, published, pair, figure| Row { what, published, here: Some((pair, figure)) };
    SetUp {
        source: "P. Nowoczynski, IO_uring Fixed Buffer Versus Non-Fixed Buffer Performance Comparison on NVMe (February 2021)",
        conditions: "one NVMe drive, O_DIRECT, random reads, one process on one core",
        pairs,
        direct: true,
        in_memory: false,
        rows: vec![
            row("4 KiB, depth 128: plain → registered, IOPS", "close to +10% at high depths", 2, Here::Iops),
            row("32 KiB, depth 128: plain → registered, IOPS", "equal", 5, Here::Iops),
            row("128 KiB, depth 128: plain → registered, IOPS", "equal", 8, Here::Iops),
            row(
                "128 KiB, depth 16: plain → registered, system CPU",
                "3 to 8 points less",
                7,
                Here::SystemPercent,
            ),
            row(
                "128 KiB, depth 1: registered → 32 × 4 KiB, IOPS",
                "visibly lower until the drive is busy",
                9,
                Here::Iops,
            ),
            row(
                "128 KiB, depth 4: registered → 32 × 4 KiB, IOPS",
                "equal: the drive is busy",
                10,
                Here::Iops,
            ),
            row("128 KiB, depth 4: registered → 32 × 4 KiB, system CPU", "higher", 10, Here::SystemPercent),
        ],
    }
}

fn ring_per_core(cpus: usize) -> SetUp {
    let shared = Engine { shares_workers: true, ..RING };
    let threads = Engine::plain(Way::Threads(128));
    let at_once = load(Mode::Randread, 4, cpus.clamp(1, 16), 256);
    SetUp {
        source: "D. Shulyak, uring: Golang library for io_uring (2020)",
        conditions: "Samsung EVO 960, ext4, 40 GB, O_DIRECT, Linux 5.8; 16 rings that share kernel workers, 100,000 readers, against 128 threads",
        pairs: vec![Pair::new(threads, shared, at_once), Pair::new(RING, shared, at_once)],
        direct: true,
        in_memory: false,
        rows: vec![
            Row {
                what: "128 threads → a ring a core, time an operation",
                published: "1901 ns → 1709 ns (−10.1%)",
                here: Some((0, Here::NanosPerOperation)),
            },
            Row {
                what: "rings with workers of their own → shared, time an operation",
                published: "not given",
                here: Some((1, Here::NanosPerOperation)),
            },
        ],
    }
}

fn polled() -> SetUp {
    let pread = Engine::plain(Way::Pread);
    let mut pairs = Vec::new();
    for iodepth in [1, 32] {
        let load = load(Mode::Randread, 4, 1, iodepth);
        if iodepth == 1 {
            pairs.push(Pair::new(pread, RING, load));
        }
        pairs.push(Pair::new(RING, FIXED, load));
        pairs.push(Pair::new(FIXED, Engine { polls_submissions: true, ..FIXED }, load));
        pairs.push(Pair::new(FIXED, Engine { polls_completions: true, ..FIXED }, load));
    }
    let row = |what, published, pair, figure| Row { what, published, here: Some((pair, figure)) };
    SetUp {
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
                Here::NanosPerOperation,
            ),
            row("depth 32: system call → SQPOLL, IOPS", "one core submits for another", 5, Here::Iops),
            row("depth 32: interrupts → IOPOLL, IOPS", "1 to 2 million IOPS a core; AIO 500k", 6, Here::Iops),
            row("depth 1: interrupts → IOPOLL, time an operation", "lower", 3, Here::NanosPerOperation),
        ],
    }
}

impl SetUp {
    /// Where its file is made, when the user does not say.
    pub fn default_dir(&self) -> Option<&'static Path> {
        let memory = Path::new("/dev/shm");
        (self.in_memory && memory.is_dir()).then_some(memory)
    }

    /// The published figures next to those of this machine, which are of the pairs in their order.
    pub fn side_by_side(&self, compared: &[Compared]) -> Table {
        let mut table = Table::new("Published and here", &["what", "published", "here", "verdict here"]);
        for row in &self.rows {
            let compared = row.here.and_then(|(pair, figure)| Some((compared.get(pair)?, figure)));
            let (here, verdict) = compared.map_or_else(
                || ("–".into(), "–"),
                |(compared, figure)| {
                    if compared.unavailable.is_some() {
                        ("not on this machine".into(), "–")
                    } else {
                        figure.of(compared)
                    }
                },
            );
            table.rows.push(vec![row.what.into(), row.published.into(), here, verdict.into()]);
        }
        table.notes.push(format!("Published: {}. {}.", self.source, self.conditions));
        table
    }
}

impl Here {
    fn of(self, compared: &Compared) -> (String, &'static str) {
        match self {
            Self::Iops => show(compared, |run| run.iops, report::iops),
            Self::NanosPerOperation => show(
                compared,
                |run| if run.iops > 0.0 { 1e9 / run.iops } else { 0.0 },
                |nanos| format!("{nanos:.0} ns"),
            ),
            Self::SystemPercent => {
                let (before, after) = compared.spreads(Run::system_percent);
                let points = after.mean - before.mean;
                let text = format!("{:.0}% → {:.0}% ({points:+.0} points)", before.mean, after.mean)
                    .replace('-', "−");
                (text, compared.verdict(Run::system_percent))
            }
        }
    }
}

fn show(
    compared: &Compared,
    figure: impl Fn(&Run) -> f64,
    write: impl Fn(f64) -> String,
) -> (String, &'static str) {
    let (before, after) = compared.spreads(&figure);
    let change = report::change(before.change_percent(after));
    (format!("{} → {} ({change})", write(before.mean), write(after.mean)), compared.verdict(figure))
}
