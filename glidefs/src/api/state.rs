//! The state that all handlers share, and the counters of the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::scrape::{ScrapeStats, Scrapes};
use super::seats::DoorStats;
use super::wire;
use crate::router::Router;

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
