//! The routes of the store as a whole: the volumes in it, deleted volumes, garbage collection.

use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::error::ApiError;
use super::state::AppState;
use super::wire::values::rfc3339;
use super::wire::{DeletedExport, ErrorBody, GcAnswer, GcRequest, StoredExport};
use crate::store::gc::GcOptions;
use crate::store::volume::DeletedVolume;
use crate::units::SECTOR_BYTES;

/// The volumes in the store, sorted by name, whichever host has them open.
#[utoipa::path(
    get, path = "/v1/store/exports", operation_id = "volumes", tag = "store",
    responses(
        (status = 200, description = "Names of volumes.", body = [StoredExport]),
        (status = "4XX", description = "There is no store.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<Vec<StoredExport>>, ApiError> {
    let names = state.router.stored_names().await?;
    let shown = |name: String| StoredExport { open_here: state.router.show(&name).is_ok(), name };
    Ok(Json(names.into_iter().map(shown).collect()))
}

/// The deleted volumes that can be restored.
#[utoipa::path(
    get, path = "/v1/store/deleted", tag = "store",
    responses(
        (status = 200, description = "Deleted volumes.", body = [DeletedExport]),
        (status = "4XX", description = "There is no store.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn deleted(State(state): State<AppState>) -> Result<Json<Vec<DeletedExport>>, ApiError> {
    let grace_millis = u64::try_from(GcOptions::default().grace.as_millis()).unwrap_or(u64::MAX);
    let shown = |volume: DeletedVolume| DeletedExport {
        name: volume.name.to_string(),
        volume: volume.volume.to_string(),
        size_bytes: volume.size_sectors.saturating_mul(SECTOR_BYTES),
        deleted: rfc3339(volume.deleted_unix_millis),
        kept_until: rfc3339(volume.deleted_unix_millis.saturating_add(grace_millis)),
    };
    Ok(Json(state.router.deleted().await?.into_iter().map(shown).collect()))
}

/// Remove unused objects from the store.
#[utoipa::path(
    post, path = "/v1/gc", tag = "store", request_body = GcRequest,
    responses(
        (status = 200, description = "The result of the collection.", body = GcAnswer),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store failed; no object in use was removed.", body = ErrorBody),
    )
)]
pub(super) async fn collect(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<GcRequest>,
) -> Result<Json<GcAnswer>, ApiError> {
    let defaults = GcOptions::default();
    let grace = request.grace_seconds.map_or(defaults.grace, Duration::from_secs);
    let options = GcOptions { dry_run: request.dry_run, grace, ..defaults };
    let report = state.router.collect(options).await?;
    Ok(Json(GcAnswer {
        dry_run: request.dry_run,
        volumes: report.volumes,
        packs_in_use: report.packs_in_use,
        bytes_in_use: report.bytes_in_use,
        packs_waiting: report.packs_waiting,
        bytes_waiting: report.bytes_waiting,
        packs_removed: report.packs_removed,
        bytes_removed: report.bytes_removed,
        objects_removed: report.objects_removed,
        damaged: report.damaged.iter().map(ToString::to_string).collect(),
        would_remove: report.would_remove.iter().map(ToString::to_string).collect(),
    }))
}
