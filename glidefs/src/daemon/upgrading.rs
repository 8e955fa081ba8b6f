//! Upgrades as the daemon that runs sees them: one at a time, from the request to a successor that is ready.
//!
//! Owns when an upgrade may begin, and the result of the last one. Does not own the hand-over itself (`handover`) nor the end of this
//! daemon (`serving`). Invariant: until a successor is ready, this daemon serves as before, and only its log is prepared: with a checkpoint,
//! and with new segments for the next writes.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::ahead::prepare_cache;
use super::takeover::tenures;
use crate::api::{Readiness, UpgradeError, Upgrades, wire};
use crate::cache::Cache;
use crate::handover::{Candidate, Identity, Launch, Upgrade, VERSION, unix_millis};
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::router::{ExportName, Router};

/// The upgrades of this daemon. Cheap to clone.
#[derive(Clone)]
pub(super) struct Upgrading(Arc<Shared>);

struct Shared {
    launch: Launch,
    identity: Identity,
    router: Arc<Router>,
    cache: Cache,
    ready: Readiness,
    is_under_way: AtomicBool,
    last: Mutex<Option<Upgrade>>,
    successors: mpsc::Sender<Offer>,
}

/// The time from the request for an upgrade until the daemon goes on without a successor.
struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.cache.expect_no_successor();
        self.0.is_under_way.store(false, Ordering::Release);
    }
}

/// A successor with nothing left to prepare.
pub(super) struct Offer {
    candidate: Candidate,
    under_way: UnderWay,
}

impl Offer {
    /// Why the successor cannot take over any more.
    pub fn failure(&mut self) -> Option<String> {
        self.candidate.has_failed()
    }

    /// Ends the successor: this daemon does not hand over.
    pub async fn end(self) {
        let Self { candidate, under_way } = self;
        // An error is a panic, and in the log.
        let _ = tokio::task::spawn_blocking(move || candidate.end()).await;
        drop(under_way);
    }

    /// Ends this program; see [`Candidate::hand_over`].
    pub fn hand_over(self, config: &str) -> io::Error {
        self.candidate.hand_over(config, tenures(&self.under_way.0.router))
    }
}

impl Upgrading {
    /// The upgrades of a daemon that was started with `launch` and comes from the upgrade `last`. Also the successors that get ready.
    pub fn new(
        launch: Launch,
        identity: Identity,
        router: Arc<Router>,
        cache: Cache,
        ready: Readiness,
        last: Option<Upgrade>,
    ) -> (Self, mpsc::Receiver<Offer>) {
        let (successors, ready_successors) = mpsc::channel(1);
        let shared = Shared {
            launch,
            identity,
            router,
            cache,
            ready,
            is_under_way: AtomicBool::new(false),
            last: Mutex::new(last),
            successors,
        };
        (Self(Arc::new(shared)), ready_successors)
    }

    /// The next successor ready to take over at once. Goes on without the others.
    pub async fn chosen(&self, successors: &mut mpsc::Receiver<Offer>) -> Offer {
        loop {
            let Some(mut offer) = successors.recv().await else { std::future::pending().await };
            // Minutes may have passed since the first look.
            let takes_tenures = offer.candidate.takes_tenures();
            let reason = match offer.failure() {
                None => match self.0.may_hand_over(takes_tenures).await {
                    Ok(()) => return offer,
                    Err(error) => error.to_string(),
                },
                Some(reason) => reason,
            };
            let (began, version) =
                (offer.candidate.began_unix_millis(), offer.candidate.version().to_owned());
            self.0.goes_on(began, Some(version), reason);
            offer.end().await;
        }
    }
}

impl Upgrades for Upgrading {
    fn begin(
        &self,
        program: Option<PathBuf>,
    ) -> BoxFuture<'static, Result<wire::UpgradeBegun, UpgradeError>> {
        let shared = Arc::clone(&self.0);
        // A task of its own, so that a client that goes away leaves nothing half done.
        let task = tokio::spawn(async move { shared.begin(program).await });
        Box::pin(async move {
            let failed = |_| UpgradeError::Failed { reason: "the upgrade broke off: see the log".into() };
            task.await.map_err(failed)?
        })
    }

    fn last(&self) -> Option<wire::Upgrade> {
        let last = self.0.last.lock_whole().clone()?;
        let succeeded = last.failure.is_none();
        Some(wire::Upgrade {
            began: wire::rfc3339(last.began_unix_millis),
            from: last.from,
            to: last.to,
            outcome: if succeeded { "done" } else { "failed" }.into(),
            reason: last.failure,
            pauses: succeeded.then(|| {
                let pauses = self.0.router.pauses();
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

impl Shared {
    async fn begin(self: Arc<Self>, program: Option<PathBuf>) -> Result<wire::UpgradeBegun, UpgradeError> {
        if !self.ready.get() {
            return Err(UpgradeError::NotReady);
        }
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return Err(UpgradeError::UnderWay);
        }
        let under_way = UnderWay(Arc::clone(&self));
        self.prepare(program, under_way).await
    }

    /// Refuses a hand-over after which a device would wait for a store that is away.
    async fn may_hand_over(&self, takes_tenures: bool) -> Result<(), UpgradeError> {
        let refused = |export: ExportName| UpgradeError::StoreAway { export: export.to_string() };
        self.router.may_hand_over(takes_tenures).await.map_err(refused)
    }

    /// Notes the failure of an upgrade: this daemon goes on.
    fn goes_on(&self, began_unix_millis: u64, to: Option<String>, reason: String) {
        tracing::error!(reason, "no successor: this daemon goes on");
        *self.last.lock_whole() =
            Some(Upgrade { began_unix_millis, from: VERSION.into(), to, failure: Some(reason) });
    }

    async fn prepare(
        self: &Arc<Self>,
        program: Option<PathBuf>,
        under_way: UnderWay,
    ) -> Result<wire::UpgradeBegun, UpgradeError> {
        self.may_hand_over(true).await?;
        let began_unix_millis = unix_millis();
        let shared = Arc::clone(self);
        let preparing = move || {
            let prepare = || prepare_cache(&shared.cache);
            Candidate::prepare(&shared.launch, program.as_deref(), &shared.identity, prepare)
        };
        let prepared = match tokio::task::spawn_blocking(preparing).await {
            Ok(prepared) => prepared.map_err(|failed| (failed.version, chain(&failed.error))),
            Err(error) => Err((None, format!("the preparation broke off: {error}"))),
        };
        let sent = match prepared {
            Ok(candidate) => {
                let begun = wire::UpgradeBegun {
                    pid: candidate.pid(),
                    version: candidate.version().into(),
                    began: wire::rfc3339(candidate.began_unix_millis()),
                };
                tracing::info!(
                    pid = begun.pid,
                    version = begun.version,
                    "the successor is ready: this daemon hands over"
                );
                let offer = Offer { candidate, under_way };
                let to = begun.version.clone();
                self.successors
                    .send(offer)
                    .await
                    .map(|()| begun)
                    .map_err(|_| (Some(to), "the daemon stops".to_owned()))
            }
            Err(failed) => Err(failed),
        };
        sent.map_err(|(to, reason)| {
            self.goes_on(began_unix_millis, to, reason.clone());
            UpgradeError::Failed { reason }
        })
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
