//! Why a copy broke off: which failure of a source or a target is which error.
//!
//! Invariant: a full disk, a device that is gone and an I/O error are told apart, because different things help.

use std::io;

use nix::errno::Errno;

/// Why a copy broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// The source failed.
    #[error("cannot read at byte {offset}")]
    Read {
        /// Where.
        offset: u64,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The source is shorter than it was.
    #[error(
        "what is read ends at byte {offset}, {wanted_bytes} were expected: it was truncated or taken away"
    )]
    Ended {
        /// Where.
        offset: u64,
        /// Where it should end.
        wanted_bytes: u64,
    },
    /// The source has another length than when it was opened.
    #[error("the file changed its length from {was_bytes} to {is_bytes} bytes while it was read")]
    Changed {
        /// Before.
        was_bytes: u64,
        /// Now.
        is_bytes: u64,
    },
    /// A stream has more than there is room for.
    #[error("standard input has more than {length_bytes} bytes: give a larger --size")]
    TooLong {
        /// Size of the target.
        length_bytes: u64,
    },
    /// The target could not be compared.
    #[error("cannot read what is there at byte {offset}")]
    Compare {
        /// Where.
        offset: u64,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// There is no room for more.
    #[error("no space is left for byte {offset} and after: make room")]
    NoSpace {
        /// Where.
        offset: u64,
    },
    /// The device does not exist any more.
    #[error("the device was taken away at byte {offset}: `glidefs export show NAME` tells how the export is")]
    Gone {
        /// Where.
        offset: u64,
    },
    /// The target failed.
    #[error("cannot write at byte {offset}")]
    Write {
        /// Where.
        offset: u64,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// What was written may not be there after loss of power.
    #[error("what was written could not be synced")]
    Sync(#[source] io::Error),
    /// The user asked for it.
    #[error("it was stopped")]
    Stopped,
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread is gone without saying why.
    #[error("a thread of the copy ended early: this is an error in glidefs")]
    ThreadEnded,
}

/// What a failed write was about.
pub(super) fn write_error(offset: u64, error: io::Error) -> CopyError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CopyError::NoSpace { offset },
        _ => reached(offset, error).unwrap_or_else(|source| CopyError::Write { offset, source }),
    }
}

/// What a failed read of the target was about.
pub(super) fn compare_error(offset: u64, error: io::Error) -> CopyError {
    reached(offset, error).unwrap_or_else(|source| CopyError::Compare { offset, source })
}

/// What a failed read of the source was about.
pub(super) fn read_error(offset: u64, error: io::Error) -> CopyError {
    reached(offset, error).unwrap_or_else(|source| CopyError::Read { offset, source })
}

/// Gives `error` back if it came from something that is there.
pub(super) fn reached(offset: u64, error: io::Error) -> Result<CopyError, io::Error> {
    let gone = [Errno::ENODEV, Errno::ENXIO].map(|errno| Some(errno as i32));
    if gone.contains(&error.raw_os_error()) { Ok(CopyError::Gone { offset }) } else { Err(error) }
}
