//! The route of batches: one operation on many exports.
//!
//! Owns how many batches, and how many operations of a batch, are under way at once, and the answer: a line of JSON for each
//! export, sent as soon as the operation on the export has ended. Does not own the operations. Invariants: bodies are kept
//! of [`BATCHES_MAX`] batches at most, and others are read and dropped, so that the client reads the refusal; the failure of one
//! export is a line of the answer and stops no other export; a client that goes away ends the batch: operations under way are
//! finished, others never begin.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::body::{InQuery, JsonBody, discard};
use super::error::ApiError;
use super::exports;
use super::seats::HasWork;
use super::state::AppState;
use super::wire::{
    AttachQuery, BATCH_BYTES_MAX, BATCH_EXPORTS_MAX, BatchQuery, BatchRequest, BatchResult, CreateRequest,
    LINES_TYPE, RemoveQuery,
};
use crate::router::{ExportName, SharedPatience};

/// Batches under way at once: a bound on the memory for bodies.
pub(super) const BATCHES_MAX: usize = 4;
/// Operations of a batch under way at once. Operations at once share the commits of the catalog.
const AT_ONCE: usize = 64;

/// The permits for batches of a service.
#[derive(Clone, Debug)]
pub(super) struct BatchPermits(Arc<Semaphore>);

impl Default for BatchPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BATCHES_MAX)))
    }
}

/// The permit of a batch, taken before the body is read and kept until the answer ends.
pub(super) struct BatchPermit(#[expect(dead_code, reason = "given back when dropped")] OwnedSemaphorePermit);

/// Tells when dropped that a batch has ended.
struct Ending(Arc<Notify>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A batch with a permit.
pub(super) struct Permitted(BatchPermit, BatchRequest);

impl<S: Send + Sync> FromRequest<S> for Permitted {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let permits = request.extensions().get::<BatchPermits>();
        let permits =
            permits.ok_or_else(|| ApiError::internal("the daemon failed while answering: see its log"))?;
        let Ok(permit) = Arc::clone(&permits.0).try_acquire_owned() else {
            discard(request, BATCH_BYTES_MAX).await;
            return Err(ApiError::too_many_batches(BATCHES_MAX));
        };
        let JsonBody(batch) = JsonBody::<_, BATCH_BYTES_MAX>::from_request(request, state).await?;
        Ok(Self(BatchPermit(permit), batch))
    }
}

/// Create, attach, detach or delete many exports. The answer has a line of JSON for each export, in the order in which the
/// operations end. Some exports may fail while others succeed: the status of the answer is 200 either way, and `error` in a line
/// says which and why. Up to 64 operations are under way at once. Beside four batches under way another one is refused: the header
/// `Retry-After` says when to ask again. A client that closes the connection ends the batch: operations
/// that have begun are finished. The parameters are those of the operations on one export.
#[utoipa::path(
    post, path = "/v1/batch", operation_id = "batch", tag = "exports", request_body = BatchRequest,
    params(BatchQuery),
    responses(
        (status = 200, description = "A line for each export.", body = BatchResult, content_type = "application/x-ndjson"),
    )
)]
pub(super) async fn batch(
    State(state): State<AppState>,
    InQuery(query): InQuery<BatchQuery>,
    Permitted(permit, request): Permitted,
) -> Result<Response, ApiError> {
    if request.exports() > BATCH_EXPORTS_MAX {
        return Err(ApiError::too_large(format!("a batch has at most {BATCH_EXPORTS_MAX} exports")));
    }
    if let Some(parameter) = request.foreign_parameter(query) {
        let message =
            format!("{parameter} says nothing about the operation of this batch: leave {parameter} out");
        return Err(ApiError::bad_request(message));
    }
    let results = match request {
        BatchRequest::Create(requests) => each(state, permit, requests, create),
        BatchRequest::Attach(names) => {
            each(state, permit, names, move |state, name| attach(state, name, query))
        }
        BatchRequest::Detach(names) => {
            let patience = SharedPatience::default();
            each(state, permit, names, move |state, name| detach(state, name, query, patience.clone()))
        }
        BatchRequest::Delete(names) => {
            each(state, permit, names, move |state, name| delete(state, name, query))
        }
    };
    Ok(([(header::CONTENT_TYPE, LINES_TYPE)], Extension(HasWork), results).into_response())
}

/// The body with the result of `work` for each of `items`, which keeps `permit`.
fn each<T: Send + 'static>(
    state: AppState,
    permit: BatchPermit,
    items: Vec<T>,
    work: impl Fn(AppState, T) -> BoxFuture<'static, BatchResult> + Send + 'static,
) -> Body {
    let ending = Ending(Arc::clone(&state.batch_ended));
    let results = stream::iter(items).map(move |item| work(state.clone(), item));
    let chunks = results.buffer_unordered(AT_ONCE).ready_chunks(AT_ONCE);
    Body::from_stream(chunks.map(move |results| {
        let _kept = (&permit, &ending);
        Ok::<_, Infallible>(lines(&results))
    }))
}

fn lines(results: &[BatchResult]) -> Bytes {
    let mut lines = Vec::new();
    for result in results {
        // A plain struct always serialises.
        lines.extend_from_slice(&serde_json::to_vec(result).unwrap_or_default());
        lines.push(b'\n');
    }
    lines.into()
}

/// The result for the export `name`: `done`, or the error.
fn result(name: String, done: Result<BatchResult, ApiError>) -> BatchResult {
    match done {
        Ok(result) => BatchResult { name, ..result },
        Err(error) => BatchResult { name, error: Some(error.into()), ..BatchResult::default() },
    }
}

fn create(state: AppState, request: CreateRequest) -> BoxFuture<'static, BatchResult> {
    async move {
        let name = request.name.clone();
        let created = exports::create::create_one(&state, request).await;
        let done = created.map(|(existed, export)| BatchResult {
            export: Some(export),
            existed: Some(existed),
            ..BatchResult::default()
        });
        result(name, done)
    }
    .boxed()
}

fn attach(state: AppState, name: String, query: BatchQuery) -> BoxFuture<'static, BatchResult> {
    async move {
        let attached = async {
            let query = AttachQuery { unconfirmed: query.unconfirmed };
            exports::attach_one(&state, &ExportName::new(&name)?, query).await
        };
        let done = attached.await;
        result(name, done.map(|export| BatchResult { export: Some(export), ..BatchResult::default() }))
    }
    .boxed()
}

fn detach(
    state: AppState,
    name: String,
    query: BatchQuery,
    patience: SharedPatience,
) -> BoxFuture<'static, BatchResult> {
    async move {
        let detached = async {
            let name = ExportName::new(&name)?;
            Ok(state.router.detach_with_others(name.as_str(), query.force, patience).await?)
        };
        let done = detached.await;
        result(name, done.map(|info| BatchResult { export: Some(info.into()), ..BatchResult::default() }))
    }
    .boxed()
}

fn delete(state: AppState, name: String, query: BatchQuery) -> BoxFuture<'static, BatchResult> {
    async move {
        let deleted = async {
            let query = RemoveQuery { force: query.force };
            exports::delete_one(&state, &ExportName::new(&name)?, query).await
        };
        let done = deleted.await;
        let done =
            done.map(|deleted| BatchResult { existed: Some(deleted.existed), ..BatchResult::default() });
        result(name, done)
    }
    .boxed()
}
