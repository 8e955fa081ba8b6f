//! Why an image could not be imported or dumped, in sentences that say what to do.

use std::io;
use std::path::PathBuf;

use super::fault::CopyError;
use super::format::Format;
use crate::cli::client::ClientError;
use crate::router::{ExportName, NameError, SizeError};

/// Why an image could not be imported or dumped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// There is no such file.
    #[error("there is no file {path}")]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// A directory, a pipe or the like.
    #[error("{path} is {what}: use {wanted}")]
    NotAFile {
        /// What was given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What it ought to be.
        wanted: &'static str,
    },
    /// The file could not be opened, looked at or moved.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// There is nothing to import.
    #[error("{path} is empty: an export has at least 512 bytes")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The image is not raw.
    #[error("{path} is {format}, not a raw image: {}; or use --force-raw to import it as it is", format.hint(path))]
    NotRaw {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        format: Format,
    },
    /// `--size` is too small.
    #[error(
        "{path} has {file_bytes} bytes, more than the {size_bytes} of --size: make --size larger, or leave it out"
    )]
    LargerThanSize {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// The size asked for.
        size_bytes: u64,
    },
    /// The file is longer than an export can be.
    #[error("{path} cannot become an export")]
    Size {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: SizeError,
    },
    /// The size of standard input is not known.
    #[error("say with --size how large the export is to be: the length of standard input is not known")]
    NoSize,
    /// The name is taken.
    #[error(
        "export {name} exists: choose another name, or use --resume to make the export equal to the image, whatever it holds"
    )]
    ExportExists {
        /// The export.
        name: ExportName,
    },
    /// The export that exists is too small.
    #[error(
        "the image needs {wanted_bytes} bytes and export {name} has {export_bytes}: make it larger with `glidefs export resize`, or choose another name"
    )]
    ExportSmaller {
        /// The export.
        name: ExportName,
        /// Its size.
        export_bytes: u64,
        /// The size it would be made with.
        wanted_bytes: u64,
    },
    /// The export that exists is larger.
    #[error(
        "export {name} has {export_bytes} bytes, not {wanted_bytes}: use --size {export_bytes} if zeroes are to follow the image"
    )]
    ExportLarger {
        /// The export.
        name: ExportName,
        /// Its size.
        export_bytes: u64,
        /// The size it would be made with.
        wanted_bytes: u64,
    },
    /// The export has no device.
    #[error(
        "export {name} has no device, it is {state}{reason}: `glidefs export attach {name}` gives it one"
    )]
    NoDevice {
        /// The export.
        name: ExportName,
        /// Its state.
        state: String,
        /// Why it failed, in brackets, if it did.
        reason: String,
    },
    /// The daemon may be on another host.
    #[error(
        "images are copied through the export's device: run this on the daemon's host, and leave --api out"
    )]
    Remote,
    /// The device is not here.
    #[error("there is no {path} here: run this on the daemon's host, outside of containers")]
    DeviceMissing {
        /// The device.
        path: PathBuf,
    },
    /// The device may not be opened.
    #[error("no permission to open {path}: run this as root on the daemon's host")]
    DevicePermission {
        /// The device.
        path: PathBuf,
    },
    /// Something else has the device.
    #[error("{path} is in use: unmount it, or stop what uses it")]
    DeviceInUse {
        /// The device.
        path: PathBuf,
    },
    /// The device is not that of the export.
    #[error(
        "{path} has {found_bytes} bytes and the export {wanted_bytes}: run this on the daemon's host; after a resize, detach and attach the export"
    )]
    OtherDevice {
        /// The device.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size of the export.
        wanted_bytes: u64,
    },
    /// The file is there already.
    #[error("{path} exists: use --force to replace it")]
    FileExists {
        /// The file.
        path: PathBuf,
    },
    /// Something was left by a dump that did not end.
    #[error(
        "{path} was left by a dump that did not end: use --resume to go on with it, or --force to start anew"
    )]
    PartialExists {
        /// The file.
        path: PathBuf,
    },
    /// Another dump writes the same file.
    #[error("{path} is being written by another dump")]
    PartialInUse {
        /// The file.
        path: PathBuf,
    },
    /// Bytes would come from or go to a terminal.
    #[error("{what} is a terminal: give a file, or redirect it")]
    Terminal {
        /// Which.
        what: &'static str,
    },
    /// The copy broke off.
    #[error("{from} was not copied completely to {to}{hint}")]
    Copy {
        /// What was read.
        from: String,
        /// What was written.
        to: String,
        /// How to go on.
        hint: &'static str,
        /// What went wrong.
        #[source]
        source: CopyError,
    },
    /// The user stopped it while the daemon flushed.
    #[error("stopped: the image is on the device, and may not be in the store yet")]
    StoppedFlush,
    /// The user stopped it before it began.
    #[error("stopped: nothing was copied")]
    StoppedBefore,
    /// The user stopped it while the daemon made the export.
    #[error(
        "stopped: nothing was copied, but export {name} may have been made: go on with --resume, or delete it"
    )]
    StoppedMaking {
        /// The export.
        name: ExportName,
    },
    /// No name could be made for a fork.
    #[error(transparent)]
    Name(NameError),
    /// The name of the fork is somebody's.
    #[error("there is an export {name} already: try again, for another temporary name")]
    ForkTaken {
        /// The name.
        name: ExportName,
    },
    /// The fork of the snapshot is still there.
    #[error("the temporary export {name} could not be deleted: do so with `glidefs export delete {name}`")]
    ForkLeft {
        /// The fork.
        name: ExportName,
        /// What went wrong.
        #[source]
        source: ClientError,
    },
    /// The user did not wait for the fork to be made or deleted.
    #[error("stopped: the temporary export {name} may exist, `glidefs export delete {name}` deletes it")]
    ForkUnknown {
        /// The fork.
        name: ExportName,
    },
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}
