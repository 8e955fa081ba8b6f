//! The routes that make an export: blank, from the store, from a deleted volume, from another export.
//!
//! Invariant: a request for an export that exists with the same parameters succeeds.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::api::body::{JsonBody, NameInPath};
use crate::api::error::ApiError;
use crate::api::state::AppState;
use crate::api::wire::{Choices, CreateRequest, Export, ForkRequest, OpenRequest, UndeleteRequest};
use crate::router::{CreateExport, CreatedExport, ExportName, ExportSize, InitialContent};

/// What [`Export::assumed`] says, where it says something.
const ASSUMED: &str = "the store names no properties for this volume: it has the defaults, or an older glidefs made it. Assumed: \
                       durability local, READs wait, no limits, weight 100, unless the request says otherwise. `glidefs export set` \
                       changes them.";

/// Create an export, with a block device unless `detached` is set. If the export exists with the same parameters, the request
/// succeeds.
#[utoipa::path(
    post, path = "/v1/exports", operation_id = "create_export", tag = "exports", request_body = CreateRequest,
    responses(
        (status = 201, description = "The export was created.", body = Export),
        (status = 200, description = "The export existed, with the same parameters.", body = Export),
    )
)]
pub(in crate::api) async fn create(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<CreateRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let name = ExportName::new(&request.name)?;
    let content = InitialContent::Blank(ExportSize::new(request.size.0)?);
    create_from(state, name, content, request.choices(), request.detached).await
}

/// Open an export from the store, with the durability, `on_unreachable`, limits and weight that the volume has there, unless the
/// request names others. If another host has not released the export, the request is refused, unless `take_over` is set: then the
/// export stops on the other host. If the export is open on this host, the request succeeds.
#[utoipa::path(
    post, path = "/v1/exports/{name}/open", operation_id = "open_export", tag = "exports", params(("name" = String, Path, description = "Name of the export.")),
    request_body = OpenRequest,
    responses(
        (status = 201, description = "The export is open.", body = Export),
        (status = 200, description = "The export was open on this host before.", body = Export),
    )
)]
pub(in crate::api) async fn open(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<OpenRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    if request.discard_local {
        let change = request.choices().properties;
        return Ok(answer(state.router.discard_local(name.0.as_str(), change).await?));
    }
    let content = if request.take_over { InitialContent::TakeOver } else { InitialContent::Store };
    create_from(state, name.0, content, request.choices(), false).await
}

/// Restore a deleted export with its snapshots, durability, `on_unreachable`, limits and weight. The content is the last state that
/// was written back. Garbage collection ends the possibility. If several exports of the name were deleted, the one deleted last is
/// restored.
#[utoipa::path(
    post, path = "/v1/exports/{name}/undelete", operation_id = "undelete_export", tag = "exports", params(("name" = String, Path, description = "Name before the deletion.")),
    request_body = UndeleteRequest,
    responses(
        (status = 201, description = "The export is open on this host.", body = Export),
    )
)]
pub(in crate::api) async fn undelete(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<UndeleteRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let new_name = request.name.as_deref().map(ExportName::new).transpose()?;
    let new_name = new_name.unwrap_or_else(|| name.0.clone());
    let content = InitialContent::Deleted { of: name.0 };
    create_from(state, new_name, content, request.choices(), false).await
}

/// Create an export with the content of this one, and with its durability, `on_unreachable`, limits and weight unless the request
/// names others. Only metadata is copied, whatever the size. Later writes to either export do not change the other.
#[utoipa::path(
    post, path = "/v1/exports/{name}/fork", operation_id = "fork_export", tag = "exports",
    params(("name" = String, Path, description = "Name of the export, or of a volume in the store.")),
    request_body = ForkRequest,
    responses(
        (status = 201, description = "The export was created.", body = Export),
        (status = 200, description = "An export of this name and these parameters existed; its content was not compared.", body = Export),
    )
)]
pub(in crate::api) async fn fork(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<ForkRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let snapshot = request.snapshot.as_deref().map(ExportName::new).transpose()?;
    let content = if request.local || request.manifest.is_some() {
        InitialContent::Local { of: name.0, manifest: request.manifest }
    } else {
        InitialContent::Fork { of: name.0, snapshot }
    };
    create_from(state, ExportName::new(&request.name)?, content, request.choices(), false).await
}

async fn create_from(
    state: AppState,
    name: ExportName,
    content: InitialContent,
    choices: Choices,
    detached: bool,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let Choices { properties, queues, queue_depth } = choices;
    let new = CreateExport { name, content, properties, queues, queue_depth, detached };
    Ok(answer(state.router.create(new).await?))
}

fn answer(created: CreatedExport) -> (StatusCode, Json<Export>) {
    let assumed = created.is_assumed.then(|| ASSUMED.to_owned());
    let status = if created.existed { StatusCode::OK } else { StatusCode::CREATED };
    (status, Json(Export { assumed, ..created.info.into() }))
}
