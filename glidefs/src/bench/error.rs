//! Why something could not be measured.

use std::io;
use std::path::PathBuf;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The test file is there already and would be written.
    #[error(
        "{path} exists: use --overwrite to let its content be replaced, or --mode randread,read to only read it"
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The test file is shorter than what is to be read.
    #[error(
        "{path} has {bytes} bytes, fewer than --size: give a smaller --size, or --overwrite to make it larger"
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file system does not do direct I/O.
    #[error(
        "the file system of {path} does not support O_DIRECT: use --buffered, or --dir on another file system"
    )]
    NoDirect {
        /// The file or directory.
        path: PathBuf,
    },
    /// The test file could not be made, opened or filled.
    #[error("cannot prepare the test file {path}")]
    Prepare {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// Settings that contradict each other.
    #[error("{0}")]
    Settings(String),
    /// A job could not be set up.
    #[error("{engine}: {what} failed")]
    Setup {
        /// The engine.
        engine: String,
        /// The step.
        what: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// An operation failed.
    #[error("{engine}: an operation at byte {offset} failed{hint}")]
    Operation {
        /// The engine.
        engine: String,
        /// Where.
        offset: u64,
        /// What to do about it.
        hint: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// Fewer bytes were moved than were asked for.
    #[error("{engine}: only {moved} of {wanted} bytes were moved at byte {offset}")]
    Short {
        /// The engine.
        engine: String,
        /// Where.
        offset: u64,
        /// Bytes moved.
        moved: usize,
        /// Bytes asked for.
        wanted: usize,
    },
    /// What was read is not what was written.
    #[error("{engine}: the block at byte {offset} does not hold what was written to it")]
    Corrupt {
        /// The engine.
        engine: String,
        /// Where.
        offset: u64,
    },
    /// A job ended without saying why.
    #[error("a job ended unexpectedly")]
    Panicked,
    /// A picture could not be drawn.
    #[cfg(feature = "plots")]
    #[error("cannot draw the plot")]
    Plot(#[source] Box<dyn std::error::Error + Send + Sync>),
}
