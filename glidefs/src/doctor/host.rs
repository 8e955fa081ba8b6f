//! The host around the daemon: rules of udev, NUMA nodes, the clock.
//!
//! Owns the judgement. Does not own the skew between this clock and the store's (`store`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::finding::Finding;

/// The rules that belong to this version.
const RULES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/60-glidefs.rules"));

/// The host, and the needs of the configuration.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    pub udev_runs: bool,
    /// The installed rules: path and text.
    pub rules: Option<(PathBuf, String)>,
    /// The NUMA node of each worker; `None` where the kernel knows no nodes.
    pub worker_nodes: Vec<Option<u64>>,
    /// The NUMA node of the disk under the cache.
    pub disk_node: Option<u64>,
    /// Whether the clock is kept by a time service; `None` where the kernel does not tell.
    pub clock_is_kept: Option<bool>,
    /// Whether the store signs requests with the time.
    pub has_remote_store: bool,
}

/// All findings about the host.
pub(super) fn check(facts: &HostFacts) -> Vec<Finding> {
    vec![udev(facts), numa(facts), clock(facts)]
}

fn udev(facts: &HostFacts) -> Finding {
    const CHECK: &str = "udev rules";
    const MEND: &str = "in the source of this version: install -m 644 systemd/60-glidefs.rules /etc/udev/rules.d/ && udevadm control --reload";
    match &facts.rules {
        _ if !facts.udev_runs => Finding::ok(CHECK, "no udev runs"),
        None => Finding::warning(
            CHECK,
            "60-glidefs.rules is not installed",
            "udev, blkid, LVM and MD open the devices: a probe waits while the daemon is away, and delays a removal; each device also \
             gets an I/O scheduler, which takes 30 KB; a new device waits for /dev/glidefs/NAME, up to 5 s once a minute",
            MEND,
        ),
        Some((path, text)) if text != RULES => Finding::note(
            CHECK,
            format!("{} differs from the rules of this version", path.display()),
            "rules of another version may let udev open the devices, or make no /dev/glidefs/NAME",
            MEND,
        ),
        Some((path, _)) => Finding::ok(CHECK, path.display().to_string()),
    }
}

fn numa(facts: &HostFacts) -> Finding {
    const CHECK: &str = "NUMA";
    let mut workers: BTreeMap<u64, usize> = BTreeMap::new();
    for node in facts.worker_nodes.iter().flatten() {
        *workers.entry(*node).or_default() += 1;
    }
    let nodes: Vec<String> = workers.iter().map(|(node, count)| format!("{count} on node {node}")).collect();
    let found = if nodes.is_empty() { "no nodes".into() } else { format!("workers: {}", nodes.join(", ")) };
    match facts.disk_node {
        Some(node) if !workers.is_empty() && !workers.contains_key(&node) => Finding::note(
            CHECK,
            format!("{found}; the disk of the cache is on node {node}"),
            "every append and every read of the log crosses the link between the nodes",
            format!("[workers] cpus = the list in /sys/devices/system/node/node{node}/cpulist"),
        ),
        Some(node) => Finding::ok(CHECK, format!("{found}; the disk of the cache is on node {node}")),
        None => Finding::ok(CHECK, found),
    }
}

fn clock(facts: &HostFacts) -> Finding {
    const CHECK: &str = "clock";
    const MEND: &str = "timedatectl set-ntp true, or install chrony; a chrony that runs needs the line rtcsync in its chrony.conf to tell the kernel";
    match facts.clock_is_kept {
        Some(true) => Finding::ok(CHECK, "kept by a time service"),
        Some(false) if facts.has_remote_store => Finding::warning(
            CHECK,
            "kept by no time service",
            "a store refuses requests whose time is a quarter of an hour off: then nothing is written back",
            MEND,
        ),
        Some(false) => Finding::note(
            CHECK,
            "kept by no time service",
            "times in the log and in snapshots may be wrong; no data depends on them",
            MEND,
        ),
        None => Finding::note(
            CHECK,
            "not known",
            "the kernel does not tell whether a time service runs",
            "timedatectl",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{self, Note, Ok, Warning};
    use super::*;

    fn facts() -> HostFacts {
        HostFacts {
            udev_runs: true,
            rules: Some(("/etc/udev/rules.d/60-glidefs.rules".into(), RULES.into())),
            worker_nodes: vec![Some(0), Some(0), Some(1)],
            disk_node: Some(1),
            clock_is_kept: Some(true),
            has_remote_store: true,
        }
    }

    fn verdict(facts: &HostFacts, check_name: &str) -> Verdict {
        check(facts).into_iter().find(|finding| finding.check == check_name).unwrap().verdict
    }

    #[test]
    fn a_host_as_installed_is_well() {
        assert!(check(&facts()).iter().all(|finding| finding.verdict == Ok), "{:?}", check(&facts()));
    }

    #[test]
    fn missing_rules_are_a_warning_where_udev_runs_and_other_rules_a_note() {
        let missing = HostFacts { rules: None, ..facts() };
        assert_eq!(verdict(&missing, "udev rules"), Warning);
        assert_eq!(verdict(&HostFacts { udev_runs: false, ..missing }, "udev rules"), Ok);
        let other = Some(("/x".into(), format!("{RULES}# mine\n")));
        assert_eq!(verdict(&HostFacts { rules: other, ..facts() }, "udev rules"), Note);
    }

    #[test]
    fn a_disk_on_a_node_without_workers_is_a_note() {
        assert_eq!(verdict(&HostFacts { disk_node: Some(2), ..facts() }, "NUMA"), Note);
        assert_eq!(verdict(&HostFacts { disk_node: None, ..facts() }, "NUMA"), Ok);
        let without_nodes = HostFacts { worker_nodes: vec![None; 4], ..facts() };
        assert_eq!(verdict(&without_nodes, "NUMA"), Ok);
        assert!(numa(&facts()).found.starts_with("workers: 2 on node 0, 1 on node 1"));
    }

    #[test]
    fn a_clock_that_nobody_keeps_counts_more_with_a_store_that_looks_at_the_time() {
        let free = HostFacts { clock_is_kept: Some(false), ..facts() };
        assert_eq!(verdict(&free, "clock"), Warning);
        assert_eq!(verdict(&HostFacts { has_remote_store: false, ..free }, "clock"), Note);
        assert_eq!(verdict(&HostFacts { clock_is_kept: None, ..facts() }, "clock"), Note);
    }
}
