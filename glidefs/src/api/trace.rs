//! `GET /v1/trace`: single requests and where their time went, sent for as long as the client stays.
//!
//! Owns how many clients read at once, for how long, and what each is sent. Does not own what is traced (`worker/traces`, `store/watch`).
//! Invariants: with the last client traces are off again, however the client has gone: the stream of an answer ends the session when
//! dropped; the memory of a client is that of the session, as a client that takes nothing is sent nothing, and cut off by the time limit of
//! every answer (`connection`).

mod hub;
mod lines;
mod reader;
mod stats;
mod stream;

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

pub use self::hub::TraceHub;
#[cfg(feature = "otel")]
pub use self::hub::{ReaderSeat, one_in_for};
#[cfg(feature = "otel")]
pub use self::reader::{Counted, LOOK_BUSY, counts_of, look_at_workers};
#[cfg(feature = "otel")]
pub use self::stats::SpanStats;
pub use self::stats::TraceStats;
use super::body::InQuery;
use super::error::ApiError;
use super::state::AppState;
use super::wire::ProblemCode as P;
use super::wire::{LINES_TYPE, TraceKind, TraceLine, TraceQuery};
use crate::observe::trace::{Ask, Kinds};

/// Longest trace: a client that was forgotten ends some time.
const SECONDS_MAX: u32 = 3600;
/// Most requests among which one is traced.
const ONE_IN_MAX: u32 = 1_000_000_000;

/// Single requests, and where their time went: a line of JSON for each, as soon as the request has ended, until the client closes the
/// connection, the time is over, or the daemon stops. Without `one_in` the daemon aims at about 200 requests a second of the
/// host, or of `export` behind the first second, and follows the load; where only slow requests are asked for, all are looked at. Requests to the store are few, and all are sent. At
/// most four clients read at once. A client that is too slow loses lines, which are counted in lines of the kind `counts`.
#[utoipa::path(
    get, path = "/v1/trace", operation_id = "trace", tag = "daemon",
    params(TraceQuery),
    responses(
        (status = 200, description = "A line for each request.", body = TraceLine, content_type = "application/x-ndjson"),
    )
)]
pub(super) async fn trace(
    State(state): State<AppState>,
    InQuery(query): InQuery<TraceQuery>,
) -> Result<Response, ApiError> {
    if let Some(name) = &query.export {
        state.router.show(name)?;
    }
    let seconds = within(query.seconds, SECONDS_MAX, "seconds")?.unwrap_or(SECONDS_MAX);
    let one_in = within(query.one_in, ONE_IN_MAX, "one_in")?;
    let slower_than = query.slower_than_nanoseconds.map(Duration::from_nanos).unwrap_or_default();
    let ask = Ask {
        kinds: match query.kind.unwrap_or_default() {
            TraceKind::Requests => Kinds::Requests,
            TraceKind::Store => Kinds::Store,
            TraceKind::All => Kinds::All,
        },
        export: query.export,
        slower_than,
        // What is slow is known at the end only.
        one_in: one_in.unwrap_or(u32::from(!slower_than.is_zero())),
    };
    let seat = state.traces.open(ask).await?;
    let lines = stream::lines(seat, state.off_thread, Duration::from_secs(seconds.into()));
    let headers = [(header::CONTENT_TYPE, LINES_TYPE), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// A parameter from 1 to `most`.
fn within(value: Option<u32>, most: u32, name: &str) -> Result<Option<u32>, ApiError> {
    match value {
        Some(value) if !(1..=most).contains(&value) => {
            Err(ApiError::new(P::BadParameter, format!("{name} is a number from 1 to {most}")))
        }
        value => Ok(value),
    }
}
