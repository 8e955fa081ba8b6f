//! The shares of connections: how many requests may change something, or wait for the store, at once.
//!
//! Owns the bounds and which request counts for which. Does not own connections (`connection`). A request whose answer waits for a store that
//! is away keeps its connection until the store answers, and so does one that waits for the kernel. Invariants: requests that wait for
//! the store take half of the connections of a door at most, so those for exports served from the cache are carried out; all requests
//! that change something leave an eighth, so the daemon can always be looked at; a refused request has done nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::discard;
use super::error::ApiError;
use super::wire::ProblemCode as P;

/// Requests that end what keeps others waiting.
const APART: [&str; 1] = ["/v1/upgrade"];

/// Requests that wait for the store, whatever the export.
const WAITING: [(Method, &str); 11] = [
    (Method::POST, "/v1/exports/{name}/flush"),
    (Method::POST, "/v1/exports/{name}/fork"),
    (Method::POST, "/v1/exports/{name}/rollback"),
    (Method::POST, "/v1/exports/{name}/snapshots"),
    (Method::GET, "/v1/exports/{name}/snapshots"),
    (Method::DELETE, "/v1/exports/{name}/snapshots/{snapshot}"),
    (Method::GET, "/v1/store/exports"),
    (Method::GET, "/v1/store/exports/{name}"),
    (Method::GET, "/v1/store/deleted"),
    (Method::POST, "/v1/drain"),
    (Method::POST, "/v1/gc"),
];

/// The shares of all doors together. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// Counts the requests that change something.
    changes: Arc<AtomicU64>,
    changing: Share,
    waiting: Share,
}

/// How many requests of a kind may be under way.
#[derive(Clone, Debug)]
struct Share {
    max: usize,
    free: Arc<Semaphore>,
}

impl Share {
    fn of(max: usize) -> Self {
        Self { max, free: Arc::new(Semaphore::new(max)) }
    }

    fn take(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            let message = format!(
                "{} requests of this kind are under way, and more at once are not taken: send the request again later, and see whether \
                 the store answers",
                self.max
            );
            ApiError::new(P::TooManyUnderWay, message)
        })
    }
}

impl Shares {
    /// The shares of a door with `connections_max` connections. Counts the `changes`.
    pub fn of(connections_max: usize, changes: Arc<AtomicU64>) -> Self {
        let (eighth, half) = (connections_max.div_ceil(8), connections_max / 2);
        Self {
            changes,
            changing: Share::of(connections_max.saturating_sub(eighth).max(1)),
            waiting: Share::of(half.max(1)),
        }
    }

    /// The permits of a request, or why there are none.
    fn admit(&self, method: &Method, path: &str) -> Result<[Option<OwnedSemaphorePermit>; 2], ApiError> {
        let waits = WAITING.iter().any(|(waits, at)| waits == method && *at == path);
        let changes = !matches!(*method, Method::GET | Method::HEAD) && !APART.contains(&path);
        // The rarer one first: a refused request takes nothing away from others meanwhile.
        let waiting = waits.then(|| self.waiting.take()).transpose()?;
        let changing = changes.then(|| self.changing.take()).transpose()?;
        if changes {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok([waiting, changing])
    }
}

/// Passes a request on while there is a share for it, which is given back when the answer is made or the client has gone.
pub(super) async fn bounded(State(shares): State<Shares>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    match shares.admit(request.method(), path) {
        Ok(_permits) => next.run(request).await,
        Err(refusal) => {
            discard(request).await;
            refusal.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::routes;

    #[test]
    fn requests_that_wait_for_the_store_leave_half_of_the_connections_and_all_changes_an_eighth() {
        let shares = Shares::of(8, Arc::default());
        let admit = |method, path| shares.admit(&method, path);
        let snapshot = || admit(Method::POST, "/v1/exports/{name}/snapshots");
        let waiting: Vec<_> = (0..4).map(|_| snapshot().unwrap()).collect();
        assert!(snapshot().is_err() && admit(Method::GET, "/v1/store/exports").is_err());
        let attach = || admit(Method::POST, "/v1/exports/{name}/attach");
        let changing: Vec<_> = (0..3).map(|_| attach().unwrap()).collect();
        assert!(attach().is_err() && admit(Method::DELETE, "/v1/exports/{name}").is_err());
        for (method, path) in
            [(Method::GET, "/v1/status"), (Method::HEAD, "/metrics"), (Method::POST, "/v1/upgrade")]
        {
            assert!(admit(method, path).is_ok(), "{path}");
        }
        drop(changing);
        drop(attach().unwrap());
        assert!(snapshot().is_err());
        drop(waiting);
        drop(snapshot().unwrap());
    }

    #[test]
    fn every_request_with_a_rule_of_its_own_is_a_request_of_the_api() {
        let paths = routes::description().paths.paths;
        for (method, path) in WAITING {
            let item = &paths[path];
            let has = match method {
                Method::GET => item.get.is_some(),
                Method::DELETE => item.delete.is_some(),
                _ => item.post.is_some(),
            };
            assert!(has, "{method} {path}");
        }
        assert!(APART.iter().all(|path| paths[*path].post.is_some()));
    }
}
