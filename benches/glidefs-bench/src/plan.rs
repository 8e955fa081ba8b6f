//! The measurements to make.
//!
//! Owns the names of engines and modes, and the list of cases that settings amount to. Does not own how operations are done.
//! Invariant: cases differ only in properties that the case's engine has: engines that block have no queue depth.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use crate::error::BenchError;

/// Bytes of a block of the test file: offsets and sizes of operations are multiples of a block.
pub const BLOCK_BYTES: usize = 4096;
/// The largest request of a glidefs device.
const REQUEST_BYTES_MAX: usize = 128 << 10;
const THREADS_MAX: usize = 4096;
/// Operations in flight a job, at most.
const DEPTH_MAX: usize = 4096;

/// How operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoWay {
    /// `pread` and `pwrite`, one thread a job.
    Pread,
    /// `pread` and `pwrite` by so many threads, whatever the number of jobs.
    Threads(usize),
    /// A ring, unregistered memory.
    Ring,
    RingFixed,
    /// A ring, vectored operations of 4 KiB pieces.
    RingVectored,
    /// A ring, vectored operations of 4 KiB pieces of registered buffers.
    RingVectoredFixed,
}

/// A way of doing I/O, and the set-up of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchEngine {
    pub way: IoWay,
    /// A kernel thread takes submissions (SQPOLL).
    pub polls_submissions: bool,
    /// Completions are polled for (IOPOLL).
    pub polls_completions: bool,
    /// All rings share the kernel's workers.
    pub shares_workers: bool,
}

impl BenchEngine {
    /// The engine with an ordinary ring set-up.
    pub const fn plain(way: IoWay) -> Self {
        Self { way, polls_submissions: false, polls_completions: false, shares_workers: false }
    }

    /// Whether the engine uses a ring.
    pub fn is_ring(self) -> bool {
        !matches!(self.way, IoWay::Pread | IoWay::Threads(_))
    }
}

impl fmt::Display for BenchEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.way {
            IoWay::Pread => f.write_str("pread")?,
            IoWay::Threads(threads) => write!(f, "threads:{threads}")?,
            IoWay::Ring => f.write_str("ring")?,
            IoWay::RingFixed => f.write_str("ring-fixed")?,
            IoWay::RingVectored => f.write_str("ring-vectored")?,
            IoWay::RingVectoredFixed => f.write_str("ring-vectored-fixed")?,
        }
        for (on, name) in [
            (self.polls_submissions, "+sqpoll"),
            (self.polls_completions, "+iopoll"),
            (self.shares_workers, "+shared"),
        ] {
            if on {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

impl FromStr for BenchEngine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "use pread, threads:N, ring, ring-fixed, ring-vectored or ring-vectored-fixed; \
            rings take +sqpoll, +iopoll and +shared";
        let refused = || format!("'{text}' is no engine: {ALLOWED}");
        let mut parts = text.split('+');
        let way = match parts.next().unwrap_or_default() {
            "pread" => IoWay::Pread,
            "ring" => IoWay::Ring,
            "ring-fixed" => IoWay::RingFixed,
            "ring-vectored" => IoWay::RingVectored,
            "ring-vectored-fixed" => IoWay::RingVectoredFixed,
            other => {
                let threads = other.strip_prefix("threads:").and_then(|count| count.parse().ok());
                IoWay::Threads(threads.filter(|count| (1..=THREADS_MAX).contains(count)).ok_or_else(refused)?)
            }
        };
        let mut engine = Self::plain(way);
        for part in parts {
            if !engine.is_ring() {
                return Err(refused());
            }
            match part {
                "sqpoll" => engine.polls_submissions = true,
                "iopoll" => engine.polls_completions = true,
                "shared" => engine.shares_workers = true,
                _ => return Err(refused()),
            }
        }
        Ok(engine)
    }
}

impl Serialize for BenchEngine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// READs, one behind the other.
    Read,
    /// WRITEs, one behind the other.
    Write,
    Randread,
    Randwrite,
}

impl Mode {
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite)
    }

    /// Whether the offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
        })
    }
}

/// The work to measure, apart from the engine that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    pub mode: Mode,
    #[serde(rename = "bs")]
    pub block_bytes: usize,
    pub numjobs: usize,
    /// Operations each job keeps in flight.
    pub iodepth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    pub engine: BenchEngine,
    #[serde(flatten)]
    pub load: Workload,
}

impl Case {
    /// Makes the error of a step of the set-up that failed.
    pub fn failed(self, what: &'static str) -> impl Fn(io::Error) -> BenchError {
        move |source| BenchError::Setup { engine: self.engine.to_string(), what, source }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { mode, block_bytes, numjobs, iodepth } = self.load;
        write!(f, "{} {mode} bs={}k jobs={numjobs} depth={iodepth}", self.engine, block_bytes >> 10)
    }
}

/// Settings that all cases share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Test file to use, and to keep; `None` for one without a name in `dir`.
    pub file: Option<PathBuf>,
    /// Where a test file without a name is made.
    pub dir: PathBuf,
    /// Whether an existing file or device may be written.
    pub overwrite: bool,
    /// Bytes of the test file in use.
    pub size_bytes: u64,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// How long a run is measured.
    pub duration: Duration,
    /// How long a run goes on before the measured window.
    pub warmup: Duration,
    pub repeat: usize,
    /// Whether every block read is compared with the block's stamp.
    pub verify: bool,
}

impl Settings {
    /// Refuses settings that cannot be measured.
    pub fn check(&self, cases: &[Case]) -> Result<(), BenchError> {
        let refuse = |why: String| Err(BenchError::Settings(why));
        if self.repeat == 0 || self.duration.is_zero() {
            return refuse("nothing would be measured: give a --duration and a --repeat above zero".into());
        }
        for case in cases {
            let Workload { block_bytes, numjobs, iodepth, .. } = case.load;
            if block_bytes == 0 || !block_bytes.is_multiple_of(BLOCK_BYTES) || block_bytes > REQUEST_BYTES_MAX
            {
                return refuse(format!(
                    "--bs {block_bytes} cannot be measured: use a multiple of 4KiB up to {}KiB, the largest request of a device",
                    REQUEST_BYTES_MAX >> 10
                ));
            }
            if numjobs == 0 || numjobs > THREADS_MAX || iodepth == 0 || iodepth > DEPTH_MAX {
                return refuse(format!(
                    "use 1 to {THREADS_MAX} for --numjobs and 1 to {DEPTH_MAX} for --iodepth"
                ));
            }
            if self.size_bytes / (block_bytes as u64) < numjobs as u64 {
                return refuse(format!(
                    "--size {} is less than a block for each of {numjobs} jobs",
                    self.size_bytes
                ));
            }
            if case.engine.polls_completions && !self.direct {
                return refuse("only direct I/O can be polled: use --direct with +iopoll".into());
            }
        }
        Ok(())
    }
}

/// Every combination. Combinations that differ only in a property the engine lacks are listed once.
pub fn cases(
    engines: &[BenchEngine],
    modes: &[Mode],
    blocks: &[usize],
    jobs: &[usize],
    depths: &[usize],
) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for &engine in engines {
        for &mode in modes {
            for &block_bytes in blocks {
                for &numjobs in jobs {
                    for &iodepth in depths {
                        let case = Case {
                            engine,
                            load: workload_for(engine, Workload { mode, block_bytes, numjobs, iodepth }),
                        };
                        if !cases.contains(&case) {
                            cases.push(case);
                        }
                    }
                }
            }
        }
    }
    cases
}

/// `load` as `engine` carries the load out.
pub fn workload_for(engine: BenchEngine, load: Workload) -> Workload {
    match engine.way {
        IoWay::Pread => Workload { iodepth: 1, ..load },
        IoWay::Threads(threads) => Workload { iodepth: 1, numjobs: threads, ..load },
        _ => load,
    }
}
