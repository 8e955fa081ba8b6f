//! Why a command failed: the errors of all parts of the command line, their codes and their exit statuses.
//!
//! Invariant: an exit status keeps its meaning, which the help and docs/operations.md have in the same words.

use std::error::Error;
use std::path::Path;

use super::args::bulk::NamesError;
use super::transfer::CopyError;
use crate::api::wire::ProblemCode as P;
use crate::client::ClientError;
use crate::config::ConfigError;
use crate::csi::ServeError;
use crate::observe::logging::LogError;
use crate::store::StoreError;

/// Exit status for what was refused before anything was done.
pub(super) const USAGE: u8 = 2;

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
    NoResult {
        missing: usize,
        of: usize,
        #[source]
        source: ClientError,
    },
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
    /// A store, which the command asks itself.
    #[error(transparent)]
    Store(#[from] StoreError),
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
    /// Arguments that do not go together.
    #[error("{0}")]
    Usage(String),
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
    /// The code for programs, and the exit status, of which docs/operations.md has the table.
    pub fn class(&self) -> (&str, u8) {
        match self {
            Self::Client(error) | Self::NoResult { source: error, .. } => class_of(error),
            Self::Config(_) => ("bad_configuration", USAGE),
            Self::Names(_) => (P::BadName.as_str(), USAGE),
            Self::Found { failures: 1.., .. } => ("found", USAGE),
            Self::Found { .. } => ("found", 1),
            Self::Usage(_) => ("usage", USAGE),
            Self::WaitEnded { .. } => ("wait_ended", 3),
            Self::SomeFailed { .. } => ("some_failed", 1),
            Self::Store(
                StoreError::Another { .. } | StoreError::Foreign { .. } | StoreError::Occupied { .. },
            ) => (P::StoreFailed.as_str(), 5),
            Self::Store(error) if error.is_transient() => (P::StoreUnavailable.as_str(), 7),
            Self::Store(_) => (P::StoreFailed.as_str(), 1),
            Self::NotUpgraded { .. } => (P::UpgradeFailed.as_str(), 1),
            _ => ("failed", 1),
        }
    }

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

fn class_of(error: &ClientError) -> (&str, u8) {
    match error {
        ClientError::Refused { code, .. } => (code, P::of(code).map_or(1, status_of)),
        ClientError::NotRunning { .. } => ("not_running", 7),
        ClientError::Broken { .. } => ("no_answer", 7),
        ClientError::NoPermission { .. } | ClientError::Stranger { .. } => ("not_permitted", 1),
        ClientError::Url { .. } | ClientError::Token(_) => ("usage", USAGE),
        ClientError::NotUnderstood { .. } => ("not_understood", 1),
    }
}

/// The exit status for a refusal: by the status of the answer, but that a host without what is needed does not pass by waiting.
fn status_of(code: P) -> u8 {
    match code {
        P::InUse => 6,
        P::UpgradeFailed | P::NoDriver | P::NoPermission | P::DeviceLimitReached => 1,
        code => match code.statuses().first() {
            Some(400 | 413) => USAGE,
            Some(404) => 4,
            Some(409) => 5,
            Some(408 | 503 | 504) => 7,
            _ => 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;

    #[test]
    fn every_refusal_has_the_exit_status_of_its_class_and_keeps_its_code() {
        let class = |code: &str| {
            let error = CliError::from(ClientError::Refused { code: code.into(), message: String::new() });
            let (named, status) = error.class();
            assert_eq!(named, code);
            status
        };
        for (codes, status) in [
            (&["store_failed", "unauthorized", "no_driver", "upgrade_failed", "of a newer daemon"][..], 1),
            (&["bad_name", "bad_parameter", "bad_request", "too_large"], 2),
            (&["not_found", "not_in_store"], 4),
            (&["exists_with_other_parameters", "held", "fenced", "diverged", "no_store"], 5),
            (&["in_use"], 6),
            (&["store_unavailable", "not_flushed", "unconfirmed", "stopping", "device_timed_out"], 7),
        ] {
            for code in codes {
                assert_eq!(class(code), status, "{code}");
            }
        }
        assert!(P::ALL.iter().all(|code| class(code.as_str()) != 3), "of waits alone");
    }

    #[test]
    fn the_help_and_the_manual_have_the_table_of_exit_statuses() {
        use clap::CommandFactory;

        let help = crate::cli::args::Cli::command().render_long_help().to_string();
        let manual = include_str!("../../../docs/operations.md");
        for status in 1..=7 {
            assert!(help.contains(&format!("\n  {status}  ")), "{status} is not in\n{help}");
            assert!(manual.contains(&format!("\n| {status} | ")), "{status} is not in the manual");
        }
    }

    #[test]
    fn a_failure_without_a_class_is_told_from_refused_arguments() {
        assert_eq!(CliError::Refused("no".into()).class(), ("failed", 1));
        assert_eq!(CliError::SomeFailed { failed: 1, of: 2 }.class().1, 1);
        let config: Result<_, ConfigError> = crate::config::Config::load(Path::new("/does/not/exist"));
        assert_eq!(CliError::from(config.unwrap_err()).class(), ("bad_configuration", 2));
    }
}
