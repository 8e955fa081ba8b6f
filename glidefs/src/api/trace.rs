//! `GET /v1/trace`: requests that were slow, a sample of all others, and where the time of each went.
//!
//! Does not own the requests (`observe::trace`), nor which they are (`worker/traces`). Invariant: an answer has at most the requests of the
//! ring, and is made off the control threads.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::body::InQuery;
use super::error::ApiError;
use super::state::AppState;
use super::wire;

/// Requests of devices that ended last, oldest first: those that took at least 10 ms, and about ten others a second of each worker. The
/// daemon keeps 2,048 of them. Ask with `since`, the `last` of the answer before, to get only what came after; where `last` is less than
/// that, the daemon has started anew.
#[utoipa::path(
    get, path = "/v1/trace", operation_id = "trace", tag = "daemon",
    params(wire::TraceQuery),
    responses((status = 200, description = "The requests.", body = wire::Trace))
)]
pub(super) async fn trace(
    State(state): State<AppState>,
    InQuery(query): InQuery<wire::TraceQuery>,
) -> Result<Response, ApiError> {
    if let Some(name) = &query.export {
        state.router.show(name)?;
    }
    let traces = state.traces;
    let encode = move || {
        let mut trace = traces.after(query.since.unwrap_or(0));
        trace.requests.retain(|request| {
            query.export.as_ref().is_none_or(|name| **name == *request.export)
                && request.total_nanoseconds >= query.slower_than_nanoseconds.unwrap_or(0)
        });
        serde_json::to_vec(&trace)
    };
    let body = state
        .off_thread
        .run(encode)
        .await?
        .map_err(|error| ApiError::new(wire::ProblemCode::Internal, error.to_string()))?;
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}
