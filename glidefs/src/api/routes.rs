//! The table of routes, the description of the API, and the limits that hold for every route.

use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::state::AppState;
use super::wire::ProblemCode as P;
use super::wire::{Problem, ProblemCode};
use super::{error, exports, guard, page, shares, snapshots, system, upgrade, volumes};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "glidefs",
        description = "Exports of the glidefs daemon on this host. Refusals are problems by RFC 9457, with a `code` for programs.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers(
        (url = "/", description = "The daemon which serves this description, also over its Unix socket."),
        (url = "http://127.0.0.1:9470", description = "The daemon of this host, unless `[api] listen` says otherwise."),
    ),
    components(schemas(Problem, ProblemCode)),
    // The Unix socket takes no token.
    security((), ("token" = [])),
)]
struct Description;

/// All routes, with their description.
fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(exports::create::create, exports::list))
        .routes(routes!(exports::show, exports::set, exports::delete))
        .routes(routes!(exports::attach))
        .routes(routes!(exports::detach))
        .routes(routes!(exports::resize))
        .routes(routes!(exports::create::open))
        .routes(routes!(exports::create::undelete))
        .routes(routes!(exports::create::fork))
        .routes(routes!(exports::flush))
        .routes(routes!(exports::drain))
        .routes(routes!(snapshots::rollback))
        .routes(routes!(snapshots::create, snapshots::list))
        .routes(routes!(snapshots::delete))
        .routes(routes!(volumes::list))
        .routes(routes!(volumes::show))
        .routes(routes!(volumes::deleted))
        .routes(routes!(volumes::collect))
        .routes(routes!(system::status))
        .routes(routes!(system::top))
        .routes(routes!(system::trace))
        .routes(routes!(system::memory))
        .routes(routes!(upgrade::upgrade))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .routes(routes!(openapi))
}

/// The service for doors of `connections_max` connections: every route, with the limits for all of them and the answers for unknown paths
/// and methods.
pub(crate) fn service(state: AppState, connections_max: usize) -> axum::Router {
    let (mut routes, _) = described().split_for_parts();
    for file in &page::FILES {
        routes = routes.route(file.path, get(async move || file.answer()));
    }
    routes
        .route_layer(axum::middleware::from_fn_with_state(
            shares::Shares::of(connections_max, Arc::clone(&state.stats.changes)),
            shares::bounded,
        ))
        .fallback(|| async {
            ApiError::new(P::NotFound, "there is no such path: /openapi.json lists all paths")
        })
        .method_not_allowed_fallback(|| async { ApiError::from(P::MethodNotAllowed) })
        .layer(axum::middleware::from_fn(guard::browsers))
        .with_state(state)
}

/// The description of the API: the content of `/openapi.json`.
pub fn description() -> OpenApi {
    let mut description = described().into_openapi();
    let token = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The token of `[api] token_file`. Requests over the Unix socket need none."));
    let components = description.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token.build()));
    error::describe(&mut description);
    description
}

/// The description of this API.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "daemon",
    responses((status = 200, description = "The description.", body = Object))
)]
async fn openapi() -> Result<Response, ApiError> {
    // The same for every request of this program.
    static TEXT: LazyLock<Option<Bytes>> =
        LazyLock::new(|| serde_json::to_vec(&description()).ok().map(Bytes::from));
    let text = TEXT.clone().ok_or_else(|| ApiError::new(P::Internal, "the description has no JSON form"))?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}
