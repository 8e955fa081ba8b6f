//! The CPUs for workers: those on which this process may run, the quota of CPU time, and NUMA nodes.
//!
//! Does not own the choice of the configuration (`config`), nor pinning (`affinity`). A cpuset needs no care of its own: the
//! kernel gives the affinity within the cpuset. Quotas of cgroup v1 are not looked for.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use nix::unistd::{SysconfVar, sysconf};

use super::affinity;

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
    /// Number of CPUs which the machine has switched on, also those on which this process may not run.
    pub online: usize,
}

/// Why workers do not poll, though they are asked to: CPUs are short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpusShort {
    #[error("polled time would count towards the CPU quota: remove the quota (CPUQuota= of the unit)")]
    Quota,
    #[error(
        "two workers have the same CPU: set workers.count to the number of CPUs in workers.cpus, or lower"
    )]
    SharedByWorkers,
    #[error(
        "each CPU of the machine has a worker, and none is left for clients: set workers.count below the number of CPUs"
    )]
    NoneLeft,
}

impl Usable {
    pub fn find() -> io::Result<Self> {
        let cpus = affinity::allowed()?.into_iter().map(|cpu| cpu.0).collect();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Ok(Self::on_this_machine(cpus, quota_of(&membership)))
    }

    /// What a process of this machine may use that is known to be allowed `cpus` and `quota`.
    pub fn on_this_machine(cpus: Vec<usize>, quota: Option<usize>) -> Self {
        let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
        Self { cpus, quota, online: online.and_then(|count| usize::try_from(count).ok()).unwrap_or(1) }
    }

    /// The number of workers on `cpus` CPUs. A worker beyond the quota would only bring the pause nearer in which the kernel
    /// stops every thread of the control group; a fraction of a CPU is left for the threads beside the workers.
    pub fn workers(&self, cpus: usize) -> usize {
        self.quota.map_or(cpus, |quota| quota.min(cpus))
    }

    /// Whether workers on `workers` may take CPU time to answer sooner: no time counts towards a quota, each worker has a CPU of its own,
    /// and some CPU of the machine has no worker.
    pub fn leave_time_for_polling(&self, workers: &[usize]) -> Result<(), CpusShort> {
        let own: HashSet<_> = workers.iter().collect();
        match () {
            () if self.quota.is_some() => Err(CpusShort::Quota),
            () if own.len() < workers.len() => Err(CpusShort::SharedByWorkers),
            () if own.len() >= self.online => Err(CpusShort::NoneLeft),
            () => Ok(()),
        }
    }
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
        let usable = |quota| Usable { cpus: vec![0, 1, 2, 3], quota, online: 4 };
        assert_eq!([None, Some(2), Some(9)].map(|quota| usable(quota).workers(4)), [4, 2, 4]);
    }

    #[test]
    fn no_time_is_left_for_polling_where_cpus_are_short() {
        use CpusShort::{NoneLeft, Quota, SharedByWorkers};
        for (cpus, quota, workers, expected) in [
            (&[0, 1, 2, 3][..], None, &[0, 1, 2][..], Ok(())),
            (&[2, 3], None, &[2, 3], Ok(())), // of four: the other two are left for clients
            (&[0, 1, 2, 3], None, &[0, 1, 2, 3], Err(NoneLeft)),
            (&[0, 1, 2, 3], None, &[1, 1], Err(SharedByWorkers)),
            (&[0, 1, 2, 3], Some(4), &[0, 1], Err(Quota)),
        ] {
            let usable = Usable { cpus: cpus.to_vec(), quota, online: 4 };
            assert_eq!(usable.leave_time_for_polling(workers), expected, "{cpus:?} {workers:?}");
        }
        let usable = Usable { cpus: vec![0], quota: None, online: 1 };
        assert_eq!(usable.leave_time_for_polling(&[0]), Err(NoneLeft));
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
    fn this_process_may_use_a_cpu() {
        let usable = Usable::find().unwrap();
        assert!(!usable.cpus.is_empty() && usable.online >= usable.cpus.len(), "{usable:?}");
    }
}
