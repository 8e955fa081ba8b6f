//! The file system of a device: found, made, checked, made larger.
//!
//! Owns the decision whether a device may be formatted. Does not own mounting (`node::stage`). Invariants: a device is formatted only if
//! blkid finds nothing on the device, and the daemon knows that nothing was ever written, or each byte was read and is zero; a file
//! system with errors which are not repaired by themselves is not mounted.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::capabilities::FileSystem;
use super::error::CsiError;
use super::tools::{self, LONG, SHORT};

/// How much of a device is read at once, bytes.
const BLANK_BYTES: usize = 1 << 20;
/// How long such a read may take. A new export answers without the store.
const READ_PATIENCE: Duration = Duration::from_mins(1);

/// How long a check may take. A check of many inodes that come from the store takes hours, and one that was cut short begins anew.
const CHECK_MAX: Duration = Duration::from_hours(24);

/// The content of a device, as blkid sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No signature known to blkid.
    Nothing,
    /// A file system, or another content with a type, such as LVM2_member.
    Type(String),
    /// An XFS which was never finished.
    HalfXfs,
    /// A partition table, with its kind.
    Partitions(String),
    /// Signatures which contradict each other.
    Several,
}

/// How a device gets its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The file system is made.
    Make {
        /// All of the device was read. If not, the daemon knows that nothing was ever written.
        was_read: bool,
    },
    /// The file system is there.
    Use,
}

/// What is known of a device on which blkid finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing was ever written, as the daemon knows.
    NeverWritten,
    /// Each byte was read, and is zero.
    Zeroes,
    /// Some bytes are not zero.
    Data,
}

/// Decides about a device with the signature `found`, and `content` where blkid finds nothing. Gives the reason where the device has to
/// stay as it is.
pub(super) fn plan(found: &Found, content: Content, wanted: FileSystem) -> Result<Plan, String> {
    let wanted = wanted.name();
    match found {
        Found::Nothing if content != Content::Data => Ok(Plan::Make { was_read: content == Content::Zeroes }),
        Found::Nothing => Err(format!(
            "the device has data, and no file system that blkid knows: an interrupted format, or a volume used as a raw device. It is \
             not formatted; if nobody needs the data, discard it (blkdiscard DEVICE), and {wanted} is made then"
        )),
        Found::Type(found) if found == wanted => Ok(Plan::Use),
        Found::Type(found) => Err(format!("the device has {found}, not {wanted}: it is not formatted again")),
        Found::HalfXfs => Err(format!(
            "the device has an xfs whose format was interrupted. It is not formatted again by itself; discard it (blkdiscard DEVICE), \
             and {wanted} is made then"
        )),
        Found::Partitions(table) => {
            Err(format!("the device has a partition table ({table}), not {wanted}: it is not formatted"))
        }
        Found::Several => {
            Err("blkid finds signatures that contradict each other (wipefs DEVICE lists them): the device is not formatted".into())
        }
    }
}

/// Finds the plan for the device at `path`. `never_written` tells whether the daemon knows that nothing was ever written to the device:
/// if not, and if blkid finds nothing, all of the device is read. The daemon is asked when it has everything that programs have written,
/// synced or not.
pub(super) async fn look(
    path: &Path,
    wanted: FileSystem,
    never_written: impl AsyncFnOnce() -> Result<bool, CsiError>,
) -> Result<Plan, CsiError> {
    let arguments = [Path::new("-p"), Path::new("-o"), Path::new("export"), path];
    let found = match tools::run("blkid", arguments, SHORT, &[0, 2, 8]).await? {
        (0, output) => found(&output),
        (2, _) => Found::Nothing,
        _ => Found::Several,
    };
    let found = match found {
        Found::Type(name) if name == "xfs" && is_half_xfs(&beginning(path).await?) => Found::HalfXfs,
        found => found,
    };
    let content = if found != Found::Nothing {
        Content::Data
    } else if settled(path).await? && never_written().await? {
        Content::NeverWritten
    } else if blank(path).await? {
        Content::Zeroes
    } else {
        Content::Data
    };
    plan(&found, content, wanted)
        .map_err(|reason| CsiError::precondition(format!("{}: {reason}", path.display())))
}

/// Reads what blkid has written.
fn found(output: &str) -> Found {
    let value = |key| output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match (value("TYPE"), value("PTTYPE")) {
        (Some(content), _) => Found::Type(content.into()),
        (None, Some(table)) => Found::Partitions(table.into()),
        // There was a signature, whatever it means.
        (None, None) => Found::Several,
    }
}

/// Whether `superblock` is that of an XFS which mkfs.xfs has begun, and not finished.
fn is_half_xfs(superblock: &[u8]) -> bool {
    // The field sb_inprogress.
    superblock.starts_with(b"XFSB") && superblock.get(126) == Some(&1)
}

/// Has the kernel write what it keeps of the device, whoever wrote it, and reads the beginning: blkid ends with the status of a device
/// without a signature also where it could not read. Whether the beginning is there.
async fn settled(path: &Path) -> Result<bool, CsiError> {
    let owned = path.to_owned();
    tools::within(READ_PATIENCE, "sync", path, move || File::open(owned)?.sync_all()).await?;
    Ok(!beginning(path).await?.is_empty())
}

/// The first bytes of the device at `path`.
async fn beginning(path: &Path) -> Result<Vec<u8>, CsiError> {
    let owned = path.to_owned();
    let read = move || {
        let mut bytes = Vec::new();
        File::open(owned)?.take(512).read_to_end(&mut bytes).map(|_| bytes)
    };
    tools::within(READ_PATIENCE, "read", path, read).await
}

/// Whether each byte of the device at `path` can be read and is zero. A device whose next part is not read in time does not answer.
async fn blank(path: &Path) -> Result<bool, CsiError> {
    let owned = path.to_owned();
    let device = Arc::new(tools::within(READ_PATIENCE, "read", path, move || File::open(owned)).await?);
    loop {
        let device = Arc::clone(&device);
        match tools::within(READ_PATIENCE, "read", path, move || next_is_blank(&*device)).await? {
            Some(true) => {}
            Some(false) => return Ok(false),
            None => return Ok(true),
        }
    }
}

/// Whether the next bytes of `device` are all zero; `None` at the end.
fn next_is_blank(device: impl Read) -> io::Result<Option<bool>> {
    let mut bytes = Vec::with_capacity(BLANK_BYTES);
    let read = device.take(BLANK_BYTES as u64).read_to_end(&mut bytes)?;
    Ok((read > 0).then(|| bytes.iter().all(|byte| *byte == 0)))
}

/// Makes a file system on the device at `path`. The tools refuse a device which somebody holds.
pub(super) async fn make(path: &Path, fs: FileSystem) -> Result<(), CsiError> {
    // A new export has nothing to discard.
    let (program, options): (_, &[&str]) = match fs {
        FileSystem::Ext4 => ("mkfs.ext4", &["-q", "-m", "0", "-E", "nodiscard"]),
        FileSystem::Xfs => ("mkfs.xfs", &["-q", "-K"]),
    };
    tools::run(program, options.iter().map(Path::new).chain([path]), LONG, &[0]).await?;
    Ok(())
}

/// Repairs the file system on the unmounted device at `path` as far as is safe. XFS does so when it is mounted.
pub(super) async fn check(path: &Path, fs: FileSystem) -> Result<(), CsiError> {
    if fs == FileSystem::Ext4 {
        tracing::info!(device = %path.display(), "checking the file system");
        // 1: errors were corrected.
        tools::run("e2fsck", [Path::new("-p"), path], CHECK_MAX, &[0, 1]).await?;
    }
    Ok(())
}

/// Makes the file system on the device at `path`, which is mounted at `point`, as large as the device. Nothing is done where the
/// size is right.
pub(super) async fn grow(path: &Path, point: &Path, fs: FileSystem) -> Result<(), CsiError> {
    let (program, subject) = match fs {
        FileSystem::Ext4 => ("resize2fs", path),
        FileSystem::Xfs => ("xfs_growfs", point),
    };
    tools::run(program, [subject], LONG, &[0]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_type(name: &str) -> Found {
        Found::Type(name.into())
    }

    #[test]
    fn only_a_device_without_any_signature_and_without_data_is_formatted() {
        for fs in [FileSystem::Ext4, FileSystem::Xfs] {
            assert_eq!(plan(&Found::Nothing, Content::Zeroes, fs), Ok(Plan::Make { was_read: true }));
            let unread = plan(&Found::Nothing, Content::NeverWritten, fs);
            assert_eq!(unread, Ok(Plan::Make { was_read: false }));
            assert!(plan(&Found::Nothing, Content::Data, fs).is_err());
            for found in [
                of_type("btrfs"),
                of_type("LVM2_member"),
                of_type("swap"),
                Found::Several,
                Found::Partitions("gpt".into()),
            ] {
                for content in [Content::NeverWritten, Content::Zeroes, Content::Data] {
                    assert!(plan(&found, content, fs).is_err(), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn the_wanted_file_system_is_used_and_another_one_stays() {
        assert_eq!(plan(&of_type("ext4"), Content::Data, FileSystem::Ext4), Ok(Plan::Use));
        assert_eq!(plan(&of_type("xfs"), Content::Data, FileSystem::Xfs), Ok(Plan::Use));
        assert!(
            plan(&of_type("xfs"), Content::Data, FileSystem::Ext4).unwrap_err().contains("has xfs, not ext4")
        );
        assert!(plan(&of_type("ext4"), Content::Data, FileSystem::Xfs).is_err());
        assert!(plan(&of_type("ext3"), Content::Data, FileSystem::Ext4).is_err());
    }

    #[test]
    fn the_answer_of_blkid_is_read_by_its_keys() {
        assert_eq!(found("DEVNAME=/dev/ublkb0\nUUID=1-2\nTYPE=ext4\nUSAGE=filesystem\n"), of_type("ext4"));
        assert_eq!(found("DEVNAME=/dev/ublkb0\nPTUUID=1\nPTTYPE=dos\n"), Found::Partitions("dos".into()));
        assert_eq!(found("DEVNAME=/dev/ublkb0\nSEC_TYPE=msdos\n"), Found::Several);
        // A label which looks like a type.
        assert_eq!(found("LABEL=TYPE=xfs\nTYPE=btrfs\n"), of_type("btrfs"));
    }

    #[tokio::test]
    async fn a_byte_anywhere_is_seen() {
        let bytes = 3 * BLANK_BYTES;
        let file = tempfile::NamedTempFile::new().unwrap();
        let is_blank = async |content: &[u8]| {
            std::fs::write(file.path(), content).unwrap();
            blank(file.path()).await.unwrap()
        };
        assert!(is_blank(&vec![0; bytes]).await);
        for place in [0, BLANK_BYTES - 1, BLANK_BYTES + 7, bytes / 2, bytes - BLANK_BYTES, bytes - 1] {
            let mut device = vec![0; bytes];
            device[place] = 1;
            assert!(!is_blank(&device).await, "{place}");
        }
        assert!(!is_blank(&[7]).await);
        assert!(is_blank(&[]).await);
    }

    #[test]
    fn an_interrupted_format_of_xfs_is_told_with_its_remedy() {
        let mut superblock = [0; 512];
        superblock[..4].copy_from_slice(b"XFSB");
        assert!(!is_half_xfs(&superblock));
        superblock[126] = 1;
        assert!(is_half_xfs(&superblock));
        assert!(!is_half_xfs(b"XFSB"));
        for content in [Content::NeverWritten, Content::Zeroes, Content::Data] {
            assert!(plan(&Found::HalfXfs, content, FileSystem::Xfs).unwrap_err().contains("blkdiscard"));
        }
    }
}
