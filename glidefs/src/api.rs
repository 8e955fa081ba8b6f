//! The HTTP API: routes, wire types, errors, access rules, listeners and connections.
//!
//! Owns the way users ask over HTTP, on TCP and on a Unix socket. Does not own operations on exports (`router`) nor the
//! content of the metrics (`observe`). Invariant: every answer other than `/metrics`, `/healthz`, `/readyz` and the status
//! page is JSON, or lines of JSON for a batch and a trace, and every refusal
//! is a problem by RFC 9457, with a code for programs and a sentence for people about the next step.

mod batch;
mod body;
mod connection;
mod error;
mod exports;
mod guard;
mod idempotency;
mod off_thread;
mod page;
mod paging;
mod peer;
mod problems;
mod refusals;
mod routes;
mod scrape;
mod seats;
mod serve;
mod shares;
mod snapshots;
mod state;
mod system;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod upgrade;
mod volumes;
pub mod wire;

pub use self::off_thread::OffThread;
pub(crate) use self::routes::description;
pub use self::scrape::{ScrapeStats, Scrapes, Selection};
pub use self::serve::{Access, Listeners, ServeError, serve};
pub use self::state::{ApiStats, AppState, Readiness};
pub use self::token::{Token, TokenError, TokenFile};
pub use self::trace::Traces;
#[cfg(feature = "otel")]
pub use self::trace::{Reading, SpanStats, TraceStats, rate};
pub use self::upgrade::{NoUpgrades, UpgradeError, Upgrades};
