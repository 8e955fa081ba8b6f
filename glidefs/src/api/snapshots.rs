//! The routes of snapshots, and of going back to one.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::body::{InPath, JsonBody, NameInPath};
use super::error::ApiError;
use super::paging::{Headers, Page};
use super::state::AppState;
use super::wire::values::rfc3339;
use super::wire::{Deleted, Export, PageQuery, RollbackRequest, Snapshot, SnapshotRequest};
use crate::router::ExportName;
use crate::store::volume::SnapshotInfo;

/// Create a snapshot of an export. The snapshot holds all data acknowledged before.
#[utoipa::path(
    post, path = "/v1/exports/{name}/snapshots", operation_id = "create_snapshot", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name.")), request_body = SnapshotRequest,
    responses(
        (status = 201, description = "The snapshot was created.", body = Snapshot),
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

/// The snapshots of an export, sorted by name, or a page of them. Each page takes one listing of the store.
#[utoipa::path(
    get, path = "/v1/exports/{name}/snapshots", operation_id = "list_snapshots", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name."), PageQuery),
    responses((status = 200, description = "The snapshots of the export.", body = [Snapshot],
        headers(("Link" = String, description = "The address of the next page, with rel=\"next\"; left out on the last page."))))
)]
pub(super) async fn list(
    State(state): State<AppState>,
    name: NameInPath,
    page: Page,
) -> Result<(Headers, Json<Vec<Snapshot>>), ApiError> {
    let snapshots = state.router.snapshots(name.0.as_str()).await?;
    let snapshots = snapshots.iter().map(|info| shown(&name.0, info)).collect();
    let path = format!("/v1/exports/{}/snapshots", name.0);
    let (next, snapshots) = page.of(snapshots, &path, |snapshot: &Snapshot| (&snapshot.name, ""))?;
    Ok((next, Json(snapshots)))
}

/// Delete a snapshot. If the snapshot does not exist, the request succeeds.
#[utoipa::path(
    delete, path = "/v1/exports/{name}/snapshots/{snapshot}", operation_id = "delete_snapshot", tag = "snapshots",
    params(("name" = String, Path, description = "The export's name."), ("snapshot" = String, Path, description = "The snapshot's name.")),
    responses(
        (status = 200, description = "The snapshot does not exist any more.", body = Deleted),
    )
)]
pub(super) async fn delete(
    State(state): State<AppState>,
    InPath((name, snapshot)): InPath<(String, String)>,
) -> Result<Json<Deleted>, ApiError> {
    let (name, snapshot) = (ExportName::new(&name)?, ExportName::new(&snapshot)?);
    let existed = state.router.delete_snapshot(name.as_str(), &snapshot).await?;
    Ok(Json(Deleted { name: snapshot.to_string(), existed }))
}

/// Give a detached export the content and the size of a snapshot. Data written since the snapshot is given up.
#[utoipa::path(
    post, path = "/v1/exports/{name}/rollback", operation_id = "roll_back_export", tag = "snapshots",
    params(("name" = String, Path, description = "Name of the export.")), request_body = RollbackRequest,
    responses(
        (status = 200, description = "The export has the snapshot's content.", body = Export),
    )
)]
pub(super) async fn rollback(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<RollbackRequest>,
) -> Result<Json<Export>, ApiError> {
    let snapshot = ExportName::new(&request.snapshot)?;
    Ok(Json(state.router.rollback(name.0.as_str(), snapshot).await?.into()))
}

fn shown(export: &ExportName, info: &SnapshotInfo) -> Snapshot {
    Snapshot {
        export: export.to_string(),
        name: info.name.to_string(),
        created: rfc3339(info.created_unix_millis),
    }
}
