//! Refusals: the code and sentence for each error, and how refusals stand in the description of the API. The only file that maps errors to
//! HTTP. Does not own the codes (`wire/codes`).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{Content, Header, ObjectBuilder, OpenApi, PathItem, Ref, RefOr, ResponseBuilder};

use super::upgrade::UpgradeError;
use super::wire::{ErrorDetail, PROBLEM_TYPE, Problem, ProblemCode as P};
use crate::cache::IoError;
use crate::observe::chain;
use crate::router::{DeviceError, RouterError};
use crate::store::gc::GcError;
use crate::store::volume::VolumeError;

/// When a request for which there was no place may be sent again.
const RETRY_SECONDS: u32 = 1;

/// An answer that refuses a request: status, code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: u16,
    code: P,
    message: String,
}

impl ApiError {
    /// A refusal with the usual status of `code`, and a sentence about the cause and the next step.
    pub fn new(code: P, message: impl Into<String>) -> Self {
        Self { status: code.statuses()[0], code, message: message.into() }
    }

    /// The header `Host` names another host than this one.
    pub fn wrong_host(host: &str) -> Self {
        // The client chose this text, so the message quotes a part only.
        let host: String = host.chars().take(80).collect();
        Self::new(
            P::WrongHost,
            format!(
                "the header Host names {host:?}, which is not this daemon: use an address instead of a name, or add the name to \
                 [api] hosts"
            ),
        )
    }
}

impl From<P> for ApiError {
    fn from(code: P) -> Self {
        Self::new(code, format!("{} {}", code.title(), code.next_step()))
    }
}

impl From<UpgradeError> for ApiError {
    fn from(error: UpgradeError) -> Self {
        let code = match &error {
            UpgradeError::UnderWay => P::UpgradeUnderWay,
            UpgradeError::NotReady => P::NotReady,
            UpgradeError::StoreAway { .. } => P::StoreUnavailable,
            UpgradeError::Failed { .. } => P::UpgradeFailed,
        };
        Self::new(code, chain(&error))
    }
}

/// Of an error of the router, or one that the router has as well.
impl<E: Into<RouterError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        let error = error.into();
        let code = match &error {
            RouterError::Name(_) => P::BadName,
            RouterError::Size(_) => P::BadSize,
            RouterError::Parameter { .. }
            | RouterError::Bound
            | RouterError::FailAfter
            | RouterError::Collect(GcError::GraceTooShort { .. }) => P::BadParameter,
            RouterError::NotFound { .. } => P::NotFound,
            RouterError::OtherParameter { .. } | RouterError::OtherProperty { .. } => {
                P::ExistsWithOtherParameters
            }
            RouterError::Shrink { .. } => P::CannotShrink,
            RouterError::TooMany { .. } => P::TooManyExports,
            RouterError::HeldBack { .. } => P::HeldBack,
            RouterError::HalfDeleted { .. } | RouterError::PartlyDeleted { .. } => P::HalfDeleted,
            RouterError::InUse { .. } | RouterError::UserUnknown { .. } => P::InUse,
            RouterError::HalfRolledBack { .. } => P::HalfRolledBack,
            RouterError::NotWrittenBack { .. } => P::NotFlushed,
            RouterError::Unconfirmed { .. } => P::Unconfirmed,
            RouterError::NotLost { .. } => P::NotLost,
            RouterError::Replaced { .. } => P::Replaced,
            RouterError::NotInStore { .. } => P::NotInStore,
            RouterError::SnapshotNeeded { .. } => P::SnapshotNeeded,
            RouterError::SnapshotGone { .. } => P::SnapshotGone,
            RouterError::NotDetached { .. } => P::NotDetached,
            RouterError::IdsExhausted => P::IdsExhausted,
            RouterError::Stopping => P::Stopping,
            RouterError::Device { source, .. } | RouterError::SizeNotTold { source, .. } => {
                device_code(source)
            }
            RouterError::Store { source, .. } => store_code(source),
            RouterError::Collect(_) => P::StoreFailed,
            RouterError::NoStore => P::NoStore,
            RouterError::Lost { source: VolumeError::Diverged { .. }, .. }
            | RouterError::Writeback { source: IoError::Diverged, .. } => P::Diverged,
            RouterError::Released { .. } | RouterError::NotReleased { .. } => P::StoreUnavailable,
            RouterError::NameInUse { .. } => P::Conflict,
            RouterError::Lost { .. } | RouterError::Writeback { source: IoError::Fenced, .. } => P::Fenced,
            RouterError::Writeback { .. } => P::FlushFailed,
            RouterError::Catalog(_) => P::Catalog,
            RouterError::Interrupted { .. } | RouterError::State(_) => P::Internal,
        };
        let status = match &error {
            RouterError::PartlyDeleted { .. } | RouterError::Collect(_) if code != P::BadParameter => 503,
            RouterError::NotInStore { .. } => 409,
            _ => code.statuses()[0],
        };
        Self { status, ..Self::new(code, chain(&error)) }
    }
}

fn store_code(error: &VolumeError) -> P {
    match error {
        VolumeError::TooLarge { .. } => P::BadSize,
        VolumeError::NameTaken { .. } | VolumeError::OtherVolume { .. } => P::ExistsInStore,
        VolumeError::Held(_) => P::Held,
        VolumeError::SnapshotExists { .. } => P::SnapshotExists,
        VolumeError::Diverged { .. } => P::Diverged,
        VolumeError::Damaged { .. } | VolumeError::TooDamaged { .. } | VolumeError::SnapshotBroken { .. } => {
            P::Damaged
        }
        VolumeError::Fenced(_) | VolumeError::Contended { .. } => P::Fenced,
        VolumeError::NoSuchName { .. }
        | VolumeError::NoSuchVolume { .. }
        | VolumeError::NotDeleted { .. }
        | VolumeError::NoSuchSnapshot { .. }
        | VolumeError::Gone { .. }
        | VolumeError::Deleted { .. } => P::NotInStore,
        error if error.is_transient() => P::StoreUnavailable,
        _ => P::StoreFailed,
    }
}

fn device_code(error: &DeviceError) -> P {
    match error {
        DeviceError::NoDriver => P::NoDriver,
        DeviceError::NoPermission => P::NoPermission,
        DeviceError::LimitReached => P::DeviceLimitReached,
        DeviceError::Unsupported { .. } | DeviceError::BrokenKernel { .. } => P::KernelTooOld,
        DeviceError::TimedOut { .. } | DeviceError::Stuck { .. } => P::DeviceTimedOut,
        DeviceError::Left { source, .. } => device_code(source),
        DeviceError::NotFound { .. } | DeviceError::Kernel { .. } => P::DeviceFailed,
    }
}

impl From<ApiError> for Problem {
    fn from(ApiError { status, code, message }: ApiError) -> Self {
        Self {
            type_uri: format!("/v1/problems/{}", code.as_str()),
            title: code.title().into(),
            status,
            detail: message.clone(),
            code: code.as_str().into(),
            error: ErrorDetail { code: code.as_str().into(), message },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.code;
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(Problem::from(self))).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
        if code == P::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if code == P::TooManyUnderWay {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

/// Adds the refusals to the description of the API: any operation may be refused with any status of the table of codes.
pub(super) fn describe(api: &mut OpenApi) {
    let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer));
    header.description =
        Some("Seconds until the request may be sent again, with the code `too_many_under_way`.".into());
    let refused = || {
        ResponseBuilder::new()
            .description("Refused: `code` says why, and `detail` what to do.")
            .content(PROBLEM_TYPE, Content::new(Some(Ref::from_schema_name("Problem"))))
    };
    let (later, refused) = (refused().header("Retry-After", header).build(), refused().build());
    for item in api.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, patch, .. } = item;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            for status in P::ALL.iter().flat_map(|code| code.statuses()) {
                let response = if *status == 503 { &later } else { &refused };
                operation.responses.responses.insert(status.to_string(), RefOr::T(response.clone()));
            }
        }
    }
}
