//! The mounts of this host, as /proc/self/mountinfo has them, and the questions about them.
//!
//! Owns the reading. Does not own mounting (`node`). Invariant: a mount belongs to a volume only if the device's number says so, never
//! by a path or a name.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

/// The number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    major: u64,
    minor: u64,
}

impl DeviceNumber {
    fn of(number: u64) -> Self {
        Self { major: nix::sys::stat::major(number), minor: nix::sys::stat::minor(number) }
    }

    /// The number of the block device at `path`, following symlinks; `None` for anything else.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let metadata = fs::metadata(path)?;
        Ok(metadata.file_type().is_block_device().then(|| Self::of(metadata.rdev())))
    }

    /// The size of the device as the kernel has it, bytes.
    pub fn size_bytes(self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/sys/dev/block/{}:{}/size", self.major, self.minor))?;
        let sectors: u64 = text.trim().parse().map_err(io::Error::other)?;
        Ok(sectors.saturating_mul(512))
    }
}

/// A mount of this mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device of the file system.
    pub device: DeviceNumber,
    /// The place in the file system which is shown: a device node in that of /dev.
    root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    /// Options of this mount, as opposed to those of the file system.
    options: Vec<String>,
    /// Options of the file system.
    super_options: Vec<String>,
}

impl Mount {
    /// Whether all of the file system is shown, as opposed to a folder or a device node of it.
    pub fn is_whole(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether nobody can write here.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().chain(&self.super_options).any(|option| option == "ro")
    }

    /// The flags with which a bind mount has the same options. A bind mount which is changed loses those not named.
    pub fn flags(&self) -> MsFlags {
        self.options.iter().fold(MsFlags::empty(), |flags, option| {
            flags
                | match option.as_str() {
                    "ro" => MsFlags::MS_RDONLY,
                    "nosuid" => MsFlags::MS_NOSUID,
                    "nodev" => MsFlags::MS_NODEV,
                    "noexec" => MsFlags::MS_NOEXEC,
                    "noatime" => MsFlags::MS_NOATIME,
                    "nodiratime" => MsFlags::MS_NODIRATIME,
                    "relatime" => MsFlags::MS_RELATIME,
                    _ => MsFlags::empty(),
                }
        })
    }
}

/// All mounts of this mount namespace, in the order of mounting.
#[derive(Debug)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the mounts as they are now.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    pub(super) fn parse(text: &[u8]) -> Self {
        Self(text.split(|&byte| byte == b'\n').filter_map(mount).collect())
    }

    /// The mount to be seen at `path`, which must be absolute.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rfind(|mount| mount.point == path)
    }

    /// The mounts of the device's file system.
    pub fn of(&self, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.device == device)
    }

    /// The mounts of the device node `node` itself, which is in the file system of /dev.
    pub fn of_node(&self, node: &Path) -> impl Iterator<Item = &Mount> {
        let name = node.file_name().map(|name| Path::new("/").join(name));
        self.0.iter().filter(move |mount| mount.fs_type == "devtmpfs" && Some(&mount.root) == name.as_ref())
    }
}

/// Reads a line. A line which is not understood is no mount of a volume.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let options = |field: &[u8]| text(field).split(',').map(Into::into).collect();
    let number = text(fields.nth(2)?);
    let (major, minor) = number.split_once(':')?;
    let device = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let root = unescaped(fields.next()?);
    let point = unescaped(fields.next()?);
    let mount_options = options(fields.next()?);
    // Any number of optional fields ends with a dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = text(fields.next()?);
    let super_options = options(fields.nth(1)?);
    Some(Mount { device, root, point, fs_type, options: mount_options, super_options })
}

/// A path as the kernel writes it: spaces, tabs, line ends and backslashes stand as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let byte;
        (byte, rest) = match rest {
            // Four of the first digit and above are no byte, and the kernel writes none.
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), after)
            }
            _ => (*first, after),
        };
        path.push(byte);
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n\
40 22 259:3 / /var/lib/kubelet/plugins/x/globalmount rw,nosuid,noexec,relatime shared:7 master:2 - ext4 /dev/ublkb3 rw\n\
41 22 259:3 / /pods/with\\040space/mount ro,nosuid,noexec,relatime - ext4 /dev/ublkb3 rw\n\
42 22 0:5 /ublkb4 /pods/block rw,nosuid - devtmpfs udev rw,size=1024k\n\
43 22 259:5 / /over rw - xfs /dev/ublkb5 ro\n\
44 22 259:6 / /over rw - ext4 /dev/ublkb6 rw\n\
nonsense\n";

    const fn device(major: u64, minor: u64) -> DeviceNumber {
        DeviceNumber { major, minor }
    }

    fn mounts() -> Mounts {
        Mounts::parse(TEXT.as_bytes())
    }

    #[test]
    fn mounts_are_found_by_path_and_by_device() {
        let mounts = mounts();
        let staged = mounts.at(Path::new("/var/lib/kubelet/plugins/x/globalmount")).unwrap();
        assert_eq!((staged.device, staged.fs_type.as_str()), (device(259, 3), "ext4"));
        assert!(!staged.is_read_only());
        assert_eq!(mounts.of(device(259, 3)).count(), 2);
        let has = |device| mounts.of(device).next().is_some();
        assert!(has(device(259, 5)) && !has(device(259, 4)));
        assert_eq!(mounts.at(Path::new("/nowhere")), None);
        let nodes: Vec<&Path> =
            mounts.of_node(Path::new("/dev/ublkb4")).map(|mount| mount.point.as_path()).collect();
        assert_eq!(nodes, [Path::new("/pods/block")]);
        assert_eq!(mounts.of_node(Path::new("/dev/ublkb3")).count(), 0);
    }

    #[test]
    fn a_path_with_a_space_is_found_and_the_upper_of_two_mounts_is_seen() {
        let mounts = mounts();
        assert!(mounts.at(Path::new("/pods/with space/mount")).unwrap().is_read_only());
        assert_eq!(mounts.at(Path::new("/over")).unwrap().device, device(259, 6));
        // A file system which is read-only as a whole.
        assert!(mounts.of(device(259, 5)).all(Mount::is_read_only));
    }

    #[test]
    fn a_bind_mount_keeps_the_options_of_the_mount_below() {
        let mounts = mounts();
        let flags = mounts.at(Path::new("/pods/with space/mount")).unwrap().flags();
        let all = [MsFlags::MS_RDONLY, MsFlags::MS_NOSUID, MsFlags::MS_NOEXEC, MsFlags::MS_RELATIME];
        assert_eq!(flags, all.into_iter().collect());
    }

    #[test]
    fn only_whole_escapes_are_unescaped() {
        for (field, path) in
            [("/a\\040b", "/a b"), ("/a\\134", "/a\\"), ("/a\\04", "/a\\04"), ("/a\\999", "/a\\999")]
        {
            assert_eq!(unescaped(field.as_bytes()), Path::new(path), "{field}");
        }
    }

    #[test]
    fn this_hosts_own_mounts_can_be_read() {
        assert!(Mounts::read().unwrap().at(Path::new("/proc")).is_some());
        assert_eq!(DeviceNumber::at(Path::new("/proc/self/mountinfo")).unwrap(), None);
    }
}
