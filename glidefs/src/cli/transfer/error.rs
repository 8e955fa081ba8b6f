//! Why an image could not be imported or dumped, in sentences that say how to go on.

use std::io;
use std::path::PathBuf;

use super::fault::CopyError;
use super::format::ImageFormat;
use crate::client::ClientError;
use crate::router::{ExportName, NameError, SizeError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// There is no such file.
    #[error("there is no file {path}")]
    NoFile { path: PathBuf },
    /// A directory, a pipe or the like.
    #[error("{path} is {what}: use {wanted}")]
    NotAFile {
        path: PathBuf,
        what: &'static str,
        /// The kind of file to use instead.
        wanted: &'static str,
    },
    /// The file could not be opened, looked at or moved.
    #[error("cannot {action} {path}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is nothing to import.
    #[error("{path} is empty: an export has at least 512 bytes")]
    Empty { path: PathBuf },
    /// The image is not raw.
    #[error("{path} is {format}, not a raw image: {}; or use --force-raw to import it as it is", format.hint(path))]
    NotRaw { path: PathBuf, format: ImageFormat },
    #[error(
        "{path} has {file_bytes} bytes, more than the {size_bytes} of --size: make --size larger, or leave it out"
    )]
    LargerThanSize { path: PathBuf, file_bytes: u64, size_bytes: u64 },
    /// The file is longer than an export can be.
    #[error("{path} cannot become an export")]
    Size {
        path: PathBuf,
        #[source]
        source: SizeError,
    },
    /// The size of standard input is not known.
    #[error("say with --size how large the export is to be: the length of standard input is not known")]
    NoSize,
    #[error(
        "export {name} exists: choose another name, or use --resume to make the export equal to the image, whatever it holds"
    )]
    ExportExists { name: ExportName },
    /// The existing export is too small.
    #[error(
        "the image needs {wanted_bytes} bytes and export {name} has {export_bytes}: make it larger with `glidefs export resize`, or choose another name"
    )]
    ExportSmaller {
        name: ExportName,
        export_bytes: u64,
        /// The size of a new export for the image.
        wanted_bytes: u64,
    },
    /// The existing export is larger.
    #[error(
        "export {name} has {export_bytes} bytes, not {wanted_bytes}: use --size {export_bytes} if zeroes are to follow the image"
    )]
    ExportLarger {
        name: ExportName,
        export_bytes: u64,
        /// The size of a new export for the image.
        wanted_bytes: u64,
    },
    /// The export has no device.
    #[error(
        "export {name} has no device, it is {state}{reason}: `glidefs export attach {name}` gives it one"
    )]
    NoDevice {
        name: ExportName,
        state: String,
        /// The reason of a failed export, in brackets; empty for an export that did not fail.
        reason: String,
    },
    /// The daemon may be on another host.
    #[error(
        "images are copied through the export's device: run this on the daemon's host, and leave --api out"
    )]
    Remote,
    /// The device is not here.
    #[error("there is no {path} here: run this on the daemon's host, outside of containers")]
    DeviceMissing { path: PathBuf },
    /// The device may not be opened.
    #[error("no permission to open {path}: run this as root on the daemon's host")]
    DevicePermission { path: PathBuf },
    /// Something else has the device.
    #[error("{path} is in use: unmount it, or stop what uses it")]
    DeviceInUse { path: PathBuf },
    /// The device belongs to something else than the export.
    #[error(
        "{path} has {found_bytes} bytes and the export {wanted_bytes}: run this on the daemon's host; after a resize, detach and attach the export"
    )]
    OtherDevice {
        path: PathBuf,
        found_bytes: u64,
        /// The size of the export.
        wanted_bytes: u64,
    },
    /// The file is there already.
    #[error("{path} exists: use --force to replace it")]
    FileExists { path: PathBuf },
    /// FILE.partial was left by a dump that did not end.
    #[error(
        "{path} was left by a dump that did not end: use --resume to go on with it, or --force to start anew"
    )]
    PartialExists { path: PathBuf },
    /// Another dump writes the same file.
    #[error("{path} is being written by another dump")]
    PartialInUse { path: PathBuf },
    /// Bytes would come from or go to a terminal.
    #[error("{what} is a terminal: give a file, or redirect it")]
    Terminal { what: &'static str },
    #[error("{from} was not copied completely to {to}{hint}")]
    Copy {
        from: String,
        to: String,
        hint: &'static str,
        #[source]
        source: CopyError,
    },
    /// The user stopped the wait for the store.
    #[error("stopped: the image is on the device, and may not be in the store yet")]
    StoppedWriteback,
    /// The user stopped before the copy began.
    #[error("stopped: nothing was copied")]
    StoppedBefore,
    /// The user stopped while the daemon made the export.
    #[error(
        "stopped: nothing was copied, but export {name} may have been made: go on with --resume, or delete it"
    )]
    StoppedMaking { name: ExportName },
    /// No name could be made for a fork.
    #[error(transparent)]
    Name(NameError),
    /// The name of the fork is the name of another export.
    #[error("there is an export {name} already: try again, for another temporary name")]
    ForkTaken { name: ExportName },
    /// The fork of the snapshot is still there.
    #[error("the temporary export {name} could not be deleted: do so with `glidefs export delete {name}`")]
    ForkLeft {
        name: ExportName,
        #[source]
        source: ClientError,
    },
    /// The user did not wait for the fork to be made or deleted.
    #[error("stopped: the temporary export {name} may exist, `glidefs export delete {name}` deletes it")]
    ForkUnknown { name: ExportName },
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}
