//! The CPUs for workers: those on which this process may run, pinning, the quota of CPU time, and NUMA nodes. A CPU is the kernel's
//! number of it.
//!
//! Does not own the choice of the configuration (`config`). A cpuset needs no care of its own: the
//! kernel gives the affinity within the cpuset. Quotas of cgroup v1 are not looked for.

use std::fs;
use std::io;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the kernel shows control groups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where the kernel shows CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

/// The CPUs and the CPU time that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Numbers of the CPUs, ascending.
    pub cpus: Vec<usize>,
    /// Whole CPUs' worth of time, at least one; `None` without a limit.
    pub quota: Option<usize>,
}

impl Usable {
    pub fn find() -> io::Result<Self> {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Ok(Self { cpus: allowed()?, quota: quota_of(&membership) })
    }

    /// The number of workers on `cpus` CPUs. A worker beyond the quota would only bring the pause nearer in which the kernel
    /// stops every thread of the control group; a fraction of a CPU is left for the threads beside the workers.
    pub fn workers(&self, cpus: usize) -> usize {
        self.quota.map_or(cpus, |quota| quota.min(cpus))
    }
}

/// The CPUs on which this process may run, ascending.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Pins the calling thread to `cpu`.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// Whole CPUs' worth of time for the control group in `membership`, a text like `/proc/self/cgroup`; `None` without a limit.
pub fn quota_of(membership: &str) -> Option<usize> {
    quota(Path::new(CGROUPS), membership)
}

/// The quota of the control group in `membership`, a text like `/proc/self/cgroup`, and of all groups above: the least holds.
fn quota(root: &Path, membership: &str) -> Option<usize> {
    let group = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limits = Path::new(group).ancestors().filter_map(|group| {
        let text = fs::read_to_string(root.join(group).join("cpu.max")).ok()?;
        whole_cpus(&text)
    });
    limits.min()
}

/// The whole CPUs in a text like `150000 100000`: microseconds of CPU time, of microseconds.
fn whole_cpus(limit: &str) -> Option<usize> {
    let (time, period) = limit.trim().split_once(' ')?;
    let (time, period) = (time.parse::<usize>().ok()?, period.parse::<usize>().ok()?);
    time.checked_div(period).map(|cpus| cpus.max(1))
}

/// The NUMA node of a CPU; `None` where the kernel knows no nodes.
pub fn node_of(cpu: usize) -> Option<u64> {
    node_in(Path::new(CPUS), cpu)
}

fn node_in(cpus: &Path, cpu: usize) -> Option<u64> {
    let entries = fs::read_dir(cpus.join(format!("cpu{cpu}"))).ok()?;
    entries
        .filter_map(Result::ok)
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a `cpu.max` for each group of `limits`.
    fn groups(limits: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (group, limit) in limits {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join("cpu.max"), limit).unwrap();
        }
        root
    }

    #[test]
    fn the_least_quota_of_a_group_and_those_above_holds() {
        for (limits, expected) in [
            (&[("a", "max 100000\n"), ("a/b", "400000 100000\n")][..], Some(4)),
            (&[("a", "200000 100000\n"), ("a/b", "400000 100000\n")], Some(2)),
            (&[("a", "200000 100000\n"), ("a/b", "max 100000\n")], Some(2)),
            (&[("a", "max 100000\n"), ("a/b", "max 100000\n")], None),
            (&[("a/b/c", "100000 100000\n")], None),
            // In a container the group may be the root that is seen.
            (&[("", "350000 100000\n")], Some(3)),
            (&[], None),
        ] {
            let root = groups(limits);
            assert_eq!(quota(root.path(), "1:cpu:/x\n0::/a/b\n"), expected, "{limits:?}");
        }
    }

    #[test]
    fn a_fraction_of_a_cpu_is_left_to_others_and_one_worker_always_runs() {
        for (limit, cpus) in [
            ("150000 100000", Some(1)),
            ("20000 100000", Some(1)),
            ("199999 100000", Some(1)),
            ("max 100000", None),
            ("200000 0", None),
            ("", None),
            ("200000", None),
        ] {
            assert_eq!(whole_cpus(limit), cpus, "{limit}");
        }
    }

    #[test]
    fn without_a_group_of_the_second_version_there_is_no_quota() {
        let root = groups(&[("", "100000 100000")]);
        assert_eq!(quota(root.path(), "4:cpu:/\n"), None);
        assert_eq!(quota(root.path(), ""), None);
    }

    #[test]
    fn a_quota_limits_workers_and_adds_none() {
        let usable = |quota| Usable { cpus: vec![0, 1, 2, 3], quota };
        assert_eq!([None, Some(2), Some(9)].map(|quota| usable(quota).workers(4)), [4, 2, 4]);
    }

    #[test]
    fn the_node_of_a_cpu_is_the_one_that_the_kernel_links() {
        let cpus = tempfile::tempdir().unwrap();
        for folder in ["cpu3/cache", "cpu3/node1", "cpu4/cache"] {
            fs::create_dir_all(cpus.path().join(folder)).unwrap();
        }
        assert_eq!([3, 4, 5].map(|cpu| node_in(cpus.path(), cpu)), [Some(1), None, None]);
    }

    #[test]
    fn a_pinned_thread_may_run_on_its_cpu_only() {
        let cpu = *allowed().unwrap().last().unwrap();
        std::thread::spawn(move || {
            pin(cpu).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        assert!(pin(CpuSet::count()).is_err());
    }

    #[test]
    fn this_process_may_use_a_cpu() {
        let usable = Usable::find().unwrap();
        assert!(!usable.cpus.is_empty(), "{usable:?}");
    }
}
