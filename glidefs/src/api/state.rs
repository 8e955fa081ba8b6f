//! The state that all handlers share, and the counters of the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::connection::DoorStats;
use super::off_thread::OffThread;
use super::shared_text::{SharedTextStats, SharedTexts};
use super::upgrade::Upgrades;
use super::wire;
use crate::observe::metrics::ExportHistograms;
use crate::observe::trace::TraceRing;
use crate::observe::troubles::Troubles;
use crate::router::Router;

/// The state that every handler gets. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The router, which owns the exports.
    pub router: Arc<Router>,
    /// Makes the text of `/metrics`.
    pub metrics: Arc<SharedTexts>,
    /// Which exports have histograms on `/metrics` when a scrape does not say.
    pub export_histograms: ExportHistograms,
    /// The counters of the API.
    pub stats: Arc<ApiStats>,
    /// Gives the state of workers and cache.
    pub daemon: Arc<dyn Fn() -> wire::DaemonStatus + Send + Sync>,
    /// Gives what the store does; `None` without a store.
    pub store: Arc<dyn Fn() -> Option<wire::StoreState> + Send + Sync>,
    /// Makes the text of `/v1/top`, a [`wire::Top`] as JSON.
    pub top: Arc<SharedTexts>,
    /// The requests of devices that `glidefs trace` shows.
    pub traces: Arc<TraceRing>,
    /// Gives the memory of the daemon by category. May take milliseconds.
    pub memory: Arc<dyn Fn() -> Option<wire::Memory> + Send + Sync>,
    /// The places for work on all exports.
    pub off_thread: OffThread,
    /// Replaces the daemon by another program, and tells of the last time; `None` for a daemon that cannot.
    pub upgrades: Option<Arc<dyn Upgrades>>,
    /// Whether recovery is done.
    pub ready: Readiness,
    /// When the daemon started.
    pub started: Instant,
}

#[cfg(test)]
impl AppState {
    /// The state of a daemon that shows nothing but the exports of `router`.
    pub(crate) fn of_router(router: &Arc<Router>) -> Self {
        let empty = || Arc::new(SharedTexts::new(|_| Ok(String::new()), Arc::default()));
        Self {
            router: Arc::clone(router),
            metrics: empty(),
            export_histograms: ExportHistograms::default(),
            stats: Arc::default(),
            daemon: Arc::new(wire::DaemonStatus::default),
            store: Arc::new(|| None),
            top: empty(),
            traces: Arc::default(),
            memory: Arc::new(|| Some(wire::Memory::default())),
            off_thread: OffThread::default(),
            upgrades: None,
            ready: Readiness::default(),
            started: Instant::now(),
        }
    }
}

/// The counters of the API.
#[derive(Debug, Default)]
pub struct ApiStats {
    /// What of the API does not work.
    pub troubles: Arc<Troubles>,
    /// Requests that changed something, or tried to.
    pub changes: Arc<AtomicU64>,
    /// Connections over TCP.
    pub tcp: Arc<DoorStats>,
    /// Connections over the Unix socket.
    pub socket: Arc<DoorStats>,
    /// Scrapes of `/metrics`.
    pub scrapes: Arc<SharedTextStats>,
    /// Answers of `/v1/top`, which are shared as the texts of scrapes are.
    pub tops: Arc<SharedTextStats>,
}

/// Whether the daemon has finished recovery: set once, read by `/readyz`.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Notes the end of recovery.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether recovery is done.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
