//! The rights of the daemon's process in the kernel: capabilities, rings, limits, CPU time, the mount namespace.
//!
//! Owns the judgement. While no daemon runs, the figures are those of this command. Invariant: where the unit of systemd is installed,
//! a limit of this command is a note at most, because the unit sets the limits of the daemon. So is a limit of a command that is not
//! root's.

use super::finding::{Finding, Verdict};
use crate::worker::capabilities::{CAP_CHOWN, CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Capabilities};

/// Descriptors of a daemon without a device, rounded up: rings, the log, the API.
const DESCRIPTORS_BESIDE: u64 = 1024;

/// The process, and the needs of the configuration.
#[derive(Clone, Debug)]
pub(super) struct ProcessFacts {
    pub whose: Whose,
    /// Whether this command has the rights of root, as the daemon has.
    pub is_root: bool,
    pub capabilities: Capabilities,
    /// Whether `[api] group` is set.
    pub has_group: bool,
    /// Whether a ring could be set up by this command; the kernel's error otherwise.
    pub ring: Result<(), String>,
    /// The setting `kernel.io_uring_disabled`; `None` on kernels without the setting.
    pub ring_disabled: Option<u32>,
    /// Most locked memory, bytes; `None` for no limit.
    pub locked_bytes_max: Option<u64>,
    /// Memory to be locked: `cache.mapped_max` and the arenas.
    pub locked_bytes_wanted: u64,
    /// Most descriptors; `None` for no limit.
    pub descriptors_max: Option<u64>,
    /// Most exports, and so most devices.
    pub exports_max: usize,
    /// Whole CPUs of the quota.
    pub quota: Option<usize>,
    pub workers: usize,
    /// `None` while no daemon runs, or where the kernel does not tell.
    pub namespace: Option<Namespace>,
}

/// Whose figures the facts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The daemon with this process id.
    Daemon(i32),
    /// This command; the unit of the daemon is installed.
    CommandBesideUnit,
    /// This command; the daemon has no unit.
    Command,
}

/// The mount namespace of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    /// Whether the namespace is the host's.
    pub is_hosts: bool,
    /// Whether an unmount on the host is an unmount in the namespace.
    pub follows_host: bool,
}

/// All findings about the process.
pub(super) fn check(facts: &ProcessFacts) -> Vec<Finding> {
    let says_little = match facts.whose {
        Whose::Daemon(_) => false,
        Whose::CommandBesideUnit => true,
        Whose::Command => !facts.is_root,
    };
    let most = if says_little { Verdict::Note } else { Verdict::Failure };
    vec![
        capabilities(facts).at_most(most),
        io_uring(facts),
        locked_memory(facts).at_most(most),
        descriptors(facts).at_most(most),
        quota(facts).at_most(most),
        namespace(facts),
    ]
}

impl ProcessFacts {
    /// `figure`, with the owner of the figures.
    fn found(&self, figure: &str) -> String {
        match self.whose {
            Whose::Daemon(pid) => format!("{figure} (daemon, process {pid})"),
            Whose::CommandBesideUnit => format!("{figure} (this command; glidefs.service sets its own)"),
            Whose::Command => format!("{figure} (this command)"),
        }
    }
}

fn capabilities(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "capabilities";
    let lacks = |number| !facts.capabilities.has(number);
    if lacks(CAP_SYS_ADMIN) {
        let why = "the kernel makes ublk devices only for a process with CAP_SYS_ADMIN";
        let mend = "run the daemon as root, by glidefs.service";
        return Finding::failure(CHECK, facts.found("no CAP_SYS_ADMIN"), why, mend);
    }
    if lacks(CAP_SYS_RESOURCE) {
        let why = "without PR_SET_IO_FLUSHER the daemon may wait for memory that only its own devices can free: a deadlock";
        let mend = "add CAP_SYS_RESOURCE to CapabilityBoundingSet= (systemctl edit glidefs)";
        return Finding::warning(CHECK, facts.found("no CAP_SYS_RESOURCE"), why, mend);
    }
    if facts.has_group && lacks(CAP_CHOWN) {
        let why = "the socket can be given to [api] group only if the daemon is a member of the group";
        let mend = "add CAP_CHOWN to CapabilityBoundingSet= (systemctl edit glidefs)";
        return Finding::note(CHECK, facts.found("no CAP_CHOWN"), why, mend);
    }
    Finding::ok(CHECK, facts.found("all that are needed"))
}

fn io_uring(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "io_uring";
    let why = "each worker and each command to the ublk driver needs a ring, so the daemon does not start";
    match (&facts.ring, facts.ring_disabled) {
        (Ok(()), _) => Finding::ok(CHECK, "a ring can be set up"),
        (Err(error), _) if !facts.is_root => Finding::note(
            CHECK,
            error,
            "root, as which the daemon runs, may have more",
            "sudo glidefs doctor",
        ),
        (Err(error), Some(setting @ 2..)) => Finding::failure(
            CHECK,
            format!("{error}; kernel.io_uring_disabled is {setting}"),
            why,
            "sysctl -w kernel.io_uring_disabled=1, which is enough for root, and write the same into /etc/sysctl.d",
        ),
        (Err(error), _) => Finding::failure(
            CHECK,
            error,
            why,
            "let the container's seccomp profile pass io_uring_setup, or raise the limit on locked memory (ulimit -l unlimited)",
        ),
    }
}

fn locked_memory(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "locked memory";
    let wanted = facts.locked_bytes_wanted;
    match facts.locked_bytes_max {
        Some(max) if max < wanted && !facts.capabilities.has(CAP_IPC_LOCK) => Finding::warning(
            CHECK,
            facts.found(&format!("{} MiB at most", max >> 20)),
            format!(
                "cache.mapped_max and the buffers of requests need {} MiB: with less, READs and appends cost more",
                wanted.div_ceil(1 << 20)
            ),
            "LimitMEMLOCK=infinity (systemctl edit glidefs), or ulimit -l unlimited; or lower cache.mapped_max",
        ),
        Some(_) | None => Finding::ok(CHECK, facts.found("as much as wanted")),
    }
}

fn descriptors(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "descriptors";
    let wanted = (facts.exports_max as u64).saturating_mul(2).saturating_add(DESCRIPTORS_BESIDE);
    match facts.descriptors_max {
        Some(max) if max < wanted => Finding::warning(
            CHECK,
            facts.found(&format!("{max} at most")),
            format!("a device needs one or two: {wanted} for [exports] max = {}", facts.exports_max),
            "LimitNOFILE=1048576 (systemctl edit glidefs), or ulimit -Hn 1048576; or lower [exports] max",
        ),
        Some(max) => Finding::ok(CHECK, facts.found(&format!("{max} at most"))),
        None => Finding::ok(CHECK, facts.found("no limit")),
    }
}

fn quota(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "CPU quota";
    match facts.quota {
        Some(quota) if quota < facts.workers => Finding::warning(
            CHECK,
            facts.found(&format!("{quota} whole CPUs for {} workers", facts.workers)),
            "busy workers use the quota up, and then the kernel stops every thread of the daemon for the rest of the period",
            format!(
                "CPUQuota= of at least {}% (systemctl edit glidefs), or lower [workers] count",
                facts.workers * 100
            ),
        ),
        Some(quota) => {
            Finding::ok(CHECK, facts.found(&format!("{quota} whole CPUs for {} workers", facts.workers)))
        }
        None => Finding::ok(CHECK, facts.found("none")),
    }
}

fn namespace(facts: &ProcessFacts) -> Finding {
    const CHECK: &str = "mount namespace";
    let mend = "run the daemon by glidefs.service (PrivateMounts=yes, MountFlags=slave)";
    match (facts.namespace, facts.whose) {
        (Some(_), Whose::Daemon(1)) => Finding::note(
            CHECK,
            "not known: the daemon is process 1 of a container, and so is this command",
            "a container that shares the mounts of the host can keep file systems on the devices busy",
            "nothing, if the container has no file system on a device of glidefs",
        ),
        (Some(Namespace { is_hosts: true, .. }), _) => Finding::warning(
            CHECK,
            facts.found("the host's own"),
            "a file system on one of its devices is mounted for the daemon too: the daemon can keep the file system busy, and wait for itself",
            mend,
        ),
        (Some(Namespace { follows_host: false, .. }), _) => Finding::warning(
            CHECK,
            facts.found("its own, apart from the host's"),
            "an unmount on the host does not reach the daemon, so file systems on its devices stay in use",
            mend,
        ),
        (Some(_), _) => Finding::ok(CHECK, facts.found("its own, which follows the host's")),
        (None, Whose::Daemon(_)) => Finding::note(
            CHECK,
            facts.found("not known"),
            "this command may not look at the daemon",
            "sudo glidefs doctor",
        ),
        (None, Whose::CommandBesideUnit) => Finding::ok(CHECK, "no daemon runs; glidefs.service makes one"),
        (None, Whose::Command) => Finding::note(
            CHECK,
            "no daemon was found",
            "a daemon without glidefs.service shares the mounts of the host, and can wait for itself",
            mend,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Failure, Note, Ok, Warning};
    use super::*;

    fn facts() -> ProcessFacts {
        ProcessFacts {
            whose: Whose::Daemon(12),
            is_root: true,
            capabilities: Capabilities(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE | 1 << CAP_CHOWN),
            has_group: true,
            ring: Result::Ok(()),
            ring_disabled: Some(0),
            locked_bytes_max: None,
            locked_bytes_wanted: 320 << 20,
            descriptors_max: Some(1 << 20),
            exports_max: 20_000,
            quota: None,
            workers: 4,
            namespace: Some(Namespace { is_hosts: false, follows_host: true }),
        }
    }

    fn verdict(facts: &ProcessFacts, check_name: &str) -> Verdict {
        check(facts).into_iter().find(|finding| finding.check == check_name).unwrap().verdict
    }

    #[test]
    fn a_daemon_by_its_unit_is_well() {
        let findings = check(&facts());
        assert!(findings.iter().all(|finding| finding.verdict == Ok), "{findings:?}");
        assert!(findings[0].found.contains("process 12"));
    }

    #[test]
    fn each_capability_that_is_missing_has_its_own_weight() {
        let without = |number: u32| {
            let capabilities = Capabilities(facts().capabilities.0 & !(1 << number));
            verdict(&ProcessFacts { capabilities, ..facts() }, "capabilities")
        };
        assert_eq!([CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CAP_CHOWN].map(without), [Failure, Warning, Note]);
        let unused = Capabilities(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE);
        let without_group = ProcessFacts { capabilities: unused, has_group: false, ..facts() };
        assert_eq!(verdict(&without_group, "capabilities"), Ok);
    }

    #[test]
    fn a_kernel_that_gives_no_ring_is_a_failure_with_the_way_out() {
        let with = |is_root, ring_disabled| {
            let facts = ProcessFacts { is_root, ring: Err("not permitted".into()), ring_disabled, ..facts() };
            let finding = io_uring(&facts);
            (finding.verdict, finding.mend.unwrap())
        };
        let (verdict, mend) = with(true, Some(2));
        assert!(verdict == Failure && mend.starts_with("sysctl -w kernel.io_uring_disabled=1"), "{mend}");
        for disabled in [Some(0), None] {
            assert!(matches!(with(true, disabled), (Failure, mend) if mend.contains("seccomp")));
        }
        assert_eq!(with(false, Some(1)), (Note, "sudo glidefs doctor".into()), "root may have a ring");
    }

    #[test]
    fn a_limit_on_locked_memory_counts_unless_the_process_may_lock_without_one() {
        let low = ProcessFacts { locked_bytes_max: Some(8 << 20), ..facts() };
        assert_eq!(verdict(&low, "locked memory"), Warning);
        let capabilities = Capabilities(low.capabilities.0 | 1 << CAP_IPC_LOCK);
        assert_eq!(verdict(&ProcessFacts { capabilities, ..low }, "locked memory"), Ok);
        assert_eq!(
            verdict(&ProcessFacts { locked_bytes_max: Some(320 << 20), ..facts() }, "locked memory"),
            Ok
        );
    }

    #[test]
    fn too_few_descriptors_for_the_exports_are_a_warning() {
        let with = |max, exports_max| {
            verdict(&ProcessFacts { descriptors_max: Some(max), exports_max, ..facts() }, "descriptors")
        };
        assert_eq!([with(4096, 20_000), with(4096, 1000), with(41_024, 20_000)], [Warning, Ok, Ok]);
    }

    #[test]
    fn limits_of_this_command_are_a_note_beside_the_unit_and_count_without_one() {
        let with = |whose| {
            let facts = ProcessFacts { whose, descriptors_max: Some(1024), namespace: None, ..facts() };
            [verdict(&facts, "descriptors"), verdict(&facts, "mount namespace")]
        };
        assert_eq!(with(Whose::CommandBesideUnit), [Note, Ok]);
        assert_eq!(with(Whose::Command), [Warning, Note]);
        assert_eq!(with(Whose::Daemon(12)), [Warning, Note]);
        let user = ProcessFacts { whose: Whose::Command, is_root: false, ..facts() };
        let user = ProcessFacts { capabilities: Capabilities(0), quota: Some(1), ..user };
        assert_eq!(["capabilities", "CPU quota"].map(|name| verdict(&user, name)), [Note; 2]);
    }

    #[test]
    fn more_workers_than_the_quota_has_cpus_are_a_warning() {
        let with = |quota| verdict(&ProcessFacts { quota: Some(quota), ..facts() }, "CPU quota");
        assert_eq!([with(3), with(4)], [Warning, Ok]);
    }

    #[test]
    fn a_daemon_among_the_hosts_mounts_or_cut_off_from_these_is_a_warning() {
        for (is_hosts, follows_host) in [(true, true), (true, false), (false, false)] {
            let namespace = Some(Namespace { is_hosts, follows_host });
            assert_eq!(verdict(&ProcessFacts { namespace, ..facts() }, "mount namespace"), Warning);
            let contained = ProcessFacts { whose: Whose::Daemon(1), namespace, ..facts() };
            assert_eq!(verdict(&contained, "mount namespace"), Note);
        }
    }
}
