//! Opening the block device of an export, and the errors of opening.
//!
//! Invariant: a device is written only if device and export have the same size and nothing else has the device mounted or claimed.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::error::TransferError;
use super::raw_file::RawFile;
use crate::api::wire::Export;
use crate::router::ExportName;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceAccess {
    Read,
    /// Writing, with nobody else writing.
    Write,
}

/// How devices are opened: by [`open`], except in tests.
pub(super) type Open<'a> = &'a dyn Fn(&Path, DeviceAccess) -> io::Result<RawFile>;

/// Opens a block device past the page cache, or through the page cache where direct I/O is not possible.
pub(super) fn open(path: &Path, access: DeviceAccess) -> io::Result<RawFile> {
    let exclusive = if access == DeviceAccess::Write { OFlag::O_EXCL } else { OFlag::empty() };
    let with = |flags: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(access == DeviceAccess::Write)
            .custom_flags(flags.bits())
            .open(path)
    };
    let file = match with(exclusive | OFlag::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => with(exclusive)?,
        opened => opened?,
    };
    RawFile::new(file)
}

/// Opens the device of `export`, and returns the device and its path.
pub(super) fn open_export(
    name: &ExportName,
    export: &Export,
    access: DeviceAccess,
    open: Open<'_>,
) -> Result<(RawFile, PathBuf), TransferError> {
    let Some(path) = export.device.as_ref().map(PathBuf::from) else {
        let reason = export.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        return Err(TransferError::NoDevice { name: name.clone(), state: export.state.clone(), reason });
    };
    let disk = open(&path, access).map_err(|source| {
        let path = path.clone();
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EBUSY) => TransferError::DeviceInUse { path },
            Some(Errno::ENOENT | Errno::ENXIO | Errno::ENODEV) => TransferError::DeviceMissing { path },
            _ if source.kind() == ErrorKind::PermissionDenied => TransferError::DevicePermission { path },
            _ => TransferError::File { action: "open", path, source },
        }
    })?;
    if disk.length_bytes() != export.size_bytes {
        let (found_bytes, wanted_bytes) = (disk.length_bytes(), export.size_bytes);
        return Err(TransferError::OtherDevice { path, found_bytes, wanted_bytes });
    }
    Ok((disk, path))
}
