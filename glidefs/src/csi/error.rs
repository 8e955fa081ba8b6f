//! Why a call of the container storage interface failed, and the gRPC code of each reason.
//!
//! The only file which maps errors to gRPC. Invariant: every message tells whoever reads the events of a pod how to act.

use tonic::{Code, Status};

use super::tools::ToolError;
use crate::api::wire::ProblemCode;
use crate::client::ClientError;
use crate::observe::chain;

/// Why a call of the orchestrator failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsiError {
    /// The request lacks a field which the specification requires.
    #[error("the request has no {field}")]
    Missing {
        /// The field's name in csi.proto.
        field: &'static str,
    },
    /// A field of the request has a value which the driver does not take.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field's name in csi.proto.
        field: &'static str,
        reason: String,
    },
    #[error("there is no {what}")]
    NotFound {
        /// The volume, snapshot or path which was asked for.
        what: String,
    },
    /// The name or path is in use by something else.
    #[error("{reason}")]
    Exists { reason: String },
    /// The wanted size is not possible.
    #[error("{reason}")]
    OutOfRange { reason: String },
    /// The volume cannot be where the request wants it.
    #[error("{reason}")]
    Exhausted { reason: String },
    /// The state of the volume or of the host forbids the operation.
    #[error("{reason}")]
    Precondition { reason: String },
    /// Something which passes by itself.
    #[error("{reason}: the call is made again later")]
    Later { reason: String },
    /// Another call works on the same object.
    #[error("another call for {what} is under way: this call is made again later")]
    UnderWay {
        /// The volume or snapshot, and which of its services.
        what: String,
    },
    /// The token of a listing is none which this driver gave out.
    #[error("{token:?} is no token of a listing: begin without a token")]
    Token { token: String },
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
            Self::Missing { .. } | Self::Invalid { .. } => Code::InvalidArgument,
            Self::NotFound { .. } => Code::NotFound,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::OutOfRange { .. } => Code::OutOfRange,
            Self::Exhausted { .. } => Code::ResourceExhausted,
            Self::Precondition { .. } => Code::FailedPrecondition,
            Self::Later { .. } => Code::Unavailable,
            Self::UnderWay { .. } | Self::Token { .. } => Code::Aborted,
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
        ClientError::NotRunning { .. } | ClientError::NoPermission { .. } | ClientError::Broken { .. } => {
            Code::Unavailable
        }
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

    #[test]
    fn a_call_beside_another_one_and_a_wrong_token_are_aborted() {
        let under_way = CsiError::UnderWay { what: "volume csi-a".into() };
        let token = CsiError::Token { token: "7".into() };
        let under_way = Status::from(under_way);
        assert_eq!(under_way.code(), Code::Aborted);
        assert!(under_way.message().ends_with(": this call is made again later"), "{under_way}");
        assert_eq!(Status::from(token).code(), Code::Aborted);
    }
}
