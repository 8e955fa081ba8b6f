//! The users of a block device whom a removal would harm: mounts, swap, devices on top, and programs which have it open exclusively.
//!
//! Owns how the kernel is asked. Does not own what follows from the answer. Blocks; to be run off the workers. Invariant: only
//! the kernel's answer to an exclusive open says whether there is a user, and a failed question is an error; the table of mounts only
//! gives a user a name.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::sys::stat::{major, minor};

use crate::router::devices::DeviceId;

/// The use of device `id` that a removal would harm, as a sentence to be read after "the device is"; `None` when there is none.
/// Programs which merely have the device open do not count.
///
/// # Errors
/// When the kernel does not tell.
pub fn user_of(id: DeviceId) -> io::Result<Option<String>> {
    let path = id.path();
    if !is_claimed(&path)? {
        return Ok(None);
    }
    let number = fs::metadata(&path).map_or(0, |device| device.rdev());
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points =
        mounts(&String::from_utf8_lossy(&table), &path, &format!("{}:{}", major(number), minor(number)));
    Ok(Some(if points.is_empty() {
        "swap, a part of another device, open exclusively, or mounted in a container (`lsblk` shows more)"
            .into()
    } else {
        format!("mounted on {}", points.join(" and "))
    }))
}

/// Whether something has the device at `path`, or a partition of it, open exclusively: file systems, swap, device mapper, md and LVM do.
fn is_claimed(path: &str) -> io::Result<bool> {
    let flags = libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(_) => Ok(false),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => Ok(false),
            Some(libc::EBUSY) => Ok(true),
            _ => Err(error),
        },
    }
}

/// Where `table`, a text like `/proc/self/mountinfo`, has the device at `path` with this `number`, or a partition of it. A file system over
/// several devices has a number of its own, and is known by its source.
fn mounts(table: &str, path: &str, number: &str) -> Vec<String> {
    let point = |line: &str| {
        let mut fields = line.split(' ');
        let (found, point) = (fields.nth(2)?, fields.nth(1)?);
        let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
        let is_part = source.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('p'));
        // The kernel writes blanks in names as octal numbers.
        (found == number || is_part).then(|| point.replace("\\040", " "))
    };
    table.lines().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_has_no_user_and_one_that_cannot_be_asked_is_not_said_to_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("plain"), "").unwrap();
        assert!(!is_claimed(&at("plain")).unwrap() && !is_claimed(&at("none")).unwrap());
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(is_claimed(&at("loop")).is_err(), "a loop, which cannot be opened");
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     30 22 259:3 / /mnt/a\\040b rw - xfs /dev/root rw\n\
                     31 22 0:77 / /data rw shared:2 master:1 - btrfs /dev/ublkb3p1 rw\n\
                     32 22 0:78 / /other rw - btrfs /dev/ublkb33 rw\n";
        assert_eq!(mounts(table, "/dev/ublkb3", "259:3"), ["/mnt/a b", "/data"]);
    }
}
