//! Why a measurement failed.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The test file is there already and would be written.
    #[error(
        "{path} exists: use --overwrite to let its content be replaced, or --mode randread,read to only read it"
    )]
    Exists { path: PathBuf },
    /// The test file is shorter than the part to read.
    #[error(
        "{path} has {bytes} bytes, fewer than --size: give a smaller --size, or --overwrite to make it larger"
    )]
    TooShort { path: PathBuf, bytes: u64 },
    /// The file system does not do direct I/O.
    #[error(
        "the file system of {path} does not support O_DIRECT: use --buffered, or --dir on another file system"
    )]
    NoDirect { path: PathBuf },
    /// The test file could not be made, opened or filled.
    #[error("cannot prepare the test file {path}")]
    Prepare {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Settings that contradict each other, in words.
    #[error("{0}")]
    Settings(String),
    /// A job could not be set up.
    #[error("{engine}: {what} failed")]
    Setup {
        engine: String,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{engine}: an operation at byte {offset} failed{hint}")]
    Operation {
        engine: String,
        offset: u64,
        /// Advice for the user; may be empty.
        hint: &'static str,
        #[source]
        source: io::Error,
    },
    /// Fewer bytes were moved than were asked for.
    #[error("{engine}: only {moved} of {wanted} bytes were moved at byte {offset}")]
    Short { engine: String, offset: u64, moved: usize, wanted: usize },
    /// A block does not hold its stamp.
    #[error("{engine}: the block at byte {offset} does not hold what was written to it")]
    Corrupt { engine: String, offset: u64 },
    /// A job ended without a result.
    #[error("a job ended unexpectedly")]
    Panicked,
    #[error("cannot draw the plot: {0}")]
    Plot(String),
    /// The result could not be printed.
    #[error("cannot print the result")]
    Output(#[from] io::Error),
}

/// The message of `error` and of all its sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
