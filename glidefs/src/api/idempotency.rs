//! Requests that change something and carry the header `Idempotency-Key`: each is carried out at most once, however often it is sent.
//! The header is that of draft-ietf-httpapi-idempotency-key-header.
//!
//! Owns the way of such a request: the key, the fingerprint, the task, the answer that is kept, the answer that is sent again. Does not
//! own the states of keys (`router`), nor the text of a key (`wire`). Invariants:
//! - Requests without the header, and those that only read, pass as if this file were not here.
//! - The work runs in a task of its own, and goes on although the client goes away; the end of the daemon waits for such tasks as for
//!   connections, and a task that is cut off, or takes too long without a client, leaves an unknown outcome.
//! - Before the work the catalog has the key, and before an answer is sent the catalog has the answer.
//! - A success spends a key, and a refusal (a status below 500) frees the key: nothing was done. Whatever has failed leaves an unknown
//!   outcome: a part may have been done, and the daemon, or another client, may do the rest at any time.

mod describe;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

pub(super) use self::describe::describe;
use super::body::{BODY_BYTES_MAX, discard, whole};
use super::error::ApiError;
use super::state::AppState;
use super::wire::{BATCH_BYTES_MAX, IDEMPOTENCY_KEY, IDEMPOTENCY_REPLAYED, IdempotencyKey};
use crate::observe::chain;
use crate::router::{
    Admission, Fingerprint, KEPT_BODY_BYTES_MAX, KeptAnswer, KeyUnderWay, Keys, RequestKey, Router,
    RouterError,
};
use crate::tasks;

/// The paths that take no key, each with the reason.
const WITHOUT_KEY: [(&str, &str); 5] = [
    (
        "/v1/batch",
        "a batch takes no idempotency key, as its answer is sent while it is made: send it again without a key, which does the rest, or send \
         a request with a key for each export",
    ),
    (
        "/v1/upgrade",
        "an upgrade takes no idempotency key, as it ends the daemon that would keep the answer: `glidefs status` shows the last upgrade",
    ),
    ("/v1/exports/{name}/flush", HARMLESS),
    ("/v1/drain", HARMLESS),
    ("/v1/gc", HARMLESS),
];
/// Why a request takes no key whose repetition is what the client wants.
const HARMLESS: &str =
    "this request takes no idempotency key, as it may be sent any number of times: send it without a key";
/// How long a request may be carried out after its client has gone. It may wait for a store that is away, for ever, and the requests under
/// way are bounded for all clients together.
const ABANDONED_MAX: Duration = Duration::from_mins(10);
/// Whether requests that change something at `path`, as the description has it, take no key.
pub(super) fn takes_no_key(path: &str) -> bool {
    WITHOUT_KEY.iter().any(|(without, _)| *without == path)
}

/// Headers that belong to one connection or one moment.
const NOT_KEPT: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::DATE];

/// Counters of requests with an idempotency key, by what became of them.
#[derive(Debug, Default)]
pub struct KeyStats {
    /// Carried out, and a success.
    pub executed: AtomicU64,
    /// Refused, and the key is free again; or failed, and the outcome is unknown from then on.
    pub failed: AtomicU64,
    /// Answered with the answer of the first time.
    pub replayed: AtomicU64,
    /// Refused: the first request is under way.
    pub in_use: AtomicU64,
    /// Refused: the key belongs to another request.
    pub reused: AtomicU64,
    /// Refused: nobody knows whether the request was carried out.
    pub unknown: AtomicU64,
    /// Refused: no room, or the catalog cannot be written.
    pub no_room: AtomicU64,
}

/// The state for requests with a key. Cheap to clone.
#[derive(Clone)]
pub(super) struct Keyed {
    router: Arc<Router>,
    stats: Arc<KeyStats>,
    /// [`ABANDONED_MAX`], or less in a test.
    pub abandoned_max: Duration,
}

impl Keyed {
    pub fn of(state: &AppState) -> Self {
        let (router, stats) = (Arc::clone(&state.router), Arc::clone(&state.stats.keys));
        Self { router, stats, abandoned_max: ABANDONED_MAX }
    }

    /// Answers a request with a key.
    async fn answer(self, request: Request, next: Next) -> Result<Response, ApiError> {
        let checked = check(&request);
        let key = match checked {
            Ok(key) => key,
            Err(refusal) => {
                discard(request, BATCH_BYTES_MAX).await;
                return Err(refusal);
            }
        };
        let (parts, body) = request.into_parts();
        let body = whole(Request::new(body), &(), BODY_BYTES_MAX).await?;
        let target = parts.uri.path_and_query().map_or_else(|| parts.uri.path(), |target| target.as_str());
        let fingerprint = Fingerprint::of(&[parts.method.as_str().as_bytes(), target.as_bytes(), &body]);
        let keys: &Arc<Keys> = self.router.keys();
        match keys.admit(RequestKey::of(key.as_str()), fingerprint) {
            // Refused here, the request is carried out by the next daemon under the same key.
            Admission::Admitted(under_way) if self.router.is_stopping() => {
                drop(under_way);
                Err(RouterError::Stopping.into())
            }
            Admission::Admitted(under_way) => {
                let request = Request::from_parts(parts, Body::from(body));
                // Dropped with this future, when the client goes away.
                let (_client, client_gone) = oneshot::channel::<()>();
                let abandoned = async move {
                    let _ = client_gone.await;
                    tokio::time::sleep(self.abandoned_max).await;
                };
                let task = tasks::spawn(carry_out(self.stats, under_way, request, next, abandoned));
                // Without an answer the work has failed by a mistake in it, or the daemon ends.
                Ok(task.await.unwrap_or_else(|_| broken().into_response()))
            }
            Admission::Done(answer) => {
                count(&self.stats.replayed);
                replay(&answer)
            }
            Admission::InUse => {
                count(&self.stats.in_use);
                Err(ApiError::idempotency_key_in_use())
            }
            Admission::Reused => {
                count(&self.stats.reused);
                Err(ApiError::idempotency_key_reused())
            }
            Admission::Unknown => {
                count(&self.stats.unknown);
                Err(ApiError::idempotency_outcome_unknown())
            }
            Admission::Full => {
                count(&self.stats.no_room);
                Err(ApiError::too_many_idempotency_keys())
            }
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Answers requests with a key, and passes all others on.
pub(super) async fn keyed(State(keyed): State<Keyed>, request: Request, next: Next) -> Response {
    if !takes_key(request.method()) || !request.headers().contains_key(IDEMPOTENCY_KEY) {
        return next.run(request).await;
    }
    // Boxed, so that the futures of all other requests stay small.
    Box::pin(keyed.answer(request, next)).await.unwrap_or_else(IntoResponse::into_response)
}

/// Whether a key means something with `method`.
fn takes_key(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

/// The key of `request`, which has the header, or why the request is refused.
fn check(request: &Request) -> Result<IdempotencyKey, ApiError> {
    let key = key_of(request.headers())?;
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    match WITHOUT_KEY.iter().find(|(without, _)| *without == path) {
        Some((_, why)) => Err(ApiError::no_idempotency_key(*why)),
        None => Ok(key),
    }
}

fn key_of(headers: &HeaderMap) -> Result<IdempotencyKey, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => IdempotencyKey::of_header(value.as_bytes())
            .map_err(|error| ApiError::bad_idempotency_key(error.to_string())),
        _ => Err(ApiError::bad_idempotency_key("the header Idempotency-Key is there twice: send one key")),
    }
}

/// Carries `request` out once the catalog has the key, or until `abandoned` ends. Returns the answer once the catalog has the answer.
///
/// Where `under_way` is dropped, the outcome is unknown.
async fn carry_out(
    stats: Arc<KeyStats>,
    mut under_way: KeyUnderWay,
    request: Request,
    next: Next,
    abandoned: impl Future<Output = ()>,
) -> Response {
    if let Err(error) = under_way.begun().await {
        count(&stats.no_room);
        return ApiError::catalog_fails(&chain(&error)).into_response();
    }
    let (parts, body) = tokio::select! {
        biased;
        answer = next.run(request) => answer.into_parts(),
        // Operations of the router that have begun go on.
        () = abandoned => return broken().into_response(),
    };
    // Bodies are in memory already, but for those of the paths that take no key.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else { return broken().into_response() };
    if parts.status.is_success() {
        count(&stats.executed);
        under_way.done(kept(parts.status, &parts.headers, &body)).await;
    } else {
        count(&stats.failed);
        if !parts.status.is_server_error() {
            under_way.free().await;
        }
    }
    Response::from_parts(parts, Body::from(body))
}

fn broken() -> ApiError {
    ApiError::internal(
        "the daemon failed while answering: the log of the daemon says why, and the outcome is unknown",
    )
}

/// The part of an answer that is kept.
fn kept(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> KeptAnswer {
    let headers: Vec<(String, String)> = headers
        .iter()
        .filter(|(name, _)| !NOT_KEPT.contains(name))
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let body = (body.len() <= KEPT_BODY_BYTES_MAX).then(|| std::str::from_utf8(body).ok()).flatten();
    KeptAnswer { status: status.as_u16(), headers, body: body.map(str::to_owned) }
}

/// The answer of the first time.
fn replay(answer: &KeptAnswer) -> Result<Response, ApiError> {
    let Some(body) = &answer.body else { return Err(ApiError::idempotency_answer_too_large(answer.status)) };
    let mut response = Response::new(Body::from(body.clone()));
    // Statuses and headers were valid when they were kept, and the record has a checksum.
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
