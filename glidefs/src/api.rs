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
mod routes;
mod scrape;
mod seats;
mod serve;
mod snapshots;
mod state;
mod system;
#[cfg(test)]
mod tests;
mod token;
mod volumes;
pub mod wire;

pub use self::body::BODY_BYTES_MAX;
pub use self::error::ApiError;
pub use self::routes::description;
pub use self::scrape::{ScrapeStats, Scrapes};
pub use self::seats::DoorStats;
pub use self::serve::{Access, Listeners, ServeError, serve};
pub use self::state::{ApiStats, AppState, Readiness};
pub use self::token::{Token, TokenError, TokenFile};
