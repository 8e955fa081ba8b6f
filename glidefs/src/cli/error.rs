//! Why a command failed: the sum of the reasons of its parts.

use std::error::Error;
use std::path::PathBuf;

use super::client::ClientError;
use super::transfer::error::TransferError;
use crate::bench::BenchError;
use crate::config::ConfigError;
use crate::observe::logging::LogError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The daemon refused, or is not there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon ended with an error.
    #[error("the daemon failed")]
    Daemon(#[source] Box<dyn Error>),
    /// Something of some exports is not in the store.
    #[error("{exports} exports are not in the store as a whole")]
    NotDrained {
        /// How many.
        exports: usize,
    },
    /// A wait ended that was limited.
    #[error("the wait ended after {seconds} s{state}; {goes_on}")]
    WaitEnded {
        /// How long it was.
        seconds: f64,
        /// What was waited for.
        state: String,
        /// What goes on, and how to look at that.
        goes_on: String,
    },
    /// A file is in the way.
    #[error("{path} exists: use --force to replace it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// The user said no.
    #[error("nothing was deleted")]
    Declined,
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The answer could not be printed.
    #[error("cannot print the answer as JSON")]
    Json(#[from] serde_json::Error),
    /// A measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// An image could not be copied.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The client could not be started.
    #[error("cannot start the client")]
    Runtime(#[source] std::io::Error),
}
