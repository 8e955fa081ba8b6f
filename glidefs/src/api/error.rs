//! Refusals: the status, code and sentence for each error. The only file that maps errors to HTTP.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::upgrade::UpgradeError;
use super::wire::{ErrorDetail, PROBLEM_TYPE, Problem, ProblemCode};
use crate::cache::IoError;
use crate::observe::chain;
use crate::router::{DeviceError, NameError, RouterError, SizeError};
use crate::store::gc::GcError;
use crate::store::volume::VolumeError;

const RETRY_SECONDS: u32 = 1;

/// An answer that refuses a request: status, code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: ProblemCode,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, code: ProblemCode, message: impl Into<String>) -> Self {
        debug_assert!(
            code.statuses().contains(&status.as_u16()),
            "{code:?} does not have the status {status}"
        );
        Self { status, code, message: message.into() }
    }

    /// The request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ProblemCode::BadRequest, message)
    }

    /// The body is larger than allowed.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ProblemCode::TooLarge, message)
    }

    /// The path or the named export does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ProblemCode::NotFound, message)
    }

    /// The path does not take this method.
    pub fn method_not_allowed() -> Self {
        let message = "this path does not take this method: /openapi.json lists the methods of each path";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ProblemCode::MethodNotAllowed, message)
    }

    /// The token is missing or wrong.
    pub fn unauthorized() -> Self {
        let message = "the token is missing or wrong: send \"Authorization: Bearer TOKEN\" with the token of [api] token_file, \
                       or use the Unix socket";
        Self::new(StatusCode::UNAUTHORIZED, ProblemCode::Unauthorized, message)
    }

    /// This client may not send this request.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ProblemCode::Forbidden, message)
    }

    /// The header `Host` names another host than this one.
    pub fn wrong_host(host: &str) -> Self {
        // The client chose this text, so the message quotes a part only.
        let host: String = host.chars().take(80).collect();
        let message = format!(
            "the header Host names {host:?}, which is not this daemon: use an address instead of a name, or add the name to \
             [api] hosts"
        );
        Self::new(StatusCode::FORBIDDEN, ProblemCode::WrongHost, message)
    }

    /// As many requests as allowed change something, or wait for the store.
    pub fn too_many_under_way(requests: usize) -> Self {
        let message = format!(
            "{requests} requests of this kind are under way, and more at once are not taken: send the request again later, and see \
             whether the store answers"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::TooManyUnderWay, message)
    }

    /// As many clients as allowed read traces.
    pub fn too_many_traces(readers: usize) -> Self {
        let message = format!(
            "{readers} clients read traces, and more at once are not served: end one of them, or ask again later"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::TooManyTraces, message)
    }

    /// The body of the request did not come in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, ProblemCode::Timeout, message)
    }

    /// The daemon cannot answer before recovery is done.
    pub fn not_ready() -> Self {
        let message = "exports are being recovered: ask again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::NotReady, message)
    }

    /// `exports` exports wait for the store to confirm this host as owner.
    pub fn unconfirmed(exports: usize) -> Self {
        let message = format!(
            "{exports} exports wait for the store to confirm that this host still has them: `glidefs export list` shows which"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Unconfirmed, message)
    }

    /// The catalog cannot be written.
    pub fn catalog_fails(reason: &str) -> Self {
        let message = format!("the catalog cannot be written ({reason}): make room on the disk of cache.dir");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::CatalogFails, message)
    }

    /// A parameter of the query is out of bounds.
    pub fn bad_parameter(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ProblemCode::BadParameter, message)
    }

    /// There is no such code of a problem.
    pub fn no_such_problem() -> Self {
        Self::not_found("there is no problem of this code: GET /v1/problems lists all codes")
    }

    /// The daemon failed while answering.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::Internal, message)
    }
}

impl From<UpgradeError> for ApiError {
    fn from(error: UpgradeError) -> Self {
        let (status, code) = match &error {
            UpgradeError::UnderWay => (StatusCode::CONFLICT, ProblemCode::UpgradeUnderWay),
            UpgradeError::NotReady => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::NotReady),
            UpgradeError::StoreAway { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::StoreUnavailable)
            }
            UpgradeError::Failed { .. } => (StatusCode::CONFLICT, ProblemCode::UpgradeFailed),
        };
        Self::new(status, code, chain(&error))
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        RouterError::from(error).into()
    }
}

impl From<SizeError> for ApiError {
    fn from(error: SizeError) -> Self {
        RouterError::from(error).into()
    }
}

impl From<RouterError> for ApiError {
    fn from(error: RouterError) -> Self {
        let (status, code) = match &error {
            RouterError::Name(_) => (StatusCode::BAD_REQUEST, ProblemCode::BadName),
            RouterError::Size(_) => (StatusCode::BAD_REQUEST, ProblemCode::BadSize),
            RouterError::Parameter { .. }
            | RouterError::Bound { .. }
            | RouterError::FailAfter { .. }
            | RouterError::Collect(GcError::GraceTooShort { .. }) => {
                (StatusCode::BAD_REQUEST, ProblemCode::BadParameter)
            }
            RouterError::NotFound { .. } => (StatusCode::NOT_FOUND, ProblemCode::NotFound),
            RouterError::OtherParameter { .. }
            | RouterError::OtherDurability { .. }
            | RouterError::OtherOnUnreachable { .. }
            | RouterError::OtherSettings { .. } => {
                (StatusCode::CONFLICT, ProblemCode::ExistsWithOtherParameters)
            }
            RouterError::Shrink { .. } => (StatusCode::CONFLICT, ProblemCode::CannotShrink),
            RouterError::TooMany { .. } => (StatusCode::CONFLICT, ProblemCode::TooManyExports),
            RouterError::HalfDeleted { .. } => (StatusCode::CONFLICT, ProblemCode::HalfDeleted),
            RouterError::InUse { .. } | RouterError::UserUnknown { .. } => {
                (StatusCode::CONFLICT, ProblemCode::InUse)
            }
            RouterError::PartlyDeleted { .. } => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::HalfDeleted),
            RouterError::HalfRolledBack { .. } => (StatusCode::CONFLICT, ProblemCode::HalfRolledBack),
            RouterError::NotWrittenBack { .. } => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::NotFlushed),
            RouterError::Unconfirmed { .. } => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Unconfirmed),
            RouterError::NotLost { .. } => (StatusCode::CONFLICT, ProblemCode::NotLost),
            RouterError::Replaced { .. } => (StatusCode::CONFLICT, ProblemCode::Replaced),
            RouterError::NotInStore { .. } => (StatusCode::CONFLICT, ProblemCode::NotInStore),
            RouterError::SnapshotNeeded { .. } => (StatusCode::CONFLICT, ProblemCode::SnapshotNeeded),
            RouterError::SnapshotGone { .. } => (StatusCode::CONFLICT, ProblemCode::SnapshotGone),
            RouterError::NotDetached { .. } => (StatusCode::CONFLICT, ProblemCode::NotDetached),
            RouterError::IdsExhausted => (StatusCode::INSUFFICIENT_STORAGE, ProblemCode::IdsExhausted),
            RouterError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Stopping),
            RouterError::Device { source, .. } | RouterError::SizeNotTold { source, .. } => {
                device_status(source)
            }
            RouterError::Store { source, .. } => store_status(source),
            RouterError::Collect(_) => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::StoreFailed),
            RouterError::NoStore => (StatusCode::CONFLICT, ProblemCode::NoStore),
            RouterError::Lost { source: VolumeError::Diverged { .. }, .. }
            | RouterError::Writeback { source: IoError::Diverged, .. } => {
                (StatusCode::CONFLICT, ProblemCode::Diverged)
            }
            RouterError::Released { .. } | RouterError::NotReleased { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::StoreUnavailable)
            }
            RouterError::NameInUse { .. } => (StatusCode::CONFLICT, ProblemCode::Conflict),
            RouterError::Lost { .. } | RouterError::Writeback { source: IoError::Fenced, .. } => {
                (StatusCode::CONFLICT, ProblemCode::Fenced)
            }
            RouterError::Writeback { .. } => (StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::FlushFailed),
            RouterError::Catalog(_) => (StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::Catalog),
            RouterError::Interrupted { .. } | RouterError::State(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::Internal)
            }
        };
        Self::new(status, code, chain(&error))
    }
}

fn store_status(error: &VolumeError) -> (StatusCode, ProblemCode) {
    match error {
        VolumeError::TooLarge { .. } => (StatusCode::BAD_REQUEST, ProblemCode::BadSize),
        VolumeError::NameTaken { .. } | VolumeError::OtherVolume { .. } => {
            (StatusCode::CONFLICT, ProblemCode::ExistsInStore)
        }
        VolumeError::Held(_) => (StatusCode::CONFLICT, ProblemCode::Held),
        VolumeError::SnapshotExists { .. } => (StatusCode::CONFLICT, ProblemCode::SnapshotExists),
        VolumeError::Diverged { .. } => (StatusCode::CONFLICT, ProblemCode::Diverged),
        VolumeError::Damaged { .. } | VolumeError::TooDamaged { .. } | VolumeError::SnapshotBroken { .. } => {
            (StatusCode::CONFLICT, ProblemCode::Damaged)
        }
        VolumeError::Fenced(_) | VolumeError::Contended { .. } => (StatusCode::CONFLICT, ProblemCode::Fenced),
        VolumeError::NoSuchName { .. }
        | VolumeError::NoSuchVolume { .. }
        | VolumeError::NotDeleted { .. }
        | VolumeError::NoSuchSnapshot { .. }
        | VolumeError::Gone { .. }
        | VolumeError::Deleted { .. } => (StatusCode::NOT_FOUND, ProblemCode::NotInStore),
        error if error.is_transient() => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::StoreUnavailable),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::StoreFailed),
    }
}

fn device_status(error: &DeviceError) -> (StatusCode, ProblemCode) {
    match error {
        DeviceError::NoDriver => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::NoDriver),
        DeviceError::NoPermission => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::NoPermission),
        DeviceError::LimitReached => (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::DeviceLimitReached),
        DeviceError::Unsupported { .. } => (StatusCode::NOT_IMPLEMENTED, ProblemCode::KernelTooOld),
        DeviceError::TimedOut { .. } | DeviceError::Stuck { .. } => {
            (StatusCode::GATEWAY_TIMEOUT, ProblemCode::DeviceTimedOut)
        }
        DeviceError::Left { source, .. } => device_status(source),
        DeviceError::NotFound { .. } | DeviceError::Kernel { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::DeviceFailed)
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = (self.status, self.code);
        let mut response = (status, Json(Problem::from(self))).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if code.has_retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}
