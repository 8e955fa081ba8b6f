//! The HTTP API: routes, wire types, errors, access rules, listeners and connections.
//!
//! Owns the way users ask over HTTP, on TCP and on a Unix socket. Does not own operations on exports (`router`) nor the
//! content of the metrics (`observe`). Invariant: every answer other than `/metrics`, `/healthz`, `/readyz` and the status
//! page is JSON, and every refusal of an HTTP request is a problem by RFC 9457, with a code for programs and a sentence for
//! people about the next step.
//!
//! | File | Paths |
//! |---|---|
//! | `exports` | `/v1/exports…`, `/v1/drain`; `exports/create` makes exports |
//! | `snapshots` | `/v1/exports/{name}/snapshots…`, `/v1/exports/{name}/rollback` |
//! | `volumes` | `/v1/store/…`, `/v1/gc` |
//! | `system`, `shared_text` | `/v1/status`, `/v1/top`, `/v1/trace`, `/v1/memory`, `/healthz`, `/readyz`, `/metrics` |
//! | `upgrade` | `/v1/upgrade` |
//! | `page` | `/` and the files of the status page |
//! | `routes` | the table of all paths, and `/openapi.json` |
//!
//! | File | What every request meets |
//! |---|---|
//! | `serve`, `connection`, `shares` | listeners, the connections and how many there may be, how many requests for changes |
//! | `guard`, `token` | who may ask |
//! | `body`, `off_thread`, `paging` | reading a request, work on all exports, pages of lists |
//! | `error` | which error has which code |
//! | `state`, `wire` | what handlers share, and the types of requests and answers |

mod body;
mod connection;
mod error;
mod exports;
mod guard;
mod off_thread;
mod page;
mod paging;
mod routes;
mod serve;
mod shared_text;
mod shares;
mod snapshots;
mod state;
mod system;
#[cfg(test)]
mod tests;
mod token;
mod upgrade;
mod volumes;
pub mod wire;

pub use self::off_thread::OffThread;
pub(crate) use self::routes::description;
pub(crate) use self::serve::group;
pub use self::serve::{Access, Listeners, ServeError, Socket, serve};
pub use self::shared_text::{Selection, SharedTextStats, SharedTexts};
pub use self::state::{ApiStats, AppState, Readiness};
pub use self::token::{Token, TokenError, TokenFile};
pub use self::upgrade::{UpgradeError, Upgrades};
