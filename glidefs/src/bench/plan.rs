//! What is to be measured.
//!
//! Owns the names of engines and modes, and the list of cases that settings amount to. Does not own how any of it is done.
//! Invariant: a case is one that its engine can tell apart: engines that block have no queue depth.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::error::BenchError;
use crate::units::REQUEST_BYTES_MAX;

/// Bytes of a block of the test file: offsets and sizes of operations are multiples of it.
pub const BLOCK_BYTES: usize = 4096;
/// Threads, at most.
const THREADS_MAX: usize = 4096;
/// Operations in flight a job, at most.
const DEPTH_MAX: usize = 4096;

/// How operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `pread` and `pwrite`, one thread a job.
    Pread,
    /// `pread` and `pwrite` by so many threads, whatever the number of jobs.
    Threads(usize),
    /// A ring, memory that is not registered.
    Ring,
    /// A ring, registered buffers.
    RingFixed,
    /// A ring, vectored operations of 4 KiB pieces.
    RingVectored,
    /// A ring, vectored operations of 4 KiB pieces of registered buffers.
    RingVectoredFixed,
}

/// A way of doing I/O, and how its rings are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The way.
    pub way: Way,
    /// A kernel thread takes submissions (SQPOLL).
    pub polls_submissions: bool,
    /// Completions are polled for (IOPOLL).
    pub polls_completions: bool,
    /// All rings share the kernel's workers.
    pub shares_workers: bool,
}

impl Engine {
    /// The engine with nothing special about its rings.
    pub const fn plain(way: Way) -> Self {
        Self { way, polls_submissions: false, polls_completions: false, shares_workers: false }
    }

    /// Whether it uses a ring.
    pub fn is_ring(self) -> bool {
        !matches!(self.way, Way::Pread | Way::Threads(_))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.way {
            Way::Pread => f.write_str("pread")?,
            Way::Threads(threads) => write!(f, "threads:{threads}")?,
            Way::Ring => f.write_str("ring")?,
            Way::RingFixed => f.write_str("ring-fixed")?,
            Way::RingVectored => f.write_str("ring-vectored")?,
            Way::RingVectoredFixed => f.write_str("ring-vectored-fixed")?,
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

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "use pread, threads:N, ring, ring-fixed, ring-vectored or ring-vectored-fixed; \
            rings take +sqpoll, +iopoll and +shared";
        let refused = || format!("'{text}' is no engine: {ALLOWED}");
        let mut parts = text.split('+');
        let way = match parts.next().unwrap_or_default() {
            "pread" => Way::Pread,
            "ring" => Way::Ring,
            "ring-fixed" => Way::RingFixed,
            "ring-vectored" => Way::RingVectored,
            "ring-vectored-fixed" => Way::RingVectoredFixed,
            other => {
                let threads = other.strip_prefix("threads:").and_then(|count| count.parse().ok());
                Way::Threads(threads.filter(|count| (1..=THREADS_MAX).contains(count)).ok_or_else(refused)?)
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

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What jobs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reads, each after the one before it.
    Read,
    /// Writes, each after the one before it.
    Write,
    /// Reads anywhere.
    Randread,
    /// Writes anywhere.
    Randwrite,
}

impl Mode {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite)
    }

    /// Whether the places are random.
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

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "randread" => Ok(Self::Randread),
            "randwrite" => Ok(Self::Randwrite),
            _ => Err(format!("'{text}' is no mode: use read, write, randread or randwrite")),
        }
    }
}

/// What is measured, apart from the engine that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// What jobs do.
    pub mode: Mode,
    /// Bytes an operation moves.
    #[serde(rename = "bs")]
    pub block_bytes: usize,
    /// Jobs, a thread each.
    pub numjobs: usize,
    /// Operations each job keeps in flight.
    pub iodepth: usize,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Who does it.
    pub engine: Engine,
    /// What is done.
    #[serde(flatten)]
    pub load: Load,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { mode, block_bytes, numjobs, iodepth } = self.load;
        write!(f, "{} {mode} bs={}k jobs={numjobs} depth={iodepth}", self.engine, block_bytes >> 10)
    }
}

/// What all cases have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Test file to use, and to keep; `None` for one without a name in `dir`.
    pub file: Option<PathBuf>,
    /// Where a test file without a name is made.
    pub dir: PathBuf,
    /// Whether a file or device that is there may be written.
    pub overwrite: bool,
    /// Bytes of the file that are used.
    pub size_bytes: u64,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// How long a run is measured.
    pub duration: Duration,
    /// How long it runs before that.
    pub warmup: Duration,
    /// Runs of each case.
    pub repeat: usize,
    /// Whether every block that is read is compared with what was written.
    pub verify: bool,
}

impl Settings {
    /// Refuses what cannot be measured.
    pub fn check(&self, cases: &[Case]) -> Result<(), BenchError> {
        let refuse = |why: String| Err(BenchError::Settings(why));
        if self.repeat == 0 || self.duration.is_zero() {
            return refuse("nothing would be measured: give a --duration and a --repeat above zero".into());
        }
        for case in cases {
            let Load { block_bytes, numjobs, iodepth, .. } = case.load;
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

/// Every combination, without those that differ only in what their engine has not got.
pub fn cases(
    engines: &[Engine],
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
                            load: load_for(engine, Load { mode, block_bytes, numjobs, iodepth }),
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

/// `load` as `engine` carries it out.
pub fn load_for(engine: Engine, load: Load) -> Load {
    match engine.way {
        Way::Pread => Load { iodepth: 1, ..load },
        Way::Threads(threads) => Load { iodepth: 1, numjobs: threads, ..load },
        _ => load,
    }
}
