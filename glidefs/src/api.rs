//! The HTTP API: routes, wire types, errors, who may ask, listeners and connections.
//!
//! Owns how users ask over HTTP, on TCP and on a Unix socket. Does not own what is done (`router`) nor what the metrics say
//! (`observe`). Invariant: every answer other than `/metrics`, `/healthz` and `/readyz` is JSON, and every refusal is
//! `{"error": {"code", "message"}}` with a message that says what to do.

mod body;
mod connection;
mod error;
mod exports;
mod guard;
mod peer;
mod scrape;
mod seats;
mod serve;
mod stored;
mod system;
#[cfg(test)]
mod tests;
mod timestamp;
mod token;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::extract::DefaultBodyLimit;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::error::ApiError;
pub use self::scrape::{ScrapeStats, Scrapes};
pub use self::seats::DoorStats;
pub use self::serve::{Access, Listeners, ServeError, serve};
pub use self::token::{Token, TokenError, TokenFile};
use crate::router::Router;

/// Largest request body, bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// What the handlers need. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The exports.
    pub router: Arc<Router>,
    /// Gives the text of `/metrics`.
    pub metrics: Arc<Scrapes>,
    /// What the API counts.
    pub stats: Arc<ApiStats>,
    /// Gives what the daemon knows about itself.
    pub daemon: Arc<dyn Fn() -> wire::DaemonStatus + Send + Sync>,
    /// Whether recovery is done.
    pub ready: Readiness,
    /// When the daemon started.
    pub started: Instant,
}

/// What the API counts of itself.
#[derive(Debug, Default)]
pub struct ApiStats {
    /// Connections over TCP.
    pub tcp: Arc<DoorStats>,
    /// Connections over the Unix socket.
    pub socket: Arc<DoorStats>,
    /// Connections over the Unix socket of those who may not use it.
    pub strangers: Arc<DoorStats>,
    /// Scrapes of `/metrics`.
    pub scrapes: Arc<ScrapeStats>,
}

/// Whether the daemon has finished its recovery: set once, read by `/readyz`.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says that recovery is done.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether recovery is done.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(OpenApi)]
#[openapi(info(title = "glidefs", description = "Exports of the glidefs daemon on this host."))]
struct Description;

/// All routes but `/openapi.json`, and their description.
fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(exports::create, exports::list))
        .routes(routes!(exports::show, exports::delete))
        .routes(routes!(exports::attach))
        .routes(routes!(exports::detach))
        .routes(routes!(exports::resize))
        .routes(routes!(exports::open))
        .routes(routes!(exports::undelete))
        .routes(routes!(exports::fork))
        .routes(routes!(exports::flush))
        .routes(routes!(exports::drain))
        .routes(routes!(exports::rollback))
        .routes(routes!(stored::create, stored::list))
        .routes(routes!(stored::delete))
        .routes(routes!(stored::volumes))
        .routes(routes!(stored::deleted))
        .routes(routes!(stored::collect))
        .routes(routes!(system::status))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .routes(routes!(system::openapi))
}

/// The service: every route, with its limits and its answers to what there is no route for.
pub(crate) fn service(state: AppState) -> axum::Router {
    let (routes, _) = described().split_for_parts();
    routes
        .fallback(|| async {
            ApiError::not_found("there is no such path: /openapi.json lists those there are")
        })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(axum::middleware::from_fn(guard::browsers))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}

/// The description of the API, as `/openapi.json` gives it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}
