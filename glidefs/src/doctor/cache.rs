//! The directory of the cache, its file system and its disk.
//!
//! Owns the judgement. Does not own the measurement (`worker/engine/probe`), nor the content of the cache.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::finding::Finding;

/// A FLUSH that takes longer than this is worth a note.
const SYNC_NOTED: Duration = Duration::from_millis(5);
/// A FLUSH that takes longer than this makes databases slow.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// File systems that the cache was made for.
const GOOD: [&str; 2] = ["XFS", "ext4"];
/// File systems whose data is not on a local disk, or is gone with the host's power.
const UNFIT: [(&str, &str); 3] = [
    ("tmpfs", "acknowledged data that is not in the store is gone when the host stops"),
    ("overlayfs", "the directory is a layer of a container, and is removed with the container"),
    ("NFS", "every write waits for the network, and a lock of the directory may not hold"),
];

/// The directory, and the wants of the configuration.
#[derive(Clone, Debug)]
pub(super) struct CacheFacts {
    pub directory: PathBuf,
    /// Whether this command may use the directory.
    pub is_root: bool,
    pub state: Directory,
    /// Name of the file system.
    pub file_system: String,
    /// The measurement in the directory; `None` where nothing could be measured.
    pub measured: Option<Measured>,
    /// Space that the file system has for others than root, bytes.
    pub free_bytes: u64,
    /// Space that the cache has taken already, bytes.
    pub taken_bytes: u64,
    /// `cache.size`, and `cache.clean_size` where there is a store.
    pub wanted_bytes: u64,
    pub disk: Disk,
}

/// The directory of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Directory {
    Missing,
    SomethingElse,
    /// The directory could not be looked at: the kernel's error.
    Unreadable(io::ErrorKind, String),
    /// The permissions of the directory.
    Found {
        mode: u32,
    },
}

/// The measurement of appends: time of an append with a sync, or why there is none.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub buffered: Result<Duration, Refusal>,
    pub direct: Result<Duration, Refusal>,
    /// The way that was chosen, or why the configured way does not work.
    pub engine: Result<String, String>,
}

/// The kernel's error of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub kind: io::ErrorKind,
    pub text: String,
}

impl Refusal {
    pub fn of(error: &io::Error) -> Self {
        Self { kind: error.kind(), text: error.to_string() }
    }
}

impl Measured {
    /// The measurement of a directory in which nothing can be made.
    pub fn refused(refusal: &Refusal) -> Self {
        Self { buffered: Err(refusal.clone()), direct: Err(refusal.clone()), engine: Ok(String::new()) }
    }
}

/// The disk under the file system.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// Names of the block devices, from the file system's down; empty where the kernel does not tell.
    pub devices: Vec<String>,
    pub rotates: bool,
    /// Whether one of the devices is an export of this cache.
    pub is_ours: bool,
}

/// All findings about the cache.
pub(super) fn check(facts: &CacheFacts) -> Vec<Finding> {
    let mut findings = vec![directory(facts)];
    if matches!(facts.state, Directory::Found { .. }) {
        findings.extend([
            file_system(facts),
            engine(facts),
            direct(facts),
            sync(facts),
            space(facts),
            disk(facts),
        ]);
    }
    findings
}

fn directory(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache directory";
    let path = facts.directory.display();
    let why = "the daemon does not start without the directory";
    match &facts.state {
        Directory::Missing => Finding::failure(
            CHECK,
            format!("there is no {path}"),
            why,
            format!("install -d -m 700 {path}, on a local SSD; or mount its file system; or set [cache] dir"),
        ),
        Directory::SomethingElse => {
            Finding::failure(CHECK, format!("{path} is no directory"), why, "set [cache] dir to a directory")
        }
        Directory::Unreadable(io::ErrorKind::PermissionDenied, error) if !facts.is_root => Finding::note(
            CHECK,
            format!("{path}: {error}"),
            "the directory is for root only, and nothing more is known about the cache",
            "sudo glidefs doctor",
        ),
        Directory::Unreadable(_, error) => Finding::failure(
            CHECK,
            format!("{path}: {error}"),
            why,
            "dmesg; then mend the disk or the file system",
        ),
        Directory::Found { mode } if mode & 0o077 != 0 => Finding::note(
            CHECK,
            format!("{path} has mode {:04o}", mode & 0o7777),
            "other users of this host may look at the files with the data of all exports",
            format!("chmod 700 {path}"),
        ),
        Directory::Found { .. } => Finding::ok(CHECK, path.to_string()),
    }
}

fn file_system(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache file system";
    let name = facts.file_system.as_str();
    if let Some((_, why)) = UNFIT.iter().find(|(unfit, _)| *unfit == name) {
        return Finding::warning(
            CHECK,
            name,
            *why,
            "set [cache] dir to a directory with XFS or ext4 on a local SSD",
        );
    }
    if GOOD.contains(&name) {
        return Finding::ok(CHECK, name);
    }
    Finding::note(
        CHECK,
        name,
        "the cache was made for XFS and ext4, and tried there; copy-on-write takes space and time for each rewrite",
        "mkfs.xfs on a local SSD, and set [cache] dir to a directory there",
    )
}

fn engine(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache engine";
    let refusal = match &facts.measured {
        None => return Finding::note(CHECK, "not measured", "no ring could be set up", "see io_uring"),
        Some(Measured { engine: Err(error), .. }) => {
            return Finding::failure(CHECK, error, "the daemon does not start", "[cache] engine = \"auto\"");
        }
        Some(Measured { engine: Ok(name), buffered: Ok(_), .. }) => return Finding::ok(CHECK, name),
        Some(Measured { buffered: Err(refusal), .. }) => refusal,
    };
    let found = format!("not measured: {}", refusal.text);
    match refusal.kind {
        io::ErrorKind::TimedOut => Finding::note(
            CHECK,
            found,
            "the daemon starts, and appends through the page cache; FLUSHes take seconds",
            "iostat -x shows whether others use the disk",
        ),
        io::ErrorKind::PermissionDenied if !facts.is_root => {
            Finding::note(CHECK, found, "only root writes there", "sudo glidefs doctor")
        }
        // Another doctor had the lock, or has just removed the directory.
        io::ErrorKind::WouldBlock | io::ErrorKind::NotFound => {
            Finding::note(CHECK, found, "another glidefs doctor measures", "glidefs doctor, a moment later")
        }
        _ => Finding::failure(
            CHECK,
            refusal.text.clone(),
            "the daemon cannot append to the log there",
            "make room, mend the file system, or mount it writable",
        ),
    }
}

fn direct(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache O_DIRECT";
    match facts.measured.as_ref().map(|measured| &measured.direct) {
        Some(Ok(time)) => Finding::ok(CHECK, format!("works; {} an append with a sync", millis(*time))),
        Some(Err(refusal))
            if matches!(refusal.kind, io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Finding::warning(
                CHECK,
                &refusal.text,
                "a write whose FLUSH is expected cannot go past the page cache, so each FLUSH is a sync of its own",
                "set [cache] dir to a directory with XFS or ext4 on a local SSD",
            )
        }
        Some(Err(_)) | None => unmeasured(CHECK),
    }
}

/// The finding of a check that needs the measurement, where there is none.
fn unmeasured(check: &'static str) -> Finding {
    Finding::note(check, "not measured", "nothing could be written, or not in time", "see cache engine")
}

fn sync(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache sync";
    let Some(Ok(time)) = facts.measured.as_ref().map(|measured| &measured.buffered) else {
        return unmeasured(CHECK);
    };
    let found = format!("{} an append with a sync", millis(*time));
    let why = "each FLUSH of a guest takes this time at least";
    let mend = "use a drive with power-loss protection, which syncs in microseconds; iostat -x shows whether others use the disk";
    if *time > SYNC_SLOW {
        return Finding::warning(CHECK, found, why, mend);
    }
    if *time > SYNC_NOTED {
        return Finding::note(CHECK, found, why, mend);
    }
    Finding::ok(CHECK, found)
}

fn space(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache space";
    let has = facts.free_bytes.saturating_add(facts.taken_bytes);
    let found = format!("room for {}, and the sizes add up to {}", rounded(has), rounded(facts.wanted_bytes));
    let mend = "make room, move the cache to a larger file system, or lower [cache] size or clean_size";
    if has < facts.wanted_bytes {
        let why = "the log cannot grow to its size: when the file system is full, writes wait as if the cache were full";
        return Finding::warning(CHECK, found, why, mend);
    }
    if has < facts.wanted_bytes.saturating_add(facts.wanted_bytes / 20) {
        let why = "the catalog and the checkpoint need room as well: 5 % beyond the sizes";
        return Finding::note(CHECK, found, why, mend);
    }
    Finding::ok(CHECK, found)
}

fn disk(facts: &CacheFacts) -> Finding {
    const CHECK: &str = "cache disk";
    let devices = facts.disk.devices.join(" on ");
    if facts.disk.is_ours {
        return Finding::failure(
            CHECK,
            devices,
            "the cache lies on a device of one of its own exports: the daemon waits for itself",
            "set [cache] dir to a directory on a local disk",
        );
    }
    if facts.disk.devices.is_empty() {
        let why =
            "the kernel shows no block device under the file system, so nothing is known about the disk";
        return Finding::note(CHECK, "not known", why, "df the directory, and look at the disk by hand");
    }
    if facts.disk.rotates {
        let why = "a disk that rotates has a hundredth of the operations a second of an SSD; a virtual disk may say so without rotating";
        return Finding::note(
            CHECK,
            format!("{devices}, which says that it rotates"),
            why,
            "set [cache] dir to a directory on a local SSD",
        );
    }
    Finding::ok(CHECK, devices)
}

/// A size in whole GiB, or in MiB where GiB would be too coarse.
fn rounded(bytes: u64) -> String {
    if bytes >= 10 << 30 { format!("{} GiB", bytes >> 30) } else { format!("{} MiB", bytes >> 20) }
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{self, Failure, Note, Ok, Warning};
    use super::*;

    fn measured() -> Measured {
        let time = Duration::from_micros(300);
        Measured { buffered: Result::Ok(time), direct: Result::Ok(time), engine: Result::Ok("pwrite".into()) }
    }

    fn facts() -> CacheFacts {
        CacheFacts {
            directory: "/var/lib/glidefs".into(),
            is_root: true,
            state: Directory::Found { mode: 0o40700 },
            file_system: "XFS".into(),
            measured: Some(measured()),
            free_bytes: 30 << 30,
            taken_bytes: 1 << 30,
            wanted_bytes: 20 << 30,
            disk: Disk { devices: vec!["dm-0".into(), "nvme0n1".into()], ..Disk::default() },
        }
    }

    fn verdict(facts: &CacheFacts, check_name: &str) -> Verdict {
        check(facts).into_iter().find(|finding| finding.check == check_name).unwrap().verdict
    }

    #[test]
    fn a_cache_on_a_fast_local_disk_is_well() {
        assert!(check(&facts()).iter().all(|finding| finding.verdict == Ok), "{:?}", check(&facts()));
        assert_eq!(disk(&facts()).found, "dm-0 on nvme0n1");
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_a_failure_and_ends_the_checks_of_the_cache() {
        let unreadable = |kind| Directory::Unreadable(kind, "says".into());
        let forbidden = || unreadable(io::ErrorKind::PermissionDenied);
        let silent = unreadable(io::ErrorKind::TimedOut);
        for state in [Directory::Missing, Directory::SomethingElse, forbidden(), silent] {
            let findings = check(&CacheFacts { state: state.clone(), ..facts() });
            assert!(findings.len() == 1 && findings[0].verdict == Failure, "{state:?}");
        }
        let user = CacheFacts { state: forbidden(), is_root: false, ..facts() };
        assert_eq!(verdict(&user, "cache directory"), Note);
        let open = CacheFacts { state: Directory::Found { mode: 0o40755 }, ..facts() };
        assert_eq!(verdict(&open, "cache directory"), Note);
    }

    #[test]
    fn a_file_system_without_a_local_disk_is_a_warning_and_an_untried_one_a_note() {
        let with =
            |name: &str| verdict(&CacheFacts { file_system: name.into(), ..facts() }, "cache file system");
        assert_eq!(["tmpfs", "NFS", "overlayfs"].map(with), [Warning; 3]);
        assert_eq!(["btrfs", "file system 0x2fc12fc1", "ext4"].map(with), [Note, Note, Ok]);
    }

    /// The verdicts on a directory in which nothing can be made.
    fn refused(is_root: bool, kind: io::ErrorKind) -> [Verdict; 3] {
        let measured = Some(Measured::refused(&Refusal::of(&kind.into())));
        let facts = CacheFacts { is_root, measured, ..facts() };
        ["cache engine", "cache O_DIRECT", "cache sync"].map(|name| verdict(&facts, name))
    }

    #[test]
    fn a_directory_that_takes_no_append_is_a_failure() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
            assert_eq!(refused(true, kind), [Failure, Note, Note]);
        }
        assert_eq!(refused(true, io::ErrorKind::PermissionDenied), [Failure, Note, Note]);
        let engine = Err("cache.engine = \"ring-direct\" does not work".into());
        let facts = CacheFacts { measured: Some(Measured { engine, ..measured() }), ..facts() };
        assert_eq!(verdict(&facts, "cache engine"), Failure);
    }

    #[test]
    fn a_directory_that_could_not_be_measured_for_another_reason_is_a_note() {
        assert_eq!(refused(false, io::ErrorKind::PermissionDenied), [Note; 3]);
        assert_eq!(refused(true, io::ErrorKind::TimedOut), [Note; 3], "the daemon starts");
        assert_eq!(refused(true, io::ErrorKind::WouldBlock), [Note; 3], "another doctor");
        let unmeasured = CacheFacts { measured: None, ..facts() };
        assert_eq!(
            ["cache engine", "cache O_DIRECT", "cache sync"].map(|name| verdict(&unmeasured, name)),
            [Note; 3]
        );
    }

    #[test]
    fn writes_that_cannot_go_past_the_page_cache_are_a_warning() {
        let direct = Err(Refusal::of(&io::ErrorKind::InvalidInput.into()));
        let without = Measured { direct, ..measured() };
        assert_eq!(verdict(&CacheFacts { measured: Some(without), ..facts() }, "cache O_DIRECT"), Warning);
    }

    #[test]
    fn a_slow_sync_is_a_note_and_a_very_slow_one_a_warning() {
        let with = |millis| {
            let buffered = Result::Ok(Duration::from_millis(millis));
            verdict(
                &CacheFacts { measured: Some(Measured { buffered, ..measured() }), ..facts() },
                "cache sync",
            )
        };
        assert_eq!([with(5), with(6), with(21)], [Ok, Note, Warning]);
    }

    #[test]
    fn a_file_system_smaller_than_the_cache_is_a_warning_and_one_without_reserve_a_note() {
        let with =
            |free_gib: u64| verdict(&CacheFacts { free_bytes: free_gib << 30, ..facts() }, "cache space");
        assert_eq!([with(18), with(19), with(20)], [Warning, Note, Ok]);
    }

    #[test]
    fn a_cache_on_a_device_of_its_own_is_a_failure_and_one_on_a_disk_that_rotates_a_note() {
        let with = |devices: &[&str], rotates, is_ours| {
            let devices = devices.iter().map(|&name| name.into()).collect();
            verdict(&CacheFacts { disk: Disk { devices, rotates, is_ours }, ..facts() }, "cache disk")
        };
        assert_eq!(with(&["loop0", "ublkb3"], false, true), Failure);
        assert_eq!(with(&["ublkb3"], false, false), Ok, "another server's");
        assert_eq!(with(&["sda1", "sda"], true, false), Note);
        assert_eq!(with(&[], false, false), Note);
    }
}
