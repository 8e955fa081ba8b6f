//! The routes of the store as a whole: the volumes in it, deleted volumes, garbage collection.

use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::body::{JsonBody, NameInPath};
use super::error::ApiError;
use super::paging::{Headers, Page};
use super::state::AppState;
use super::wire::values::rfc3339;
use super::wire::{DeletedExport, GcReport, GcRequest, PageQuery, StoredExport, StoredVolume};
use crate::store::gc::GcOptions;
use crate::store::volume::DeletedVolume;
use crate::units::SECTOR_BYTES;

/// The volumes in the store, sorted by name, whichever host has them open, or a page of them. Each page takes a listing of all names in
/// the store.
#[utoipa::path(
    get, path = "/v1/store/exports", operation_id = "list_stored_exports", tag = "store", params(PageQuery),
    responses((status = 200, description = "Names of volumes.", body = [StoredExport],
        headers(("Link" = String, description = "The address of the next page, with rel=\"next\"; left out on the last page."))))
)]
pub(super) async fn list(
    State(state): State<AppState>,
    page: Page,
) -> Result<(Headers, Json<Vec<StoredExport>>), ApiError> {
    let names = state.router.stored_names().await?;
    let (next, names) = page.of(names, "/v1/store/exports", |name: &String| (name, ""))?;
    let shown = |name: String| StoredExport { open_here: state.router.show(&name).is_ok(), name };
    Ok((next, Json(names.into_iter().map(shown).collect())))
}

/// A volume in the store with its properties, as the host that has the volume last stored them. Takes a few requests to the store.
#[utoipa::path(
    get, path = "/v1/store/exports/{name}", operation_id = "show_stored_export", tag = "store",
    params(("name" = String, Path, description = "Name of the volume.")),
    responses((status = 200, description = "The volume.", body = StoredVolume))
)]
pub(super) async fn show(
    State(state): State<AppState>,
    name: NameInPath,
) -> Result<Json<StoredVolume>, ApiError> {
    let newest = state.router.stored(&name.0).await?;
    let open_here = state.router.show(name.0.as_str()).is_ok();
    Ok(Json(StoredVolume::of(name.0.to_string(), open_here, &newest)))
}

/// The deleted volumes that can be restored, sorted by name and id, or a page of them. Each page takes a listing of all deleted volumes,
/// and a look at each.
#[utoipa::path(
    get, path = "/v1/store/deleted", operation_id = "list_deleted_exports", tag = "store", params(PageQuery),
    responses((status = 200, description = "Deleted volumes.", body = [DeletedExport],
        headers(("Link" = String, description = "The address of the next page, with rel=\"next\"; left out on the last page."))))
)]
pub(super) async fn deleted(
    State(state): State<AppState>,
    page: Page,
) -> Result<(Headers, Json<Vec<DeletedExport>>), ApiError> {
    let grace_millis = u64::try_from(GcOptions::default().grace.as_millis()).unwrap_or(u64::MAX);
    let shown = |volume: DeletedVolume| DeletedExport {
        name: volume.name.to_string(),
        volume: volume.volume.to_string(),
        size_bytes: volume.size_sectors.saturating_mul(SECTOR_BYTES),
        deleted: rfc3339(volume.deleted_unix_millis),
        kept_until: rfc3339(volume.deleted_unix_millis.saturating_add(grace_millis)),
    };
    let deleted = state.router.deleted().await?.into_iter().map(shown).collect();
    let (next, deleted) =
        page.of(deleted, "/v1/store/deleted", |export: &DeletedExport| (&export.name, &export.volume))?;
    Ok((next, Json(deleted)))
}

/// Remove unused objects from the store.
#[utoipa::path(
    post, path = "/v1/gc", operation_id = "collect_garbage", tag = "store", request_body = GcRequest,
    responses(
        (status = 200, description = "The result of the collection.", body = GcReport),
    )
)]
pub(super) async fn collect(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<GcRequest>,
) -> Result<Json<GcReport>, ApiError> {
    let defaults = GcOptions::default();
    let grace = request.grace_seconds.map_or(defaults.grace, Duration::from_secs);
    let options = GcOptions { dry_run: request.dry_run, grace, ..defaults };
    Ok(Json(state.router.collect(options).await?))
}
