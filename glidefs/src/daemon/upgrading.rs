//! Upgrades as the daemon that runs sees them: one at a time, from the request to the order to go on as another program.
//!
//! Owns when an upgrade may begin, and the result of the last one. Does not own `execve` (`handover`) nor the end of this daemon
//! (`serving`). Invariant: until an order is given, this daemon serves as before, and nothing has changed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::api::{Readiness, UpgradeError, Upgrades, wire};
use crate::cache::Cache;
use crate::config::Config;
use crate::handover::{self, Candidate, Identity, Launch, UNSET, Upgrade, VERSION};
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::router::{Catalog, ExportName, Router};
use crate::units::unix_millis;

/// The upgrades of this daemon.
pub(super) struct Upgrading {
    launch: Launch,
    identity: Identity,
    router: Arc<Router>,
    ready: Readiness,
    is_under_way: AtomicBool,
    last: Mutex<Option<Upgrade>>,
    orders: mpsc::Sender<Order>,
}

/// The order to go on as another program.
#[derive(Debug)]
pub(super) struct Order {
    /// The file of the next program, without links.
    pub program: PathBuf,
    /// The upgrade as it ends if that program serves.
    pub upgrade: Upgrade,
}

impl Upgrading {
    /// The upgrades of a daemon that was started with `launch` and comes from the upgrade `last`. Also the orders.
    pub fn new(
        launch: Launch,
        identity: Identity,
        router: Arc<Router>,
        ready: Readiness,
        last: Option<Upgrade>,
    ) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let (orders, given) = mpsc::channel(1);
        let is_under_way = AtomicBool::new(false);
        let last = Mutex::new(last);
        (Arc::new(Self { launch, identity, router, ready, is_under_way, last, orders }), given)
    }
}

#[async_trait]
impl Upgrades for Upgrading {
    async fn begin(self: Arc<Self>, program: Option<PathBuf>) -> Result<wire::UpgradeBegun, UpgradeError> {
        // A task of its own, so that a client that goes away leaves nothing half done.
        let task = tokio::spawn(async move { self.begin_now(program).await });
        let failed = |_| UpgradeError::Failed { reason: "the upgrade broke off: see the log".into() };
        task.await.map_err(failed)?
    }

    fn last(&self) -> Option<wire::Upgrade> {
        let last = self.last.lock_whole().clone()?;
        let succeeded = last.failure.is_none();
        Some(wire::Upgrade {
            began: wire::rfc3339(last.began_unix_millis),
            from: last.from,
            to: last.to,
            outcome: if succeeded { "done" } else { "failed" }.into(),
            reason: last.failure,
            pauses: succeeded.then(|| {
                let pauses = self.router.pauses();
                let devices = pauses.len() as u64;
                let (longest, median) = longest_and_median(pauses);
                wire::Pauses {
                    devices,
                    longest_seconds: longest.as_secs_f64(),
                    median_seconds: median.as_secs_f64(),
                }
            }),
        })
    }
}

/// The longest and the median of `pauses`; zero for none.
pub(super) fn longest_and_median(mut pauses: Vec<Duration>) -> (Duration, Duration) {
    pauses.sort_unstable();
    let at = |place: usize| pauses.get(place).copied().unwrap_or_default();
    (at(pauses.len().saturating_sub(1)), at(pauses.len() / 2))
}

impl Upgrading {
    async fn begin_now(&self, program: Option<PathBuf>) -> Result<wire::UpgradeBegun, UpgradeError> {
        if !self.ready.get() {
            return Err(UpgradeError::NotReady);
        }
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return Err(UpgradeError::UnderWay);
        }
        let began_unix_millis = unix_millis();
        // After an order this daemon ends.
        self.order(program, began_unix_millis).await.inspect_err(|error| {
            tracing::error!(reason = chain(error), "not upgraded: this daemon goes on");
            *self.last.lock_whole() = Some(Upgrade {
                began_unix_millis,
                from: VERSION.into(),
                to: None,
                failure: Some(error.to_string()),
            });
            self.is_under_way.store(false, Ordering::Release);
        })
    }

    async fn order(
        &self,
        program: Option<PathBuf>,
        began_unix_millis: u64,
    ) -> Result<wire::UpgradeBegun, UpgradeError> {
        let checked = handover::check(&self.launch, program.as_deref(), &self.identity).await;
        let failed = |reason| UpgradeError::Failed { reason };
        let Candidate { program, version } = checked.map_err(|error| failed(chain(&error)))?;
        // A device would wait for a store that is away.
        let waits = |export: ExportName| UpgradeError::StoreAway { export: export.to_string() };
        self.router.may_hand_over().await.map_err(waits)?;
        tracing::info!(version, program = %program.display(), "this daemon goes on as another program");
        let to = Some(version.clone());
        let upgrade = Upgrade { began_unix_millis, from: VERSION.into(), to, failure: None };
        let order = Order { program, upgrade };
        self.orders.send(order).await.map_err(|_| failed("the daemon stops".into()))?;
        Ok(wire::UpgradeBegun { version, began: wire::rfc3339(began_unix_millis) })
    }
}

/// The things of a daemon with `config` that the next program has to have in common with it.
pub(super) fn identity(config: &Config) -> Identity {
    Identity {
        cache: config.cache.dir.display().to_string(),
        directory: handover::directory_at(&config.cache.dir),
        socket: config.api.socket.display().to_string(),
        listen: config.api.listen.to_string(),
        store: config.store.url.as_ref().map_or_else(|| UNSET.into(), ToString::to_string),
        // A start may write every format read by this program: damage found at a start raises the version of the cache.
        formats: [Cache::VERSION.into(), Cache::RECORD_VERSION.into(), Catalog::VERSION],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_the_median_pause_are_told() {
        let millis = Duration::from_millis;
        assert_eq!(longest_and_median(Vec::new()), (millis(0), millis(0)));
        assert_eq!(longest_and_median(vec![millis(9)]), (millis(9), millis(9)));
        assert_eq!(
            longest_and_median(vec![millis(500), millis(250), millis(3000)]),
            (millis(3000), millis(500))
        );
    }
}
