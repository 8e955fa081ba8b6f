//! Reading a file with a secret.
//!
//! Owns which files are read: regular ones, on which only the owner has permissions. Does not own the content. Invariants: the file that is
//! judged is the one that is read; a pipe keeps nobody waiting; no more is read than asked for.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permissions that the file must not give to group and others.
const MODE_OF_OTHERS: u32 = 0o077;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateFileError {
    /// The file cannot be read, or is not text.
    #[error("the file cannot be read")]
    Read(#[from] io::Error),
    /// The path names a directory, a device or a pipe.
    #[error("not a regular file")]
    NotAFile,
    /// Group or others have permissions on the file.
    #[error("others than the owner have permissions on the file: mode {mode:04o}")]
    Exposed { mode: u32 },
}

/// The first `bytes_max` bytes of the file at `path`.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<String, PrivateFileError> {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(PrivateFileError::NotAFile);
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & MODE_OF_OTHERS != 0 {
        return Err(PrivateFileError::Exposed { mode });
    }
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}
