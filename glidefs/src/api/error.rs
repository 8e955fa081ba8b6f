//! Refusals: the status, code and sentence for each error. The only file that maps errors to HTTP.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::upgrade::UpgradeError;
use super::wire::{ErrorBody, ErrorDetail, TOO_MANY_BATCHES};
use crate::cache::IoError;
use crate::observe::chain;
use crate::router::{DeviceError, NameError, RouterError, SizeError};
use crate::store::gc::GcError;
use crate::store::volume::VolumeError;

const RETRY_SECONDS: u32 = 1;
const IDEMPOTENCY_KEY_IN_USE: &str = "idempotency_key_in_use";
const TOO_MANY_IDEMPOTENCY_KEYS: &str = "too_many_idempotency_keys";

/// An answer that refuses a request: status, code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// The request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// The body is larger than allowed.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// The path or the named export does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The path does not take this method.
    pub fn method_not_allowed() -> Self {
        let message = "this path does not take this method: /openapi.json lists the methods of each path";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// The token is missing or wrong.
    pub fn unauthorized() -> Self {
        let message = "the token is missing or wrong: send \"Authorization: Bearer TOKEN\" with the token of [api] token_file, \
                       or use the Unix socket";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// This client may not send this request.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The header `Host` names another host than this one.
    pub fn wrong_host(host: &str) -> Self {
        // The client chose this text, so the message quotes a part only.
        let host: String = host.chars().take(80).collect();
        let message = format!(
            "the header Host names {host:?}, which is not this daemon: use an address instead of a name, or add the name to \
             [api] hosts"
        );
        Self::new(StatusCode::FORBIDDEN, "wrong_host", message)
    }

    /// As many batches as allowed are under way.
    pub fn too_many_batches(batches: usize) -> Self {
        let message = format!(
            "{batches} batches are under way, and more at once are not taken: send the request again later"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_BATCHES, message)
    }

    /// As many clients as allowed read traces.
    pub fn too_many_traces(readers: usize) -> Self {
        let message = format!(
            "{readers} clients read traces, and more at once are not served: end one of them, or ask again later"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_traces", message)
    }

    /// The body of the request did not come in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// The daemon cannot answer before recovery is done.
    pub fn not_ready() -> Self {
        let message = "exports are being recovered: ask again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message)
    }

    /// `exports` exports wait for the store to confirm this host as owner.
    pub fn unconfirmed(exports: usize) -> Self {
        let message = format!(
            "{exports} exports wait for the store to confirm that this host still has them: `glidefs export list` shows which"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unconfirmed", message)
    }

    /// The header `Idempotency-Key` has no key.
    pub fn bad_idempotency_key(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_idempotency_key", message)
    }

    /// The path takes no idempotency key.
    pub fn no_idempotency_key(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "no_idempotency_key", message)
    }

    /// The key belongs to another request.
    pub fn idempotency_key_reused() -> Self {
        let message = "the idempotency key was used for another request, with another method, path, query or body: choose a new key for each \
                       request, and send a request again exactly as before";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", message)
    }

    /// The first request with the key is under way.
    pub fn idempotency_key_in_use() -> Self {
        let message = "the first request with this idempotency key is under way: send the request again in a moment for the answer";
        Self::new(StatusCode::CONFLICT, IDEMPOTENCY_KEY_IN_USE, message)
    }

    /// Nobody knows whether the request with the key was carried out.
    pub fn idempotency_outcome_unknown() -> Self {
        let message = "the daemon ended while the first request with this idempotency key was under way, so the request may or may not have \
                       been carried out: look at the state of the export, and if it is not as wished, send the request with a new key";
        Self::new(StatusCode::CONFLICT, "idempotency_outcome_unknown", message)
    }

    /// The request with the key was carried out, and the answer was too large to be kept.
    pub fn idempotency_answer_too_large(status: u16) -> Self {
        let message = format!(
            "the request with this idempotency key was carried out, with status {status}, and is not carried out again; the answer was too \
             large to be kept: look at the state of the exports"
        );
        Self::new(StatusCode::CONFLICT, "idempotency_answer_too_large", message)
    }

    /// There is no room for another key.
    pub fn too_many_idempotency_keys() -> Self {
        let message = "too many requests with an idempotency key are under way, or have an unknown outcome: send the request again later; \
                       nothing was done";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_IDEMPOTENCY_KEYS, message)
    }

    /// The catalog cannot be written.
    pub fn catalog_fails(reason: &str) -> Self {
        let message = format!("the catalog cannot be written ({reason}): make room on the disk of cache.dir");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "catalog_fails", message)
    }

    /// The daemon failed while answering.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

impl From<UpgradeError> for ApiError {
    fn from(error: UpgradeError) -> Self {
        let (status, code) = match &error {
            UpgradeError::UnderWay => (StatusCode::CONFLICT, "upgrade_under_way"),
            UpgradeError::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
            UpgradeError::StoreAway { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
            UpgradeError::Failed { .. } => (StatusCode::CONFLICT, "upgrade_failed"),
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
            RouterError::Name(_) => (StatusCode::BAD_REQUEST, "bad_name"),
            RouterError::Size(_) => (StatusCode::BAD_REQUEST, "bad_size"),
            RouterError::Parameter { .. }
            | RouterError::Bound { .. }
            | RouterError::FailAfter { .. }
            | RouterError::Collect(GcError::GraceTooShort { .. }) => {
                (StatusCode::BAD_REQUEST, "bad_parameter")
            }
            RouterError::NotFound { .. } => (StatusCode::NOT_FOUND, "not_found"),
            RouterError::Conflict { .. }
            | RouterError::OtherDurability { .. }
            | RouterError::OtherOnUnreachable { .. }
            | RouterError::OtherSettings { .. } => (StatusCode::CONFLICT, "exists_with_other_parameters"),
            RouterError::Shrink { .. } => (StatusCode::CONFLICT, "cannot_shrink"),
            RouterError::TooMany { .. } => (StatusCode::CONFLICT, "too_many_exports"),
            RouterError::HalfDeleted { .. } => (StatusCode::CONFLICT, "half_deleted"),
            RouterError::InUse { .. } | RouterError::UserUnknown { .. } => (StatusCode::CONFLICT, "in_use"),
            RouterError::Undeleted { .. } => (StatusCode::SERVICE_UNAVAILABLE, "half_deleted"),
            RouterError::HalfRolledBack { .. } => (StatusCode::CONFLICT, "half_rolled_back"),
            RouterError::NotWrittenBack { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_flushed"),
            RouterError::Unconfirmed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unconfirmed"),
            RouterError::NotLost { .. } => (StatusCode::CONFLICT, "not_lost"),
            RouterError::Replaced { .. } => (StatusCode::CONFLICT, "replaced"),
            RouterError::NotInStore { .. } => (StatusCode::CONFLICT, "not_in_store"),
            RouterError::SnapshotNeeded { .. } => (StatusCode::CONFLICT, "snapshot_needed"),
            RouterError::SnapshotGone { .. } => (StatusCode::CONFLICT, "snapshot_gone"),
            RouterError::NotDetached { .. } => (StatusCode::CONFLICT, "not_detached"),
            RouterError::IdsExhausted => (StatusCode::INSUFFICIENT_STORAGE, "ids_exhausted"),
            RouterError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            RouterError::Device { source, .. } | RouterError::SizeNotTold { source, .. } => {
                device_status(source)
            }
            RouterError::Store { source, .. } => store_status(source),
            RouterError::Collect(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_failed"),
            RouterError::NoStore => (StatusCode::CONFLICT, "no_store"),
            RouterError::Lost { source: VolumeError::Diverged { .. }, .. }
            | RouterError::Writeback { source: IoError::Diverged, .. } => (StatusCode::CONFLICT, "diverged"),
            RouterError::Released { .. } | RouterError::NotReleased { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
            }
            RouterError::NameInUse { .. } => (StatusCode::CONFLICT, "conflict"),
            RouterError::Lost { .. } | RouterError::Writeback { source: IoError::Fenced, .. } => {
                (StatusCode::CONFLICT, "fenced")
            }
            RouterError::Writeback { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "flush_failed"),
            RouterError::Catalog(_) => (StatusCode::INTERNAL_SERVER_ERROR, "catalog"),
            RouterError::Interrupted { .. } | RouterError::State(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal")
            }
        };
        Self::new(status, code, chain(&error))
    }
}

fn store_status(error: &VolumeError) -> (StatusCode, &'static str) {
    match error {
        VolumeError::TooLarge { .. } => (StatusCode::BAD_REQUEST, "bad_size"),
        VolumeError::NameTaken { .. } | VolumeError::OtherVolume { .. } => {
            (StatusCode::CONFLICT, "exists_in_store")
        }
        VolumeError::Held(_) => (StatusCode::CONFLICT, "held"),
        VolumeError::SnapshotExists { .. } => (StatusCode::CONFLICT, "snapshot_exists"),
        VolumeError::Diverged { .. } => (StatusCode::CONFLICT, "diverged"),
        VolumeError::Damaged { .. } | VolumeError::TooDamaged { .. } => (StatusCode::CONFLICT, "damaged"),
        VolumeError::Fenced(_) | VolumeError::Contended { .. } => (StatusCode::CONFLICT, "fenced"),
        VolumeError::NoSuchName { .. }
        | VolumeError::NoSuchVolume { .. }
        | VolumeError::NotDeleted { .. }
        | VolumeError::NoSuchSnapshot { .. }
        | VolumeError::Gone { .. }
        | VolumeError::Deleted { .. } => (StatusCode::NOT_FOUND, "not_in_store"),
        error if error.is_transient() => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "store_failed"),
    }
}

fn device_status(error: &DeviceError) -> (StatusCode, &'static str) {
    match error {
        DeviceError::NoDriver => (StatusCode::SERVICE_UNAVAILABLE, "no_driver"),
        DeviceError::NoPermission => (StatusCode::SERVICE_UNAVAILABLE, "no_permission"),
        DeviceError::LimitReached => (StatusCode::SERVICE_UNAVAILABLE, "device_limit_reached"),
        DeviceError::Unsupported { .. } => (StatusCode::NOT_IMPLEMENTED, "kernel_too_old"),
        DeviceError::TimedOut { .. } | DeviceError::Stuck { .. } => {
            (StatusCode::GATEWAY_TIMEOUT, "device_timed_out")
        }
        DeviceError::Left { source, .. } => device_status(source),
        DeviceError::NotFound { .. } | DeviceError::Kernel { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "device_failed")
        }
    }
}

impl From<ApiError> for ErrorDetail {
    fn from(error: ApiError) -> Self {
        Self { code: error.code.into(), message: error.message }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = (self.status, self.code);
        let mut response = (status, Json(ErrorBody { error: self.into() })).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let value = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        if [TOO_MANY_BATCHES, IDEMPOTENCY_KEY_IN_USE, TOO_MANY_IDEMPOTENCY_KEYS].contains(&code) {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}
