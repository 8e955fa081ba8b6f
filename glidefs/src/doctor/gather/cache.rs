//! Facts of the cache: the directory, a measurement there, the space, the disk.
//!
//! The measurement is made in a directory of its own inside the cache's, so a daemon that starts meanwhile does not meet the files. The
//! directory is locked, so two measurements do not meet either; one that a killed command left is used and removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statfs::{self, statfs};
use nix::sys::statvfs::statvfs;

use super::patience::answer;
use crate::config::Config;
use crate::doctor::cache::{CacheFacts, Directory, Disk, Measured, Refusal};
use crate::observe::chain;
use crate::worker::engine::probe::{self, Probe, ProbeError};
use crate::worker::engine::{Appends, Engine};

/// The name of the directory for measurements.
const MEASUREMENT: &str = "doctor.tmp";
/// Devices below each other that are followed: more than any stack of devices has.
const DEPTH_MAX: usize = 16;

/// The facts, and the wants of `config`. `ours`: the paths of devices that the cache is behind.
pub(super) async fn gather(config: &Config, ours: Vec<String>) -> CacheFacts {
    let clean_bytes = if config.store.url.is_some() { config.cache.clean_size.0 } else { 0 };
    let unknown = CacheFacts {
        directory: config.cache.dir.clone(),
        is_root: super::is_root(),
        state: Directory::Missing,
        file_system: String::new(),
        measured: None,
        free_bytes: 0,
        taken_bytes: 0,
        wanted_bytes: config.cache.size.0.saturating_add(clean_bytes),
        disk: Disk::default(),
    };
    let (asked, wanted) = (unknown.clone(), config.cache.engine.wanted());
    match answer(move || look(asked, wanted, &ours)).await {
        Ok(facts) => facts,
        Err(silence) => {
            CacheFacts { state: Directory::Unreadable(io::ErrorKind::TimedOut, silence), ..unknown }
        }
    }
}

/// Looks at the directory, and completes `facts`.
fn look(facts: CacheFacts, wanted: Option<Engine>, ours: &[String]) -> CacheFacts {
    let directory = &facts.directory;
    let state = state(directory);
    if !matches!(state, Directory::Found { .. }) {
        return CacheFacts { state, ..facts };
    }
    let (mut free_bytes, mut taken_bytes) = (0, 0);
    if let Ok(figures) = statvfs(directory) {
        free_bytes = figures.blocks_available().saturating_mul(figures.fragment_size());
        taken_bytes = taken(directory).saturating_add(taken(&directory.join("segments")));
    }
    let disk = disk_of(directory);
    let is_ours = disk.devices.iter().any(|device| ours.contains(&format!("/dev/{device}")));
    CacheFacts {
        state,
        file_system: file_system(directory),
        measured: measure(directory, wanted),
        free_bytes,
        taken_bytes,
        disk: Disk { is_ours, ..disk },
        ..facts
    }
}

fn state(directory: &Path) -> Directory {
    let unreadable = |error: io::Error| Directory::Unreadable(error.kind(), error.to_string());
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => match fs::read_dir(directory) {
            Ok(_) => Directory::Found { mode: found.permissions().mode() },
            Err(error) => unreadable(error),
        },
        Ok(_) => Directory::SomethingElse,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Directory::Missing,
        Err(error) => unreadable(error),
    }
}

/// Space taken by the files in `directory`, without those in directories below.
fn taken(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let files = entries.filter_map(|entry| entry.ok()?.metadata().ok()).filter(fs::Metadata::is_file);
    files.map(|file| file.blocks().saturating_mul(512)).sum()
}

/// Measures appends on the file system of `directory`; `None` where no ring can be set up.
fn measure(directory: &Path, wanted: Option<Engine>) -> Option<Measured> {
    let inside = directory.join(MEASUREMENT);
    // The lock lasts as long as the file is open.
    let locked = make_and_lock(&inside);
    let probed = match &locked {
        Ok(_) => probe::run(&inside, wanted),
        Err(error) => return Some(Measured::refused(&Refusal::of(error))),
    };
    let (probe, engine) = match probed {
        Ok(probe) => (Some(probe), None),
        Err(ProbeError::Setup(_)) => (None, None),
        Err(error @ ProbeError::Unusable { .. }) => {
            // Without the wish the figures of all ways are there.
            (probe::run(&inside, None).ok(), Some(chain(&error)))
        }
    };
    // A directory that stays is used by the next run.
    let _ = fs::remove_dir(&inside);
    let probe = probe?;
    let direct = Engine { appends: Appends::Ring, direct: true };
    Some(Measured {
        buffered: synced(&probe, Engine::default()),
        direct: synced(&probe, direct),
        engine: engine.map_or_else(|| Ok(probe.chosen.to_string()), Err),
    })
}

fn make_and_lock(directory: &Path) -> io::Result<File> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let file = File::open(directory)?;
    file.try_lock()?;
    Ok(file)
}

/// The time of an append with a sync.
fn synced(probe: &Probe, engine: Engine) -> Result<Duration, Refusal> {
    match probe.of(engine) {
        Some(Ok((_, synced))) => Ok(*synced),
        Some(Err(error)) => Err(Refusal::of(error)),
        None => Err(Refusal::of(&io::ErrorKind::Unsupported.into())),
    }
}

/// The disk under the file system of `path`.
fn disk_of(path: &Path) -> Disk {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Ok(found) = fs::metadata(path) else { return Disk::default() };
    let number = format!("{}:{}", nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev()));
    let mut devices = Vec::new();
    if let Some(first) = device_of(Path::new("/sys"), &number, &mounts) {
        follow(Path::new("/sys"), &first, &mounts, &mut devices);
    }
    let rotates =
        devices.last().is_some_and(|device| attribute(device, "queue/rotational").as_deref() == Some("1"));
    Disk { devices, rotates, is_ours: false }
}

/// The name of the block device of the file system with `number`. A file system over several devices has a number of its own, and is
/// known by the source of its mount.
fn device_of(sys: &Path, number: &str, mounts: &str) -> Option<String> {
    if let Ok(link) = fs::read_link(sys.join("dev/block").join(number)) {
        return Some(link.file_name()?.to_str()?.to_owned());
    }
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let source = mount.split_once(" - ")?.1.split(' ').nth(1)?;
    let device = fs::canonicalize(source).ok()?;
    device.strip_prefix("/dev").ok()?;
    Some(device.file_name()?.to_str()?.to_owned())
}

/// Adds `device` and all devices below: the disk of a partition, the parts of a device of LVM, MD or device mapper, and the disk of
/// the file behind a loop device.
fn follow(sys: &Path, device: &str, mounts: &str, devices: &mut Vec<String>) {
    if devices.len() >= DEPTH_MAX || devices.iter().any(|known| known == device) {
        return;
    }
    devices.push(device.to_owned());
    let folder = sys.join("class/block").join(device);
    if folder.join("partition").exists()
        && let Some(disk) =
            fs::canonicalize(&folder).ok().and_then(|path| Some(path.parent()?.file_name()?.to_owned()))
        && let Some(disk) = disk.to_str()
    {
        follow(sys, disk, mounts, devices);
    }
    if let Ok(below) = fs::read_dir(folder.join("slaves")) {
        for entry in below.flatten() {
            if let Some(name) = entry.file_name().to_str() {
                follow(sys, name, mounts, devices);
            }
        }
    }
    if let Ok(file) = fs::read_to_string(folder.join("loop/backing_file"))
        && let Ok(found) = fs::metadata(PathBuf::from(file.trim()))
    {
        let number = format!("{}:{}", nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev()));
        if let Some(name) = device_of(sys, &number, mounts) {
            follow(sys, &name, mounts, devices);
        }
    }
}

fn attribute(device: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/sys/class/block").join(device).join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// The NUMA node of the controller of `device`; `None` where the kernel knows none.
pub(super) fn node_of_disk(device: &str) -> Option<u64> {
    ["device/numa_node", "device/device/numa_node"]
        .iter()
        .find_map(|name| attribute(device, name)?.parse().ok())
}

/// The name of the file system of `path`, or of the nearest folder above that exists.
fn file_system(path: &Path) -> String {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[tokio::test]
    async fn the_directory_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("catalog.redb"), [1; 8192]).unwrap();
        let mut config = Config::default();
        config.cache.dir = directory.path().into();
        // A command that was killed has left its directory.
        fs::create_dir(directory.path().join(MEASUREMENT)).unwrap();
        let facts = gather(&config, Vec::new()).await;
        assert!(matches!(facts.state, Directory::Found { .. }));
        assert!(facts.free_bytes > 0 && facts.taken_bytes >= 8192);
        assert!(facts.measured.unwrap().buffered.unwrap() > Duration::ZERO);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_measurement_beside_another_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _other = make_and_lock(&directory.path().join(MEASUREMENT)).unwrap();
        let refused = measure(directory.path(), None).unwrap().buffered.unwrap_err();
        assert_eq!(refused.kind, io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_directory_that_is_missing_or_a_file_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(state(&file), Directory::SomethingElse);
        assert_eq!(state(&directory.path().join("none")), Directory::Missing);
    }

    /// A `/sys` with a partition on a ublk device, under LVM.
    #[test]
    fn devices_are_followed_down_to_the_disk() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        for folder in ["devices/ublkb3/ublkb3p1", "devices/dm-0/slaves/ublkb3p1", "class/block", "dev/block"]
        {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("devices/ublkb3/ublkb3p1/partition"), "1\n").unwrap();
        for (name, folder) in [("dm-0", "dm-0"), ("ublkb3p1", "ublkb3/ublkb3p1"), ("ublkb3", "ublkb3")] {
            symlink(at("devices").join(folder), at("class/block").join(name)).unwrap();
        }
        symlink("../../devices/dm-0", at("dev/block/253:0")).unwrap();
        assert_eq!(device_of(sys.path(), "253:0", ""), Some("dm-0".into()));
        let mut devices = Vec::new();
        follow(sys.path(), "dm-0", "", &mut devices);
        assert_eq!(devices, ["dm-0", "ublkb3p1", "ublkb3"]);
    }

    #[test]
    fn a_file_system_over_several_devices_is_found_by_its_mount() {
        let sys = tempfile::tempdir().unwrap();
        let mounts = "31 22 0:77 / /data rw - btrfs /dev/null rw\n32 22 0:78 / /t rw - tmpfs tmpfs rw\n";
        assert_eq!(device_of(sys.path(), "0:77", mounts), Some("null".into()));
        assert_eq!(device_of(sys.path(), "0:78", mounts), None);
        assert_eq!(device_of(sys.path(), "0:79", mounts), None);
    }
}
