//! The daemon's process in the kernel: capabilities, rings, limits, CPU time, the mount namespace.
//!
//! While no daemon runs, the figures are those of this command. Invariant: where the unit of systemd is installed, a limit of this command
//! is a note at most, because the unit sets the daemon's. So is a limit of a command that is not root's.

use std::fs;
use std::path::{Path, PathBuf};

use super::daemon::Host;
use super::{Finding, Verdict, failure, for_root, note, ok, warning};
use crate::units::REQUEST_BYTES_MAX;
use crate::worker::capabilities::{CAP_CHOWN, CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Capabilities};
use crate::worker::cpus::quota_of;
use crate::worker::ring::{Options, Ring};

/// Descriptors of a daemon without a device, rounded up: rings, the log, the API.
const DESCRIPTORS_BESIDE: u64 = 1024;
/// Where the unit of systemd may be.
const UNITS: [&str; 4] = [
    "/etc/systemd/system/glidefs.service",
    "/run/systemd/system/glidefs.service",
    "/usr/lib/systemd/system/glidefs.service",
    "/lib/systemd/system/glidefs.service",
];

/// Rights and limits of the daemon's process, or of this command.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let pid = host.daemon.as_ref().map(|daemon| daemon.pid);
    let has_unit = UNITS.iter().any(|unit| Path::new(unit).exists());
    let (whose, most) = match pid {
        Some(pid) => (format!("daemon, process {pid}"), Verdict::Failure),
        None if has_unit => ("this command; glidefs.service sets its own".into(), Verdict::Note),
        None if host.is_root => ("this command".into(), Verdict::Failure),
        None => ("this command".into(), Verdict::Note),
    };
    let folder = pid.map_or_else(|| PathBuf::from("/proc/self"), |pid| PathBuf::from(format!("/proc/{pid}")));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (has, limits, config) = (Capabilities::in_status(&read("status")), read("limits"), &host.config);
    let workers = host.daemon.as_ref().map_or(0, |daemon| daemon.workers);
    let workers = if workers > 0 { workers } else { config.worker_cpus.len() };
    let arenas = (config.buffers.slots_per_worker.saturating_mul(REQUEST_BYTES_MAX) as u64)
        .saturating_mul(workers as u64);
    let locked = hard_limit(&limits, "Max locked memory");
    let ring = Ring::<()>::new(&Options { submissions: 8, completions: 8, ..Options::default() });
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let disabled = disabled.and_then(|text| text.trim().parse().ok());
    let own = |name, mut finding: Finding| {
        finding.found = format!("{} ({whose})", finding.found);
        finding.at_most(most).named(name)
    };
    vec![
        own("capabilities", capabilities(has, config.api.group.is_some())),
        io_uring(ring.map(drop).map_err(|error| error.to_string()), disabled, host.is_root).named("io_uring"),
        own("locked memory", locked_memory(locked, arenas.saturating_add(config.cache.mapped_max.0), has)),
        own("descriptors", descriptors(hard_limit(&limits, "Max open files"), config.exports.max)),
        own("CPU quota", quota(quota_of(&read("cgroup")), workers)),
        match pid {
            Some(pid) => own("mount namespace", namespace(pid, namespace_of(&folder, Path::new("/proc/1")))),
            None => without_daemon(has_unit).named("mount namespace"),
        },
    ]
}

/// The hard limit of `name` in the text of `/proc/PID/limits`; `None` for no limit, or no such line.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn capabilities(has: Capabilities, has_group: bool) -> Finding {
    if !has.has(CAP_SYS_ADMIN) {
        return failure("no CAP_SYS_ADMIN")
            .why("the kernel makes ublk devices only for a process with CAP_SYS_ADMIN")
            .mend("run the daemon as root, by glidefs.service");
    }
    if !has.has(CAP_SYS_RESOURCE) {
        return warning("no CAP_SYS_RESOURCE")
            .why("without PR_SET_IO_FLUSHER the daemon may wait for memory that only its own devices can free: a deadlock")
            .mend("add CAP_SYS_RESOURCE to CapabilityBoundingSet= (systemctl edit glidefs)");
    }
    if has_group && !has.has(CAP_CHOWN) {
        return note("no CAP_CHOWN")
            .why("the socket can be given to [api] group only if the daemon is a member of the group")
            .mend("add CAP_CHOWN to CapabilityBoundingSet= (systemctl edit glidefs)");
    }
    ok("all that are needed")
}

fn io_uring(ring: Result<(), String>, disabled: Option<u32>, is_root: bool) -> Finding {
    let error = match ring {
        Ok(()) => return ok("a ring can be set up"),
        Err(error) if !is_root => return for_root(error),
        Err(error) => error,
    };
    let finding = match disabled {
        Some(setting @ 2..) => failure(format!("{error}; kernel.io_uring_disabled is {setting}")).mend(
            "sysctl -w kernel.io_uring_disabled=1, which is enough for root, and write the same into /etc/sysctl.d",
        ),
        _ => failure(error).mend(
            "let the container's seccomp profile pass io_uring_setup, or raise the limit on locked memory (ulimit -l unlimited)",
        ),
    };
    finding.why("each worker and each command to the ublk driver needs a ring, so the daemon does not start")
}

fn locked_memory(bytes_max: Option<u64>, wanted: u64, has: Capabilities) -> Finding {
    match bytes_max {
        Some(max) if max < wanted && !has.has(CAP_IPC_LOCK) => {
            let wanted = wanted.div_ceil(1 << 20);
            warning(format!("{} MiB at most", max >> 20))
                .why(format!("cache.mapped_max and the buffers of requests need {wanted} MiB: with less, READs and appends cost more"))
                .mend("LimitMEMLOCK=infinity (systemctl edit glidefs), or ulimit -l unlimited; or lower cache.mapped_max")
        }
        _ => ok("as much as wanted"),
    }
}

fn descriptors(max: Option<u64>, exports_max: usize) -> Finding {
    let wanted = (exports_max as u64).saturating_mul(2).saturating_add(DESCRIPTORS_BESIDE);
    match max {
        Some(max) if max < wanted => warning(format!("{max} at most"))
            .why(format!("a device needs one or two: {wanted} for [exports] max = {exports_max}"))
            .mend(
                "LimitNOFILE=1048576 (systemctl edit glidefs), or ulimit -Hn 1048576; or lower [exports] max",
            ),
        Some(max) => ok(format!("{max} at most")),
        None => ok("no limit"),
    }
}

fn quota(quota: Option<usize>, workers: usize) -> Finding {
    let Some(quota) = quota else { return ok("none") };
    let found = format!("{quota} whole CPUs for {workers} workers");
    if quota >= workers {
        return ok(found);
    }
    warning(found)
        .why("busy workers use the quota up, and then the kernel stops every thread of the daemon for the rest of the period")
        .mend(format!("CPUQuota= of at least {}% (systemctl edit glidefs), or lower [workers] count", workers * 100))
}

/// The mount namespace of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Namespace {
    is_hosts: bool,
    /// Whether an unmount on the host is an unmount in the namespace.
    follows_host: bool,
}

/// The mount namespace of the process in folder `process`, beside that of the host's first process.
fn namespace_of(process: &Path, first: &Path) -> Option<Namespace> {
    let of = |folder: &Path| fs::read_link(folder.join("ns/mnt")).ok();
    let is_hosts = of(process)? == of(first)?;
    let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
    Some(Namespace { is_hosts, follows_host: is_hosts || root_follows(&mounts)? })
}

/// Whether the mount on `/` in a text like `/proc/PID/mountinfo` gets the changes of another one.
fn root_follows(mounts: &str) -> Option<bool> {
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))?;
    let mut options = root.split(' ').skip(6).take_while(|option| *option != "-");
    Some(options.any(|option| option.starts_with("master:") || option.starts_with("shared:")))
}

const BY_UNIT: &str = "run the daemon by glidefs.service (PrivateMounts=yes, MountFlags=slave)";

fn namespace(pid: i32, namespace: Option<Namespace>) -> Finding {
    match namespace {
        None => for_root("not known"),
        Some(_) if pid == 1 => note("not known: the daemon is process 1 of a container, and so is this command")
            .why("a container that shares the mounts of the host can keep file systems on the devices busy")
            .mend("nothing, if the container has no file system on a device of glidefs"),
        Some(Namespace { is_hosts: true, .. }) => warning("the host's own")
            .why("a file system on one of its devices is mounted for the daemon too: the daemon can keep the file system busy, and wait for itself")
            .mend(BY_UNIT),
        Some(Namespace { follows_host: false, .. }) => warning("its own, apart from the host's")
            .why("an unmount on the host does not reach the daemon, so file systems on its devices stay in use")
            .mend(BY_UNIT),
        Some(_) => ok("its own, which follows the host's"),
    }
}

fn without_daemon(has_unit: bool) -> Finding {
    if has_unit {
        return ok("no daemon runs; glidefs.service makes one");
    }
    note("no daemon was found")
        .why("a daemon without glidefs.service shares the mounts of the host, and can wait for itself")
        .mend(BY_UNIT)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Failure, Note, Ok, Warning};
    use super::*;

    #[test]
    fn each_capability_that_is_missing_has_its_own_weight() {
        let all = 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE | 1 << CAP_CHOWN;
        let without = |number: u32| capabilities(Capabilities(all & !(1 << number)), true).verdict;
        assert_eq!([CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CAP_CHOWN].map(without), [Failure, Warning, Note]);
        assert_eq!(capabilities(Capabilities(all & !(1 << CAP_CHOWN)), false).verdict, Ok);
        assert_eq!(capabilities(Capabilities(all), true).verdict, Ok);
    }

    #[test]
    fn a_kernel_that_gives_no_ring_is_a_failure_with_the_way_out() {
        let with = |is_root, disabled| io_uring(Err("not permitted".into()), disabled, is_root);
        let disabled = with(true, Some(2));
        assert!(disabled.verdict == Failure && disabled.mend.unwrap().contains("io_uring_disabled=1"));
        for setting in [Some(0), None] {
            assert!(with(true, setting).mend.unwrap().contains("seccomp"));
        }
        assert_eq!(with(false, Some(1)).verdict, Note, "root may have a ring");
        assert_eq!(io_uring(Result::Ok(()), None, true).verdict, Ok);
    }

    #[test]
    fn a_limit_on_locked_memory_counts_unless_the_process_may_lock_without_one() {
        let verdict = |max, has| locked_memory(max, 320 << 20, Capabilities(has)).verdict;
        assert_eq!(verdict(Some(8 << 20), 0), Warning);
        assert_eq!(verdict(Some(8 << 20), 1 << CAP_IPC_LOCK), Ok);
        assert_eq!([Some(320 << 20), None].map(|max| verdict(max, 0)), [Ok; 2]);
    }

    #[test]
    fn too_few_descriptors_and_more_workers_than_the_quota_has_cpus_are_warnings() {
        let verdict = |max, exports_max| descriptors(Some(max), exports_max).verdict;
        assert_eq!([verdict(4096, 20_000), verdict(4096, 1000), verdict(41_024, 20_000)], [Warning, Ok, Ok]);
        assert_eq!([Some(3), Some(4), None].map(|cpus| quota(cpus, 4).verdict), [Warning, Ok, Ok]);
    }

    #[test]
    fn without_a_daemon_the_figures_are_those_of_this_command_and_weigh_less_for_other_users() {
        for (is_root, most) in [(true, Failure), (false, Note)] {
            let findings = check(&Host { is_root, ..Host::example() });
            assert_eq!(findings.len(), 6);
            assert!(findings[0].found.contains("(this command"), "{findings:?}");
            assert!(findings.iter().all(|finding| finding.verdict <= most), "{findings:?}");
        }
    }

    #[test]
    fn a_daemon_among_the_hosts_mounts_or_cut_off_from_these_is_a_warning() {
        for (is_hosts, follows_host) in [(true, true), (true, false), (false, false)] {
            let found = Some(Namespace { is_hosts, follows_host });
            assert_eq!([12, 1].map(|pid| namespace(pid, found).verdict), [Warning, Note]);
        }
        let apart = Some(Namespace { is_hosts: false, follows_host: true });
        assert_eq!([apart, None].map(|found| namespace(12, found).verdict), [Ok, Note]);
        assert_eq!([true, false].map(|has_unit| without_daemon(has_unit).verdict), [Ok, Note]);
    }

    #[test]
    fn the_hard_limit_is_read_and_unlimited_is_no_limit() {
        let limits = "Max open files            1024                 524288               files     \n\
                      Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(hard_limit(limits, "Max open files"), Some(524_288));
        assert_eq!(hard_limit(limits, "Max locked memory"), None);
        assert_eq!(hard_limit(limits, "Max processes"), None);
    }

    #[test]
    fn a_namespace_follows_the_host_where_its_root_has_a_master() {
        let root = |options: &str| format!("30 1 8:1 / / rw,relatime {options}- ext4 /dev/sda1 rw\n");
        let below = "31 30 8:2 / /srv rw shared:9 - xfs /dev/sdb rw\n";
        for (options, expected) in
            [("master:1 ", true), ("shared:2 master:1 ", true), ("", false), ("unbindable ", false)]
        {
            assert_eq!(root_follows(&format!("{}{below}", root(options))), Some(expected), "{options}");
        }
        assert_eq!(root_follows(below), None);
    }

    #[test]
    fn the_namespace_of_another_process_is_told_from_the_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let process = |name: &str, namespace: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join("ns")).unwrap();
            std::os::unix::fs::symlink(namespace, path.join("ns/mnt")).unwrap();
            fs::write(path.join("mountinfo"), "1 0 8:1 / / rw master:1 - ext4 /dev/sda1 rw\n").unwrap();
            path
        };
        let (first, same, other) =
            (process("1", "mnt:[1]"), process("2", "mnt:[1]"), process("3", "mnt:[3]"));
        let of = |path: &Path| namespace_of(path, &first);
        assert_eq!(of(&same), Some(Namespace { is_hosts: true, follows_host: true }));
        assert_eq!(of(&other), Some(Namespace { is_hosts: false, follows_host: true }));
        assert_eq!(of(&folder.path().join("4")), None, "the process has ended");
    }
}
