//! Why there is no successor: the errors of the old program until `go`.
//!
//! Owns wording only. Every text tells the user how to act.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::handover::link::LinkError;
use crate::handover::program::ProgramError;

/// Why there is no successor. The text tells the user how to act.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The file is no program that may be started.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The end of this process would be the end of everything beside it.
    #[error(
        "the daemon is the first process of a container, which ends with this process: restart the container, or run the daemon below an \
         init"
    )]
    FirstProcess,
    /// The kernel does not start the program.
    #[error("{path} could not be started")]
    Start {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The successor says why it cannot take over.
    #[error("the successor ({path}) cannot take over: {reason}")]
    Refused { path: PathBuf, reason: String },
    /// The successor ended without a word, as programs do that know nothing of a hand-over.
    #[error("{path} ended before it was ready to take over ({status}){said}")]
    Ended {
        path: PathBuf,
        status: String,
        /// The last lines of the standard error, with a separator in front.
        said: String,
    },
    /// The successor does not say a word any more.
    #[error("the successor ({path}) was silent for {seconds} s, or not ready in time, and was ended")]
    Silent { path: PathBuf, seconds: u64 },
    /// The successor would serve something else.
    #[error(
        "{what} is {theirs} for the successor, and {own} for the daemon that runs: change the configuration back, or restart instead"
    )]
    Differs {
        what: &'static str,
        /// The value of the successor.
        theirs: String,
        /// The value of this daemon.
        own: String,
    },
    /// The program before could not serve again, should the successor fail.
    #[error(
        "the successor may write version {theirs} of {what} before it serves, and the daemon that runs reads up to version {own}, so that \
         nobody could serve should the successor fail: restart instead"
    )]
    TooNew {
        what: &'static str,
        /// The version of the successor.
        theirs: u64,
        /// The newest version that this daemon reads.
        own: u64,
    },
    /// The successor would have to wait for an address that it does not get.
    #[error("[api] listen is {address} for the successor, and nobody can listen there")]
    Address {
        address: SocketAddr,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The messages of the successor make no sense.
    #[error("the successor ({path}) was not understood")]
    Link {
        path: PathBuf,
        #[source]
        source: LinkError,
    },
}

/// A successor that did not get ready.
#[derive(Debug)]
pub struct NotReady {
    /// The version of the successor, if it came as far as to say so.
    pub version: Option<String>,
    /// Why there is no successor.
    pub error: OfferError,
}

impl From<OfferError> for NotReady {
    fn from(error: OfferError) -> Self {
        Self { version: None, error }
    }
}
