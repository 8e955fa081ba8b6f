//! The ways in which workers append to the log.
//!
//! Owns their names, those of glidefs 0.1 included. Does not own how an append is carried out (`run`), nor the choice, which is the configuration's.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A way to append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The worker, with one `pwritev` through the page cache: the call must not wait for the disk. A write whose FLUSH is expected goes
    /// through the ring to the disk (`cache/shard/through.rs`).
    #[default]
    #[serde(alias = "auto", alias = "pwrite", alias = "ring", alias = "ring-fixed", alias = "ring-direct")]
    Buffered,
    /// The ring, past the page cache, while the worker goes on; from registered buffers where there are some (Linux 6.15).
    #[serde(alias = "ring-fixed-direct")]
    Direct,
}

impl Engine {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Direct => "direct",
        }
    }
}

/// Makes sure that the file system of `directory` takes writes past the page cache. Anything else that is wrong shows elsewhere.
///
/// # Errors
/// The kernel's refusal.
pub fn check_direct(directory: &Path) -> io::Result<()> {
    let flags = libc::O_TMPFILE | libc::O_DIRECT;
    match OpenOptions::new().write(true).custom_flags(flags).open(directory) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}
