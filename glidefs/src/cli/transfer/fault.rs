//! Why a copy broke off: the error for each failure of a source or a target.
//!
//! Invariant: a full disk, a vanished device and an I/O error are told apart, because the user has to act differently.

use std::io;

use nix::errno::Errno;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("cannot read at byte {offset}")]
    Read {
        offset: u64,
        #[source]
        source: io::Error,
    },
    /// The source ended early.
    #[error("the source ends at byte {offset}, {wanted_bytes} were expected: it was truncated or taken away")]
    Ended { offset: u64, wanted_bytes: u64 },
    /// The source changed its length during the copy.
    #[error("the file changed its length from {was_bytes} to {is_bytes} bytes while it was read")]
    Changed { was_bytes: u64, is_bytes: u64 },
    /// A stream has more bytes than the target has room for.
    #[error("standard input has more than {length_bytes} bytes: give a larger --size")]
    TooLong { length_bytes: u64 },
    /// The target could not be compared.
    #[error("cannot read the target at byte {offset}")]
    Compare {
        offset: u64,
        #[source]
        source: io::Error,
    },
    /// There is no room for more.
    #[error("no space is left for byte {offset} and after: make room")]
    NoSpace { offset: u64 },
    /// The device does not exist any more.
    #[error("the device was taken away at byte {offset}: `glidefs export show NAME` tells how the export is")]
    Gone { offset: u64 },
    #[error("cannot write at byte {offset}")]
    Write {
        offset: u64,
        #[source]
        source: io::Error,
    },
    /// The last writes may be lost with power.
    #[error("the written data could not be synced")]
    Sync(#[source] io::Error),
    /// The user stopped the copy.
    #[error("the copy was stopped")]
    Stopped,
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread is gone without saying why.
    #[error("a thread of the copy ended early: this is an error in glidefs")]
    ThreadEnded,
}

/// The error of a failed write.
pub(super) fn write_error(offset: u64, error: io::Error) -> CopyError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CopyError::NoSpace { offset },
        _ => reached(offset, error).unwrap_or_else(|source| CopyError::Write { offset, source }),
    }
}

/// The error of a failed read of the target.
pub(super) fn compare_error(offset: u64, error: io::Error) -> CopyError {
    reached(offset, error).unwrap_or_else(|source| CopyError::Compare { offset, source })
}

/// The error of a failed read of the source.
pub(super) fn read_error(offset: u64, error: io::Error) -> CopyError {
    reached(offset, error).unwrap_or_else(|source| CopyError::Read { offset, source })
}

/// [`CopyError::Gone`] for an error that says that the device is gone; `Err` with any other error.
pub(super) fn reached(offset: u64, error: io::Error) -> Result<CopyError, io::Error> {
    let gone = [Errno::ENODEV, Errno::ENXIO].map(|errno| Some(errno as i32));
    if gone.contains(&error.raw_os_error()) { Ok(CopyError::Gone { offset }) } else { Err(error) }
}
