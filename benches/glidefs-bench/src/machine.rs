//! The machine that figures were measured on. Figures mean nothing without the machine.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::statfs::{self, statfs};
use nix::unistd::Pid;
use serde::Serialize;

/// The properties of the machine that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct ThisMachine {
    /// CPUs the process may use.
    pub cpus: usize,
    pub cpu_model: String,
    pub kernel: String,
    /// File system of the test file.
    pub file_system: String,
}

impl ThisMachine {
    /// This machine, with the file system of `path`.
    pub fn here(path: &Path) -> Self {
        let line =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cpus: allowed_cpus().map_or(1, |cpus| cpus.len()),
            cpu_model: model.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.to_owned()),
            kernel: line("/proc/sys/kernel/osrelease"),
            file_system: file_system(path),
        }
    }
}

impl fmt::Display for ThisMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, cpu_model, kernel, file_system } = self;
        write!(f, "{cpus} CPUs ({cpu_model}), Linux {kernel}, {file_system}")
    }
}

/// The CPUs on which this process may run, ascending, by the kernel's numbers.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Pins the calling thread to `cpu`.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// The name of the file system of `path`, or of the nearest folder above that exists.
pub fn file_system(path: &Path) -> String {
    let existing = path.ancestors().find(|path| path.exists()).filter(|path| !path.as_os_str().is_empty());
    let Ok(figures) = statfs(existing.unwrap_or(Path::new("."))) else { return "unknown file system".into() };
    let known = [
        (statfs::EXT4_SUPER_MAGIC, "ext4"),
        (statfs::XFS_SUPER_MAGIC, "XFS"),
        (statfs::TMPFS_MAGIC, "tmpfs"),
        (statfs::BTRFS_SUPER_MAGIC, "btrfs"),
        (statfs::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (statfs::NFS_SUPER_MAGIC, "NFS"),
    ];
    let kind = figures.filesystem_type();
    known
        .iter()
        .find(|(magic, _)| *magic == kind)
        .map_or_else(|| format!("file system {:#x}", kind.0), |(_, name)| (*name).to_owned())
}
