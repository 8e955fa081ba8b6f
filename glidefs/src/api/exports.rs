//! The routes under `/v1/exports` for exports that exist, and `/v1/drain`. Those that make an export are in `create`.

pub(super) mod create;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::body::{InQuery, JsonBody, NameInPath};
use super::error::ApiError;
use super::paging::{Headers, Page, json_list};
use super::state::AppState;
use super::wire::{
    AttachQuery, Deleted, Drained, Export, FlushQuery, Flushed, PageQuery, RemoveQuery, ResizeRequest,
    SetRequest,
};
use crate::observe::chain;
use crate::router::{self, ExportSize, Router};

/// All exports, sorted by name, or a page of them.
#[utoipa::path(
    get, path = "/v1/exports", operation_id = "list_exports", tag = "exports", params(PageQuery),
    responses((status = 200, description = "The exports.", body = [Export],
        headers(("Link" = String, description = "The address of the next page, with rel=\"next\"; left out on the last page."))))
)]
pub(super) async fn list(State(state): State<AppState>, page: Page) -> Result<Response, ApiError> {
    let router = state.router;
    let (next, body) = state.off_thread.run(move || one_page(&router, &page)).await??;
    Ok(([(CONTENT_TYPE, "application/json")], next, body).into_response())
}

/// A page of the exports as JSON, and the headers. Only the exports of the page, and the one behind, are looked at.
fn one_page(router: &Router, page: &Page) -> Result<(Headers, Vec<u8>), ApiError> {
    let mut infos = router.infos_after(page.after.as_deref(), page.limit.saturating_add(1));
    let mut last = None;
    let exports = infos.by_ref().take(page.limit).inspect(|info| last = Some(info.name.clone()));
    let body = json_list(exports.map(Export::from))?;
    let next = match (infos.next(), last) {
        (Some(_), Some(last)) => page.next("/v1/exports", last.as_str())?,
        _ => None,
    };
    Ok((next, body))
}

/// The state of one export.
#[utoipa::path(
    get, path = "/v1/exports/{name}", operation_id = "show_export", tag = "exports", params(("name" = String, Path, description = "Name of the export.")),
    responses(
        (status = 200, description = "The export.", body = Export),
    )
)]
pub(super) async fn show(State(state): State<AppState>, name: NameInPath) -> Result<Json<Export>, ApiError> {
    Ok(Json(state.router.show(name.0.as_str())?.into()))
}

/// Change properties of an export, also while the export is in use. A field that is left out stays as before; null ends a limit. A
/// durability other than "local" is answered when it is true: the store names it, and has everything acknowledged before. After
/// `not_flushed` the durability counts on this host already; the same request waits again.
#[utoipa::path(
    patch, path = "/v1/exports/{name}", operation_id = "set_export", tag = "exports", params(("name" = String, Path, description = "Name of the export.")),
    request_body = SetRequest,
    responses(
        (status = 200, description = "The export has these properties.", body = Export),
    )
)]
pub(super) async fn set(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<SetRequest>,
) -> Result<Json<Export>, ApiError> {
    Ok(Json(state.router.set(name.0.as_str(), request).await?.into()))
}

/// Delete an export: its block device and its data. Data that was written back to the store can be restored with `undelete`
/// for the grace period of garbage collection, a day. If the export does not exist, the request succeeds.
#[utoipa::path(
    delete, path = "/v1/exports/{name}", operation_id = "delete_export", tag = "exports",
    params(
        ("name" = String, Path, description = "Name of the export."),
        RemoveQuery,
    ),
    responses(
        (status = 200, description = "The export does not exist any more.", body = Deleted),
    )
)]
pub(super) async fn delete(
    State(state): State<AppState>,
    name: NameInPath,
    InQuery(RemoveQuery { force }): InQuery<RemoveQuery>,
) -> Result<Json<Deleted>, ApiError> {
    let (router, name) = (&state.router, name.0.as_str());
    let existed = router.delete(name, router::Users::by_force(force)).await?;
    Ok(Json(Deleted { name: name.into(), existed }))
}

/// Give an export a block device. If the export has a device, the request succeeds.
#[utoipa::path(
    post, path = "/v1/exports/{name}/attach", operation_id = "attach_export", tag = "exports",
    params(
        ("name" = String, Path, description = "Name of the export."),
        AttachQuery,
    ),
    responses(
        (status = 200, description = "The export has a device.", body = Export),
    )
)]
pub(super) async fn attach(
    State(state): State<AppState>,
    name: NameInPath,
    InQuery(AttachQuery { unconfirmed, held_back }): InQuery<AttachQuery>,
) -> Result<Json<Export>, ApiError> {
    let (router, name) = (&state.router, name.0.as_str());
    if held_back {
        router.end_hold(name).await;
    }
    let attached = router.attach(name, !unconfirmed).await;
    Ok(Json(attached?.into()))
}

/// Remove the block device of an export, keep the data, and release the export in the store, so that another host may open
/// the export. If the release fails, the request succeeds and `unreleased` gives the reason. If the export has no device, the
/// request succeeds.
#[utoipa::path(
    post, path = "/v1/exports/{name}/detach", operation_id = "detach_export", tag = "exports",
    params(
        ("name" = String, Path, description = "Name of the export."),
        RemoveQuery,
    ),
    responses(
        (status = 200, description = "The export has no device.", body = Export),
    )
)]
pub(super) async fn detach(
    State(state): State<AppState>,
    name: NameInPath,
    InQuery(RemoveQuery { force }): InQuery<RemoveQuery>,
) -> Result<Json<Export>, ApiError> {
    let (router, name) = (&state.router, name.0.as_str());
    let detached = router.detach(name, router::Users::by_force(force)).await?;
    Ok(Json(detached.into()))
}

/// Write back all acknowledged data of an export. The answer comes when the data is in the store, unless `wait` is false.
#[utoipa::path(
    post, path = "/v1/exports/{name}/flush", operation_id = "flush_export", tag = "exports",
    params(
        ("name" = String, Path, description = "Name of the export."),
        FlushQuery,
    ),
    responses(
        (status = 200, description = "All data is in the store.", body = Flushed),
        (status = 202, description = "Writing back has begun; the answer says how far the store is.", body = Flushed),
    )
)]
pub(super) async fn flush(
    State(state): State<AppState>,
    name: NameInPath,
    InQuery(FlushQuery { wait }): InQuery<FlushQuery>,
) -> Result<(StatusCode, Json<Flushed>), ApiError> {
    let (status, flushed) = if wait {
        (StatusCode::OK, state.router.write_back(name.0.as_str()).await?)
    } else {
        (StatusCode::ACCEPTED, state.router.begin_writeback(name.0.as_str())?)
    };
    Ok((status, Json(Flushed { name: name.0.to_string(), sequence_number: flushed.0 })))
}

/// Write back all acknowledged data of all exports, and release the exports without a device. The answer comes when the data
/// is in the store.
#[utoipa::path(
    post, path = "/v1/drain", operation_id = "drain", tag = "exports",
    responses((status = 200, description = "The result for all exports.", body = Drained))
)]
pub(super) async fn drain(State(state): State<AppState>) -> Json<Drained> {
    let drain = state.router.drain().await;
    Json(Drained {
        flushed: drain.written_back,
        kept: drain.kept,
        failed: drain.failed.iter().map(|error| chain(error)).collect(),
    })
}

/// Make an export larger while the export is in use.
#[utoipa::path(
    post, path = "/v1/exports/{name}/resize", operation_id = "resize_export", tag = "exports", params(("name" = String, Path, description = "Name of the export.")),
    request_body = ResizeRequest,
    responses(
        (status = 200, description = "The export has the size.", body = Export),
    )
)]
pub(super) async fn resize(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<ResizeRequest>,
) -> Result<Json<Export>, ApiError> {
    let size = ExportSize::new(request.size.0)?;
    Ok(Json(state.router.resize(name.0.as_str(), size).await?.into()))
}
