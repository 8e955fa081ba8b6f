//! Cases and settings of small runs.

use std::path::Path;
use std::time::Duration;

use crate::plan::{BenchEngine, Case, Mode, Settings, Workload, cases};

pub const SIZE: u64 = 1 << 20;

pub const ENGINES: [&str; 8] = [
    "pread",
    "threads:3",
    "ring",
    "ring-fixed",
    "ring-vectored",
    "ring-vectored-fixed",
    "ring-fixed+sqpoll",
    "ring+shared",
];
pub const MODES: [Mode; 4] = [Mode::Read, Mode::Write, Mode::Randread, Mode::Randwrite];

pub fn engine(name: &str) -> BenchEngine {
    name.parse().unwrap()
}

pub fn load(mode: Mode) -> Workload {
    Workload { mode, block_bytes: 8192, numjobs: 2, iodepth: 4 }
}

pub fn settings(dir: &Path) -> Settings {
    Settings {
        file: None,
        dir: dir.into(),
        overwrite: false,
        size_bytes: SIZE,
        direct: false,
        duration: Duration::from_millis(50),
        warmup: Duration::from_millis(2),
        repeat: 1,
        verify: true,
    }
}

pub fn case(engine: &str, mode: Mode) -> Case {
    cases(&[self::engine(engine)], &[mode], &[8192], &[2], &[4]).remove(0)
}
