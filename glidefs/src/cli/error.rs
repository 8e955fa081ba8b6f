//! Why a command failed: the errors of all parts of the command line.

use std::error::Error;
use std::path::Path;

use super::args::bulk::NamesError;
use super::transfer::CopyError;
use crate::client::ClientError;
use crate::config::ConfigError;
use crate::csi::ServeError;
use crate::observe::logging::LogError;

#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The daemon refused, or does not run.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon ended with an error.
    #[error("the daemon failed")]
    Daemon(#[source] Box<dyn Error>),
    /// An operation on many exports failed for some.
    #[error("{failed} of {of} exports failed")]
    SomeFailed { failed: usize, of: usize },
    /// The daemon's answer ended before the results of all exports.
    #[error(
        "the daemon did not say what became of {missing} of {of} exports: the same command again does the rest"
    )]
    NoResult { missing: usize, of: usize },
    /// The exports of the command are not known.
    #[error(transparent)]
    Names(#[from] NamesError),
    /// `glidefs doctor` found something to mend.
    #[error("failures: {failures}, warnings: {warnings}")]
    Found { failures: usize, warnings: usize },
    /// A wait with `--timeout` ended before the work.
    #[error("the wait ended after {seconds} s{state}; {goes_on}")]
    WaitEnded {
        seconds: f64,
        state: String,
        /// The work that goes on, and how to look at that work.
        goes_on: String,
    },
    /// The program before the upgrade serves on, or again.
    #[error("not upgraded: {reason}")]
    NotUpgraded {
        /// Who serves, and why.
        reason: String,
    },
    /// The driver of the container storage interface could not run.
    #[error(transparent)]
    Csi(#[from] ServeError),
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The answer could not be printed.
    #[error("cannot print the answer as JSON")]
    Json(#[from] serde_json::Error),
    /// Something is not as the command needs it: what, and what to do.
    #[error("{0}")]
    Refused(String),
    #[error("{what}")]
    System {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{from} was not copied completely to {to}{hint}")]
    Copy {
        from: String,
        to: String,
        hint: &'static str,
        #[source]
        source: CopyError,
    },
}

impl CliError {
    /// The failure of an operation of the system with `path`.
    pub fn cannot(action: &str, path: &Path) -> impl Fn(std::io::Error) -> Self + Clone + use<> {
        let what = format!("cannot {action} {}", path.display());
        move |source| Self::System { what: what.clone(), source }
    }

    /// The client could not be started.
    pub fn runtime(source: std::io::Error) -> Self {
        Self::System { what: "cannot start the client".into(), source }
    }
}
