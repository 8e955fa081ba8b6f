//! Facts of the daemon's process, or of this command.

use std::fs;
use std::path::{Path, PathBuf};

use super::daemon::Daemon;
use crate::config::Config;
use crate::doctor::process::{Namespace, ProcessFacts, Whose};
use crate::units::REQUEST_BYTES_MAX;
use crate::worker::capabilities::Capabilities;
use crate::worker::cpus::quota_of;
use crate::worker::ring::{Options, Ring};

/// Where the unit of systemd may be.
const UNITS: [&str; 4] = [
    "/etc/systemd/system/glidefs.service",
    "/run/systemd/system/glidefs.service",
    "/usr/lib/systemd/system/glidefs.service",
    "/lib/systemd/system/glidefs.service",
];

/// The facts of `daemon`, or of this command, and the wants of `config`.
pub(super) fn gather(config: &Config, daemon: Option<&Daemon>) -> ProcessFacts {
    let pid = daemon.map(|daemon| daemon.pid);
    let whose = match pid {
        Some(pid) => Whose::Daemon(pid),
        None if UNITS.iter().any(|unit| Path::new(unit).exists()) => Whose::CommandBesideUnit,
        None => Whose::Command,
    };
    let folder = pid.map_or_else(|| PathBuf::from("/proc/self"), |pid| PathBuf::from(format!("/proc/{pid}")));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let limits = read("limits");
    let arenas = config.buffers.slots_per_worker.saturating_mul(REQUEST_BYTES_MAX);
    let workers = daemon.map(|daemon| daemon.workers).filter(|workers| *workers > 0);
    let workers = workers.unwrap_or(config.worker_cpus.len());
    let arenas = (arenas as u64).saturating_mul(workers as u64);
    let ring = Ring::<()>::new(&Options { submissions: 8, completions: 8, ..Options::default() });
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    ProcessFacts {
        whose,
        is_root: super::is_root(),
        capabilities: Capabilities::in_status(&read("status")),
        has_group: config.api.group.is_some(),
        ring: ring.map(drop).map_err(|error| error.to_string()),
        ring_disabled: disabled.and_then(|text| text.trim().parse().ok()),
        locked_bytes_max: hard_limit(&limits, "Max locked memory"),
        locked_bytes_wanted: arenas.saturating_add(config.cache.mapped_max.0),
        descriptors_max: hard_limit(&limits, "Max open files"),
        exports_max: config.exports.max,
        quota: quota_of(&read("cgroup")),
        workers,
        namespace: pid.and_then(|_| namespace(&folder, Path::new("/proc/1"))),
    }
}

/// The hard limit of `name` in the text of `/proc/PID/limits`; `None` for no limit, or no such line.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The mount namespace of the process in folder `process`, beside the one of the host's first process.
fn namespace(process: &Path, first: &Path) -> Option<Namespace> {
    let of = |folder: &Path| fs::read_link(folder.join("ns/mnt")).ok();
    let is_hosts = of(process)? == of(first)?;
    let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
    Some(Namespace { is_hosts, follows_host: is_hosts || root_follows(&mounts)? })
}

/// Whether the mount on `/` in a text like `/proc/PID/mountinfo` gets the changes of another one.
fn root_follows(mounts: &str) -> Option<bool> {
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))?;
    let options = root.split(' ').skip(6).take_while(|option| *option != "-");
    Some(options.into_iter().any(|option| option.starts_with("master:") || option.starts_with("shared:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                          Max open files            1024                 524288               files     \n\
                          Max locked memory         8388608              unlimited            bytes     \n";

    #[test]
    fn the_hard_limit_is_read_and_unlimited_is_no_limit() {
        assert_eq!(hard_limit(LIMITS, "Max open files"), Some(524_288));
        assert_eq!(hard_limit(LIMITS, "Max locked memory"), None);
        assert_eq!(hard_limit(LIMITS, "Max processes"), None);
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
        let of = |path: &Path| namespace(path, &first).unwrap();
        assert_eq!(of(&same), Namespace { is_hosts: true, follows_host: true });
        assert_eq!(of(&other), Namespace { is_hosts: false, follows_host: true });
        assert_eq!(namespace(&folder.path().join("4"), &first), None, "the process has ended");
    }

    #[test]
    fn the_workers_are_those_that_the_daemon_has_made() {
        let daemon = Daemon { pid: 1, variables: None, usable: None, workers: 4 };
        let config = Config { worker_cpus: vec![0, 1], ..Config::default() };
        assert_eq!(gather(&config, Some(&daemon)).workers, 4);
    }

    #[test]
    fn without_a_daemon_the_figures_are_those_of_this_process() {
        let facts = gather(&Config::default(), None);
        assert_ne!(facts.whose, Whose::Daemon(0));
        assert_eq!(facts.namespace, None);
    }
}
