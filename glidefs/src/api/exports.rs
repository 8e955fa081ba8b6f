//! The routes under `/v1/exports`.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;

use super::AppState;
use super::body::{JsonBody, NameInPath};
use super::error::ApiError;
use super::wire::{
    AttachQuery, CreateRequest, Deleted, Drained, Durability, ErrorBody, Export, FlushQuery, Flushed,
    ForkRequest, OnUnreachable, OpenRequest, RemoveQuery, ResizeRequest, RollbackRequest, UndeleteRequest,
};
use crate::observe::chain;
use crate::router::{
    self, CreateExport, ExportName, ExportSize, InitialContent, QUEUE_DEPTH_MAX, QUEUES_MAX, RouterError,
};

/// Make an export, and its block device unless it is to be made detached. Making what exists with the same parameters is no error.
#[utoipa::path(
    post, path = "/v1/exports", tag = "exports", request_body = CreateRequest,
    responses(
        (status = 201, description = "It was made.", body = Export),
        (status = 200, description = "It existed, with the same parameters.", body = Export),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The export could not be made.", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<CreateRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let name = ExportName::new(&request.name)?;
    let content = InitialContent::Blank(ExportSize::new(request.size.0.0)?);
    let new = New {
        detached: request.detached,
        ..New::of(request.durability, request.on_unreachable, (request.queues, request.queue_depth))
    };
    create_from(&state, name, content, new).await
}

/// All exports, by name.
#[utoipa::path(
    get, path = "/v1/exports", tag = "exports",
    responses((status = 200, description = "All exports.", body = [Export]))
)]
pub(super) async fn list(State(state): State<AppState>) -> Json<Vec<Export>> {
    Json(state.router.list().into_iter().map(Export::from).collect())
}

/// One export.
#[utoipa::path(
    get, path = "/v1/exports/{name}", tag = "exports", params(("name" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "The export.", body = Export),
        (status = 404, description = "There is none of that name.", body = ErrorBody),
    )
)]
pub(super) async fn show(State(state): State<AppState>, name: NameInPath) -> Result<Json<Export>, ApiError> {
    Ok(Json(state.router.show(name.0.as_str())?.into()))
}

/// Remove an export: its block device and its data. What is in the store can be had back for the grace period of garbage
/// collection, a day. Removing what does not exist is no error.
#[utoipa::path(
    delete, path = "/v1/exports/{name}", tag = "exports",
    params(
        ("name" = String, Path, description = "Its name."),
        ("force" = Option<bool>, Query, description = "Whether to delete it although its device is mounted, or held in another way; false when left out."),
    ),
    responses(
        (status = 200, description = "There is no such export any more.", body = Deleted),
        (status = 409, description = "Its device is in use; the message says how.", body = ErrorBody),
        (status = "5XX", description = "The device could not be removed.", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(state): State<AppState>,
    name: NameInPath,
    Query(RemoveQuery { force }): Query<RemoveQuery>,
) -> Result<Json<Deleted>, ApiError> {
    let name_here = name.0.as_str();
    let deleted = if force {
        state.router.force_delete(name_here).await?
    } else {
        state.router.delete(name_here).await?
    };
    Ok(Json(Deleted { name: name.0.to_string(), existed: deleted == router::Deleted::Now }))
}

/// Give an export a block device. No error when it has one.
#[utoipa::path(
    post, path = "/v1/exports/{name}/attach", tag = "exports",
    params(
        ("name" = String, Path, description = "Its name."),
        ("unconfirmed" = Option<bool>, Query, description = "Whether to serve what is in the cache although the store cannot be asked whose the export is; false when left out."),
    ),
    responses(
        (status = 200, description = "It has a device.", body = Export),
        (status = 404, description = "There is none of that name.", body = ErrorBody),
        (status = 409, description = "Another host has it, or the store has another history of it.", body = ErrorBody),
        (status = "5XX", description = "The device could not be made, or the store could not be asked whose it is.", body = ErrorBody),
    )
)]
pub(super) async fn attach(
    State(state): State<AppState>,
    name: NameInPath,
    Query(AttachQuery { unconfirmed }): Query<AttachQuery>,
) -> Result<Json<Export>, ApiError> {
    let (router, name) = (&state.router, name.0.as_str());
    let attached =
        if unconfirmed { router.attach_unconfirmed(name).await } else { router.attach(name).await };
    Ok(Json(attached?.into()))
}

/// Remove an export's block device, keep its data, and release it in the store, so that another host may open it. `unreleased` in
/// the answer says why that could not be done. No error when it has none.
#[utoipa::path(
    post, path = "/v1/exports/{name}/detach", tag = "exports",
    params(
        ("name" = String, Path, description = "Its name."),
        ("force" = Option<bool>, Query, description = "Whether to detach it although its device is mounted, or held in another way; false when left out."),
    ),
    responses(
        (status = 200, description = "It has no device.", body = Export),
        (status = 404, description = "There is none of that name.", body = ErrorBody),
        (status = 409, description = "Its device is in use; the message says how.", body = ErrorBody),
        (status = "5XX", description = "The device could not be removed.", body = ErrorBody),
    )
)]
pub(super) async fn detach(
    State(state): State<AppState>,
    name: NameInPath,
    Query(RemoveQuery { force }): Query<RemoveQuery>,
) -> Result<Json<Export>, ApiError> {
    let name = name.0.as_str();
    let detached =
        if force { state.router.force_detach(name).await? } else { state.router.detach(name).await? };
    Ok(Json(detached.into()))
}

/// Open an export from the store. Where another host has not released it, this is refused, unless it is to be taken over: then
/// that host's export stops. No error when it is open here.
#[utoipa::path(
    post, path = "/v1/exports/{name}/open", tag = "exports", params(("name" = String, Path, description = "Its name.")),
    request_body = OpenRequest,
    responses(
        (status = 201, description = "It is open.", body = Export),
        (status = 200, description = "It was open here.", body = Export),
        (status = 404, description = "The store has none of that name.", body = ErrorBody),
        (status = 409, description = "Another host has it; the message says which one, and since when it was not heard of.", body = ErrorBody),
        (status = "5XX", description = "The store or the device failed.", body = ErrorBody),
    )
)]
pub(super) async fn open(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<OpenRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    if request.discard_local {
        return Ok((StatusCode::OK, Json(state.router.discard_local(name.0.as_str()).await?.into())));
    }
    let content = if request.take_over { InitialContent::TakeOver } else { InitialContent::Store };
    let new = New::of(request.durability, request.on_unreachable, (request.queues, request.queue_depth));
    create_from(&state, name.0, content, new).await
}

/// Have an export back that was deleted, as it was when it was last flushed, with its snapshots. Possible until garbage collection
/// has taken it. Of several of one name the one that was deleted last comes back.
#[utoipa::path(
    post, path = "/v1/exports/{name}/undelete", tag = "exports", params(("name" = String, Path, description = "The name it had.")),
    request_body = UndeleteRequest,
    responses(
        (status = 201, description = "It is open here.", body = Export),
        (status = 404, description = "Nothing of that name can be had back.", body = ErrorBody),
        (status = 409, description = "The name is taken: choose another one.", body = ErrorBody),
        (status = "5XX", description = "The store or the device failed.", body = ErrorBody),
    )
)]
pub(super) async fn undelete(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<UndeleteRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let new_name = request.name.as_deref().map(ExportName::new).transpose()?;
    let new_name = new_name.unwrap_or_else(|| name.0.clone());
    let new = New::of(request.durability, request.on_unreachable, (request.queues, request.queue_depth));
    create_from(&state, new_name, InitialContent::Deleted { of: name.0 }, new).await
}

/// Make an export with the content of this one: metadata only, whatever its size. Both go their own way from then on.
#[utoipa::path(
    post, path = "/v1/exports/{name}/fork", tag = "exports",
    params(("name" = String, Path, description = "The export, or a volume in the store.")),
    request_body = ForkRequest,
    responses(
        (status = 201, description = "It was made.", body = Export),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The store or the device failed.", body = ErrorBody),
    )
)]
pub(super) async fn fork(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<ForkRequest>,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let snapshot = request.snapshot.as_deref().map(ExportName::new).transpose()?;
    let source = if request.local {
        InitialContent::Local { of: name.0 }
    } else {
        InitialContent::Fork { of: name.0, snapshot }
    };
    let new = New::of(request.durability, request.on_unreachable, (request.queues, request.queue_depth));
    create_from(&state, ExportName::new(&request.name)?, source, new).await
}

/// What a new export is like, besides its content.
struct New {
    durability: Durability,
    on_unreachable: Option<OnUnreachable>,
    queues: Option<u64>,
    queue_depth: Option<u64>,
    detached: bool,
}

impl New {
    fn of(
        durability: Durability,
        on_unreachable: Option<OnUnreachable>,
        (queues, queue_depth): (Option<u64>, Option<u64>),
    ) -> Self {
        Self { durability, on_unreachable, queues, queue_depth, detached: false }
    }
}

async fn create_from(
    state: &AppState,
    name: ExportName,
    content: InitialContent,
    new: New,
) -> Result<(StatusCode, Json<Export>), ApiError> {
    let queues = small("queues", new.queues, QUEUES_MAX)?;
    let queue_depth = small("queue_depth", new.queue_depth, QUEUE_DEPTH_MAX)?;
    let created = state
        .router
        .create(CreateExport {
            name,
            content,
            durability: new.durability.into(),
            on_unreachable: new.on_unreachable.map(|on_unreachable| on_unreachable.0.0),
            queues,
            queue_depth,
            detached: new.detached,
        })
        .await?;
    let status = if created.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(created.info.into())))
}

/// Bring everything that was acknowledged to the store. Answers when it is there, unless it is told not to wait.
#[utoipa::path(
    post, path = "/v1/exports/{name}/flush", tag = "exports",
    params(
        ("name" = String, Path, description = "Its name."),
        ("wait" = Option<bool>, Query, description = "Whether to wait until it is in the store; true when left out."),
    ),
    responses(
        (status = 200, description = "It is in the store.", body = Flushed),
        (status = 202, description = "It is on its way; the answer says what is there already.", body = Flushed),
        (status = 404, description = "There is none of that name.", body = ErrorBody),
        (status = 409, description = "There is no store, or another host has the export.", body = ErrorBody),
    )
)]
pub(super) async fn flush(
    State(state): State<AppState>,
    name: NameInPath,
    Query(FlushQuery { wait }): Query<FlushQuery>,
) -> Result<(StatusCode, Json<Flushed>), ApiError> {
    let (status, flushed) = if wait {
        (StatusCode::OK, state.router.write_back(name.0.as_str()).await?)
    } else {
        (StatusCode::ACCEPTED, state.router.begin_writeback(name.0.as_str())?)
    };
    Ok((status, Json(Flushed { name: name.0.to_string(), sequence_number: flushed.0 })))
}

/// Bring everything that any export has acknowledged to the store, and release what has no device. Answers when it is there.
#[utoipa::path(
    post, path = "/v1/drain", tag = "exports",
    responses((status = 200, description = "What became of it.", body = Drained))
)]
pub(super) async fn drain(State(state): State<AppState>) -> Json<Drained> {
    let drain = state.router.drain().await;
    Json(Drained {
        flushed: drain.written_back,
        kept: drain.kept,
        failed: drain.failed.iter().map(|error| chain(error)).collect(),
    })
}

/// Give a detached export the content and size that a snapshot kept. What was written since is given up.
#[utoipa::path(
    post, path = "/v1/exports/{name}/rollback", tag = "snapshots",
    params(("name" = String, Path, description = "Its name.")), request_body = RollbackRequest,
    responses(
        (status = 200, description = "It has the snapshot's content.", body = Export),
        (status = 404, description = "There is none of that name, or no such snapshot.", body = ErrorBody),
        (status = 409, description = "It has a device, or there is no store.", body = ErrorBody),
        (status = "5XX", description = "The store failed: roll back again.", body = ErrorBody),
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

/// Make an export larger while it is used.
#[utoipa::path(
    post, path = "/v1/exports/{name}/resize", tag = "exports", params(("name" = String, Path, description = "Its name.")),
    request_body = ResizeRequest,
    responses(
        (status = 200, description = "It has the size.", body = Export),
        (status = "4XX", description = "The request was refused.", body = ErrorBody),
        (status = "5XX", description = "The device could not be told.", body = ErrorBody),
    )
)]
pub(super) async fn resize(
    State(state): State<AppState>,
    name: NameInPath,
    JsonBody(request): JsonBody<ResizeRequest>,
) -> Result<Json<Export>, ApiError> {
    let size = ExportSize::new(request.size.0.0)?;
    Ok(Json(state.router.resize(name.0.as_str(), size).await?.into()))
}

/// A parameter that fits 16 bits; the router checks its bounds.
fn small(parameter: &'static str, value: Option<u64>, max: u16) -> Result<Option<u16>, RouterError> {
    let out_of_bounds = |value| RouterError::Parameter { parameter, value, min: 1, max: max.into() };
    value.map(|value| u16::try_from(value).map_err(|_| out_of_bounds(value))).transpose()
}
