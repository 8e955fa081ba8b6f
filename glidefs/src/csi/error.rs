//! Why a call of the container storage interface failed, and the gRPC code of each reason.
//!
//! The only file which maps errors to gRPC. Invariant: every message tells whoever reads the events of a pod how to act.

use std::fmt::Display;

use tonic::{Code, Status};

use super::tools::ToolError;
use crate::api::wire::ProblemCode;
use crate::client::ClientError;
use crate::observe::chain;

/// Why a call of the orchestrator failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsiError {
    /// The driver refuses the call.
    #[error("{reason}")]
    Refused { code: Code, reason: String },
    #[error("there is no {what}")]
    NotFound {
        /// The volume, snapshot or path which was asked for.
        what: String,
    },
    /// The daemon refused, or does not answer.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// A program of the system failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A system call of the driver failed.
    #[error("cannot {action} {path}")]
    System {
        /// The step which was attempted.
        action: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The task of the call ended without an answer: an error in glidefs itself.
    #[error("the call broke off: see the driver's log")]
    Broken,
}

impl CsiError {
    /// The code of the daemon's refusal, if the daemon refused.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Daemon(ClientError::Refused { code, .. }) => Some(code),
            _ => None,
        }
    }

    /// A refusal with `code`.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self::Refused { code, reason: reason.into() }
    }

    /// The request lacks the field `field` of csi.proto, which the specification requires.
    pub fn missing(field: &str) -> Self {
        Self::new(Code::InvalidArgument, format!("the request has no {field}"))
    }

    /// The field `field` of csi.proto has a value which the driver does not take.
    pub fn invalid(field: &str, reason: impl Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{field}: {reason}"))
    }

    /// The name or path is in use by something else.
    pub fn exists(reason: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, reason)
    }

    /// The wanted size is not possible.
    pub fn out_of_range(reason: impl Into<String>) -> Self {
        Self::new(Code::OutOfRange, reason)
    }

    /// The state of the volume or of the host forbids the operation.
    pub fn precondition(reason: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, reason)
    }

    /// Something which passes by itself.
    pub fn later(reason: impl Display) -> Self {
        Self::new(Code::Unavailable, format!("{reason}: the call is made again later"))
    }

    /// This host has no volume `id`.
    pub fn no_volume(id: &str) -> Self {
        Self::NotFound { what: format!("volume {id:?} on this host") }
    }

    /// This host has no snapshot `id`.
    pub fn no_snapshot(id: &str) -> Self {
        Self::NotFound { what: format!("snapshot {id:?} on this host") }
    }

    /// An error of the system call which was to do `action` with `path`.
    pub fn system(action: &'static str, path: impl AsRef<std::path::Path>, source: std::io::Error) -> Self {
        Self::System { action, path: path.as_ref().display().to_string(), source }
    }

    fn code(&self) -> Code {
        match self {
            Self::Refused { code, .. } => *code,
            Self::NotFound { .. } => Code::NotFound,
            Self::Daemon(error) => daemon_code(error),
            Self::Tool(_) | Self::System { .. } | Self::Broken => Code::Internal,
        }
    }
}

impl From<CsiError> for Status {
    fn from(error: CsiError) -> Self {
        Self::new(error.code(), chain(&error))
    }
}

fn daemon_code(error: &ClientError) -> Code {
    match error {
        ClientError::NotRunning { .. }
        | ClientError::NoPermission { .. }
        | ClientError::Stranger { .. }
        | ClientError::Broken { .. } => Code::Unavailable,
        ClientError::Refused { code, .. } => refusal_code(code),
        ClientError::Url { .. } | ClientError::Token(_) | ClientError::NotUnderstood { .. } => Code::Internal,
    }
}

/// The gRPC code for a code of the API: by the status of refusals, and where gRPC knows more, by the code itself. A code which is not
/// known here is an internal error.
fn refusal_code(code: &str) -> Code {
    use ProblemCode as P;
    let Some(code) = ProblemCode::of(code) else { return Code::Internal };
    match code {
        P::ExistsWithOtherParameters | P::ExistsInStore | P::SnapshotExists | P::Conflict => {
            return Code::AlreadyExists;
        }
        P::CannotShrink => return Code::OutOfRange,
        P::TooManyExports | P::DeviceLimitReached => return Code::ResourceExhausted,
        P::StoreFailed | P::FlushFailed | P::UpgradeUnderWay => return Code::Unavailable,
        P::UpgradeFailed => return Code::Internal,
        _ => {}
    }
    match code.statuses()[0] {
        400 | 413 => Code::InvalidArgument,
        401 | 403 => Code::PermissionDenied,
        404 => Code::NotFound,
        408 | 503 | 504 => Code::Unavailable,
        409 | 501 => Code::FailedPrecondition,
        507 => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_daemon_keeps_its_words_and_gets_the_code_of_the_specification() {
        for (code, wanted) in [
            ("not_found", Code::NotFound),
            ("exists_with_other_parameters", Code::AlreadyExists),
            ("too_many_exports", Code::ResourceExhausted),
            ("in_use", Code::FailedPrecondition),
            ("store_unavailable", Code::Unavailable),
            ("never heard of", Code::Internal),
        ] {
            let refused = ClientError::Refused { code: code.into(), message: "do this".into() };
            let status = Status::from(CsiError::from(refused));
            assert_eq!((status.code(), status.message()), (wanted, "do this"), "{code}");
        }
    }
}
