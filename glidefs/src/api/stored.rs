//! The routes of what is in the store: snapshots, and the volumes there are.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::AppState;
use super::body::{JsonBody, NameInPath};
use super::error::ApiError;
use super::timestamp::rfc3339;
use super::wire::{
    Deleted, DeletedExport, ErrorBody, GcAnswer, GcRequest, Snapshot, SnapshotRequest, StoredExport,
};
use crate::router::ExportName;
use crate::store::gc::GcOptions;
use crate::store::volume::DeletedVolume;
use crate::units::SECTOR_BYTES;

/// Keep the state of an export under a name, with all that was acknowledged before.
#[utoipa::path(
    post, path = "/v1/exports/{name}/snapshots", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name.")), request_body = SnapshotRequest,
    responses(
        (status = 201, description = "It is kept.", body = Snapshot),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<SnapshotRequest>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let snapshot = ExportName::new(&request.name)?;
    let info = state.router.snapshot(name.0.as_str(), &snapshot).await?;
    Ok((StatusCode::CREATED, Json(shown(&name.0, &info))))
}

/// The snapshots of an export, by name.
#[utoipa::path(
    get, path = "/v1/exports/{name}/snapshots", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name.")),
    responses(
        (status = 200, description = "Its snapshots.", body = [Snapshot]),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(state): State<AppState>,
    name: NameInPath,
) -> Result<Json<Vec<Snapshot>>, ApiError> {
    let snapshots = state.router.snapshots(name.0.as_str()).await?;
    Ok(Json(snapshots.iter().map(|info| shown(&name.0, info)).collect()))
}

/// Give a snapshot up. No error when there is none.
#[utoipa::path(
    delete, path = "/v1/exports/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name."), ("snapshot" = String, Path, description = "The snapshot's name.")),
    responses(
        (status = 200, description = "There is no such snapshot any more.", body = Deleted),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(state): State<AppState>,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<Json<Deleted>, ApiError> {
    let (name, snapshot) = (ExportName::new(&name)?, ExportName::new(&snapshot)?);
    let existed = state.router.delete_snapshot(name.as_str(), &snapshot).await?;
    Ok(Json(Deleted { name: snapshot.to_string(), existed }))
}

/// The volumes in the store, by name, whoever has them open.
#[utoipa::path(
    get, path = "/v1/store/exports", tag = "store",
    responses(
        (status = 200, description = "Names of volumes.", body = [StoredExport]),
        (status = "4XX", description = "There is no store.", body = ErrorBody),
        (status = "5XX", description = "The store failed.", body = ErrorBody),
    )
)]
pub(super) async fn volumes(State(state): State<AppState>) -> Result<Json<Vec<StoredExport>>, ApiError> {
    let names = state.router.stored_names().await?;
    let shown = |name: String| StoredExport { open_here: state.router.show(&name).is_ok(), name };
    Ok(Json(names.into_iter().map(shown).collect()))
}

/// The volumes that were deleted from the store and can be had back.
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

/// Remove from the store what nothing uses any more.
#[utoipa::path(
    post, path = "/v1/gc", tag = "store", request_body = GcRequest,
    responses(
        (status = 200, description = "What was found and done.", body = GcAnswer),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store failed; nothing that is in use was removed.", body = ErrorBody),
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

fn shown(export: &ExportName, info: &crate::store::volume::SnapshotInfo) -> Snapshot {
    Snapshot {
        export: export.to_string(),
        name: info.name.to_string(),
        created: rfc3339(info.created_unix_millis),
    }
}
