//! The users of a block device: mounts, swap, devices on top, and programs which have the device open exclusively.
//!
//! Owns how the kernel is asked. Does not own what follows from the answer. Blocks; to be run off the workers. Invariant: only
//! the kernel's answer to an exclusive open says whether there is a user, and a failed question is an error; /proc only gives
//! the user a name.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::router::devices::DeviceId;

/// The folders in which the kernel describes mounts, block devices and device files.
#[derive(Clone, Debug)]
struct KernelPaths {
    proc: PathBuf,
    sys_block: PathBuf,
    dev: PathBuf,
}

/// A device, or a partition of it.
#[derive(Debug)]
struct Part {
    name: String,
    /// `major:minor`.
    number: String,
    folder: PathBuf,
}

/// The user of device `id` whom a removal would harm, as a sentence to be read after "the device is"; `None` when there is none.
/// Programs which merely have the device open do not count.
///
/// # Errors
/// When the kernel does not tell.
pub fn user_of(id: DeviceId) -> io::Result<Option<String>> {
    let paths = KernelPaths { proc: "/proc".into(), sys_block: "/sys/block".into(), dev: "/dev".into() };
    paths.user_of(&format!("ublkb{}", id.0))
}

impl KernelPaths {
    fn user_of(&self, device: &str) -> io::Result<Option<String>> {
        let holders = holders(&self.parts(device));
        if !holders.is_empty() {
            return Ok(Some(format!("part of {}", list(holders))));
        }
        Ok(if self.is_claimed(device)? { Some(self.usage(device)) } else { None })
    }

    /// The use of `device`, which somebody has open exclusively.
    fn usage(&self, device: &str) -> String {
        let parts = self.parts(device);
        if self.is_swap(&parts) {
            return "used as swap".into();
        }
        let mounts = self.mounts(&parts);
        if mounts.is_empty() { "open exclusively".into() } else { format!("mounted on {}", list(mounts)) }
    }

    fn parts(&self, device: &str) -> Vec<Part> {
        let folder = self.sys_block.join(device);
        let part = |folder: PathBuf| {
            let name = folder.file_name()?.to_str()?.to_owned();
            let number = fs::read_to_string(folder.join("dev")).ok()?.trim().to_owned();
            Some(Part { name, number, folder })
        };
        let partitions = names_in(&folder).into_iter().filter(|name| name.starts_with(device));
        let mut parts: Vec<_> = partitions.filter_map(|name| part(folder.join(name))).collect();
        parts.extend(part(folder));
        parts
    }

    /// Where one of `parts` is mounted, in any mount namespace.
    fn mounts(&self, parts: &[Part]) -> BTreeSet<String> {
        let sources: HashSet<String> = parts.iter().map(|part| format!("/dev/{}", part.name)).collect();
        let (mut mounts, mut seen) = (BTreeSet::new(), HashSet::new());
        let processes =
            names_in(&self.proc).into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        for process in processes {
            let folder = self.proc.join(process);
            if fs::read_link(folder.join("ns/mnt")).is_ok_and(|namespace| !seen.insert(namespace)) {
                continue;
            }
            // A process which has ended meanwhile has no mounts.
            let Ok(table) = fs::read(folder.join("mountinfo")) else { continue };
            let table = String::from_utf8_lossy(&table);
            mounts.extend(table.lines().filter_map(|line| mounted(line, parts, &sources)));
        }
        mounts
    }

    fn is_swap(&self, parts: &[Part]) -> bool {
        let Ok(table) = fs::read_to_string(self.proc.join("swaps")) else { return false };
        let mut files = table.lines().filter_map(|line| line.split_whitespace().next());
        files.any(|file| parts.iter().any(|part| file.strip_prefix("/dev/") == Some(part.name.as_str())))
    }

    /// Whether somebody has `device`, or a partition of it, open exclusively: file systems, swap, device mapper, md and LVM do.
    fn is_claimed(&self, device: &str) -> io::Result<bool> {
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(self.dev.join(device));
        match open.as_ref().map_err(io::Error::raw_os_error) {
            Ok(_) | Err(Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => Ok(false),
            Err(Some(libc::EBUSY)) => Ok(true),
            Err(_) => open.map(|_| false),
        }
    }
}

/// The mount point in a line of `mountinfo` about one of `parts`. A file system over several devices has a device number of its
/// own, and is known by its source.
fn mounted(line: &str, parts: &[Part], sources: &HashSet<String>) -> Option<String> {
    let mut fields = line.split(' ');
    let (number, point) = (fields.nth(2)?, fields.nth(1)?);
    let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1));
    let is_ours = parts.iter().any(|part| part.number == number)
        || source.is_some_and(|source| sources.contains(source));
    // The kernel writes blanks in names as octal numbers.
    is_ours.then(|| point.replace("\\040", " "))
}

/// Devices on top of one of `parts`.
fn holders(parts: &[Part]) -> BTreeSet<String> {
    parts.iter().flat_map(|part| names_in(&part.folder.join("holders"))).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn list(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
        paths: KernelPaths,
    }

    impl Machine {
        /// A machine with devices ublkb3, of 259:3 with a partition of 259:4, and ublkb33, of 259:9.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let paths = KernelPaths { proc: at("proc"), sys_block: at("sys"), dev: at("dev") };
            let machine = Self { folder, paths };
            machine.write("sys/ublkb3/dev", "259:3\n");
            machine.write("sys/ublkb3/ublkb3p1/dev", "259:4\n");
            machine.write("sys/ublkb33/dev", "259:9\n");
            machine.write("proc/swaps", "Filename Type Size Used Priority\n/dev/ublkb33 partition 1 0 -2\n");
            machine.write("proc/1/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n");
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn usage(&self) -> String {
            self.paths.usage("ublkb3")
        }
    }

    #[test]
    fn a_device_that_nobody_holds_has_no_user_and_one_that_cannot_be_asked_is_not_said_to_have_none() {
        let machine = Machine::new();
        machine.write("dev/ublkb3", "");
        assert_eq!(machine.paths.user_of("ublkb3").unwrap(), None);
        assert_eq!(machine.paths.user_of("ublkb4").unwrap(), None, "there is no such device");
        std::os::unix::fs::symlink("ublkb5", machine.folder.path().join("dev/ublkb5")).unwrap();
        assert!(machine.paths.user_of("ublkb5").is_err(), "a loop, which cannot be opened");
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source_in_every_namespace() {
        let machine = Machine::new();
        machine.write("proc/1/mountinfo", "30 22 259:3 / /mnt/a\\040b rw - xfs /dev/root rw\n");
        machine
            .write("proc/20/mountinfo", "31 22 0:77 / /data rw shared:2 master:1 - btrfs /dev/ublkb3p1 rw\n");
        machine.write("proc/21/mountinfo", "31 22 259:4 / /inner rw - ext4 /dev/x rw\n");
        assert_eq!(machine.usage(), "mounted on /data and /inner and /mnt/a b");
        assert_eq!(machine.paths.usage("ublkb33"), "used as swap");
        assert_eq!(machine.paths.usage("ublkb34"), "open exclusively");
    }

    #[test]
    fn devices_on_top_of_it_or_of_its_partitions_are_named() {
        let machine = Machine::new();
        machine.write("sys/ublkb3/ublkb3p1/holders/dm-0", "");
        machine.write("sys/ublkb3/holders/md7", "");
        assert_eq!(machine.paths.user_of("ublkb3").unwrap().as_deref(), Some("part of dm-0 and md7"));
    }
}
