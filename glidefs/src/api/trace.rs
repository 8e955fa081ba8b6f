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
use crate::observe::trace::{Part, TracedRequest};

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
        let (requests, last) = traces.after(query.since.unwrap_or(0));
        let wanted = |request: &TracedRequest| {
            query.export.as_ref().is_none_or(|name| **name == *request.export)
                && request.total_nanos >= query.slower_than_nanoseconds.unwrap_or(0)
        };
        let requests = requests.into_iter().filter(|(_, request)| wanted(request)).map(shown).collect();
        serde_json::to_vec(&wire::Trace { requests, last, missed: traces.missed() })
    };
    let body = state
        .off_thread
        .run(encode)
        .await?
        .map_err(|error| ApiError::new(wire::ProblemCode::Internal, error.to_string()))?;
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

fn shown((sequence, request): (u64, TracedRequest)) -> wire::TracedRequest {
    let of = |part| request.part_nanos[part as usize];
    wire::TracedRequest {
        sequence,
        unix_nanoseconds: request.unix_nanos,
        export: request.export.as_ref().into(),
        device_id: request.device_id,
        queue_id: request.queue_id,
        tag: request.tag,
        operation: request.operation.into(),
        offset_bytes: request.offset_bytes,
        length_bytes: request.length_bytes,
        fua: request.fua,
        result: request.result.into(),
        total_nanoseconds: request.total_nanos,
        parts: wire::TraceParts {
            queue: of(Part::Queue),
            limit: of(Part::Limit),
            brake: of(Part::Brake),
            slot: of(Part::Slot),
            copy: of(Part::Copy),
            log: of(Part::Log),
            sync: of(Part::Sync),
            store: of(Part::Store),
        },
        one_in: request.one_in,
    }
}
