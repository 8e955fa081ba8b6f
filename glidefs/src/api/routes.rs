//! The table of routes, the description of the API, and the limits that hold for every route.

use axum::Json;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::state::AppState;
use super::{batch, exports, guard, idempotency, page, snapshots, system, trace, volumes};

#[derive(OpenApi)]
#[openapi(info(title = "glidefs", description = "Exports of the glidefs daemon on this host."))]
struct Description;

/// All routes, with their description.
fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(exports::create, exports::list))
        .routes(routes!(exports::show, exports::set, exports::delete))
        .routes(routes!(batch::batch))
        .routes(routes!(exports::attach))
        .routes(routes!(exports::detach))
        .routes(routes!(exports::resize))
        .routes(routes!(exports::open))
        .routes(routes!(exports::undelete))
        .routes(routes!(exports::fork))
        .routes(routes!(exports::flush))
        .routes(routes!(exports::drain))
        .routes(routes!(exports::rollback))
        .routes(routes!(snapshots::create, snapshots::list))
        .routes(routes!(snapshots::delete))
        .routes(routes!(volumes::list))
        .routes(routes!(volumes::deleted))
        .routes(routes!(volumes::collect))
        .routes(routes!(system::status))
        .routes(routes!(system::top))
        .routes(routes!(trace::trace))
        .routes(routes!(system::memory))
        .routes(routes!(system::upgrade))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .routes(routes!(openapi))
        .routes(routes!(page::html))
        .routes(routes!(page::css))
        .routes(routes!(page::page_js))
        .routes(routes!(page::table_js))
        .routes(routes!(page::charts_js))
        .routes(routes!(page::numbers_js))
}

/// The service: every route, with the limits for all of them and the answers for unknown paths and methods.
pub(crate) fn service(state: AppState) -> axum::Router {
    let (routes, _) = described().split_for_parts();
    let keyed = idempotency::Keyed::of(&state);
    routes
        .route_layer(axum::middleware::from_fn_with_state(keyed, idempotency::keyed))
        .fallback(|| async { ApiError::not_found("there is no such path: /openapi.json lists all paths") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(axum::middleware::from_fn(guard::browsers))
        .layer(axum::Extension(batch::BatchPlaces::default()))
        .with_state(state)
}

/// The description of the API: the content of `/openapi.json`.
pub fn description() -> utoipa::openapi::OpenApi {
    let mut description = described().into_openapi();
    idempotency::describe(&mut description);
    description
}

/// The description of this API.
#[utoipa::path(
    get, path = "/openapi.json", tag = "daemon",
    responses((status = 200, description = "The description.", body = Object))
)]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(description())
}
