//! The routes about the daemon itself: status, `/v1/top`, `/v1/trace`, memory, health and metrics.
//!
//! Does not own the figures. Invariant: what takes long is made off the control threads.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::body::InQuery;
use super::error::ApiError;
use super::shared_text::Selection;
use super::state::AppState;
use super::wire::ProblemCode as P;
use super::wire::{AtRisk, ExportCounts, Memory, MetricsQuery, Status, StoreState, Top, Trace, TraceQuery};
use crate::observe::metrics::ExportHistograms;

/// Media type of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The state of the daemon, the exports and the cache.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "status", tag = "daemon",
    responses((status = 200, description = "The state of the daemon.", body = Status))
)]
pub(super) async fn status(State(state): State<AppState>) -> Result<Json<Status>, ApiError> {
    state.off_thread.clone().run(move || Json(status_now(&state))).await
}

fn status_now(state: &AppState) -> Status {
    let mut exports =
        ExportCounts { max: state.router.options.exports_max as u64, ..ExportCounts::default() };
    let (mut at_risk, mut exports_at_risk) = (AtRisk::default(), 0);
    for info in state.router.infos() {
        if let Some(of_export) = info.at_risk {
            let bytes = at_risk.bytes.saturating_add(of_export.bytes);
            if exports_at_risk == 0 || of_export.seconds > at_risk.seconds {
                at_risk = of_export;
            }
            at_risk.bytes = bytes;
            exports_at_risk += 1;
        }
        exports.add(info.state.name());
    }
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        ready: state.ready.get(),
        uptime_seconds: state.started.elapsed().as_secs(),
        exports,
        at_risk,
        exports_at_risk,
        catalog_fails: state.router.catalog_health().failing(),
        last_upgrade: state.upgrades.as_ref().and_then(|upgrades| upgrades.last()),
        daemon: (state.daemon)(),
    }
}

/// The figures of all exports, of cache and store at one moment, and warnings. Counters grow from the start of the daemon
/// on: the difference of two answers, over the difference of `uptime_nanoseconds`, is a rate. Clients that ask at the same time get the
/// same answer, and so do those who ask while others are slow to take theirs.
#[utoipa::path(
    get, path = "/v1/top", operation_id = "top", tag = "daemon",
    responses((status = 200, description = "The figures.", body = Top))
)]
pub(super) async fn top(State(state): State<AppState>) -> Result<Response, ApiError> {
    let text =
        state.top.text(&Selection::default()).await.map_err(|error| ApiError::new(P::Internal, error))?;
    Ok(fresh(text))
}

/// Requests of devices that ended last, oldest first: those that took at least 10 ms, and about ten others a second of each worker. The
/// daemon keeps 2,048 of them. Ask with `since`, the `last` of the answer before, to get only what came after; where `last` is less than
/// that, the daemon has started anew.
#[utoipa::path(
    get, path = "/v1/trace", operation_id = "trace", tag = "daemon",
    params(TraceQuery),
    responses((status = 200, description = "The requests.", body = Trace))
)]
pub(super) async fn trace(
    State(state): State<AppState>,
    InQuery(query): InQuery<TraceQuery>,
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
    let body =
        state.off_thread.run(encode).await?.map_err(|error| ApiError::new(P::Internal, error.to_string()))?;
    Ok(fresh(body))
}

/// An answer of JSON that is of one moment.
fn fresh(json: impl IntoResponse) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}

/// The memory of the daemon by category.
#[utoipa::path(
    get, path = "/v1/memory", operation_id = "memory", tag = "daemon",
    responses(
        (status = 200, description = "The memory of the daemon by category.", body = Memory),
    )
)]
pub(super) async fn memory(State(state): State<AppState>) -> Result<Json<Memory>, ApiError> {
    let memory = state.memory;
    let measured = state.off_thread.run(move || memory()).await?;
    measured
        .map(Json)
        .ok_or_else(|| ApiError::new(P::Internal, "the kernel does not tell the memory of the daemon"))
}

/// Whether the daemon runs.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "daemon",
    responses((status = 200, description = "The daemon runs.", body = String, content_type = "text/plain"))
)]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the daemon is ready: recovery is done, the catalog can be written, and no export waits for a store that is away to
/// confirm that this host still has the export. A second line of the answer tells what the store does: an export that is served does
/// not need it.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "daemon",
    responses(
        (status = 200, description = "The daemon is ready.", body = String, content_type = "text/plain"),
    )
)]
pub(super) async fn readyz(State(state): State<AppState>) -> Result<String, ApiError> {
    if let Some(reason) = state.router.catalog_health().failing() {
        let message = format!("the catalog cannot be written ({reason}): make room on the disk of cache.dir");
        return Err(ApiError::new(P::CatalogFails, message));
    }
    let store = |before, after| {
        // Without URL and cause: this needs no token.
        let of = |store: StoreState| {
            format!("{before}store: {} for {} s{after}", store.state, store.since_seconds)
        };
        (state.store)().map_or_else(String::new, of)
    };
    match state.router.unconfirmed() {
        _ if !state.ready.get() => Err(ApiError::from(P::NotReady)),
        0 => Ok(format!("ready\n{}", store("", "\n"))),
        exports => Err(ApiError::new(
            P::Unconfirmed,
            format!(
                "{exports} exports wait for the store to confirm that this host still has them: `glidefs export list` shows which{}",
                store("; ", "")
            ),
        )),
    }
}

/// Metrics in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "daemon",
    params(MetricsQuery),
    responses(
        (status = 200, description = "The metrics.", body = String, content_type = "text/plain"),
    )
)]
pub(super) async fn metrics(
    State(state): State<AppState>,
    InQuery(MetricsQuery { histograms, export }): InQuery<MetricsQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let default = match &export {
        Some(name) => {
            state.router.show(name)?;
            ExportHistograms::All
        }
        None => state.export_histograms,
    };
    let selection = Selection { histograms: histograms.unwrap_or(default), export };
    let text = state.metrics.text(&selection).await.map_err(|error| {
        tracing::error!(error, "the metrics could not be encoded");
        ApiError::new(P::Internal, "the metrics could not be encoded: see the daemon's log")
    })?;
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], text))
}
