//! Exports without their device in service, to be tried again: at the start the device could not be had or made.
//!
//! Owns which exports are tried again, and when. Does not own the steps (`operations`). Invariants: the requests of a stranded device
//! wait; an export is tried again until the device is served, somebody does something else with the export, the export is released, or lost
//! and without a device, or the daemon stops; as many tries run at once as starts of exports, and at most one for an export; a slow try
//! holds up no other try while there are places.

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Router;
use super::catalog::record::Desired;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::state::{Event, State};
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::tasks;
use crate::units::ExportId;

/// The first pause before an export is tried again. Each further one is twice as long, up to the longest. Every pause is up to a
/// quarter longer or shorter by chance, so that exports which failed together are not all tried at the same moment.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// An export to be tried again.
#[derive(Debug)]
pub(super) struct Stranded {
    entry: Arc<ExportEntry>,
    /// Whether an existing device may be recovered without the store's word: the store has confirmed the export since the start, or the
    /// device was served.
    is_claimed: bool,
    /// The pause before the try at `due`.
    pause: Duration,
    due: Instant,
}

impl Stranded {
    fn after(pause: Duration, entry: Arc<ExportEntry>, is_claimed: bool) -> Self {
        let due = Instant::now() + pause.mul_f64(rand::random_range(0.75..1.25));
        Self { entry, is_claimed, pause, due }
    }
}

/// The exports to be tried again, and those which are being tried.
#[derive(Debug, Default)]
pub(super) struct Tries {
    waiting: Vec<Stranded>,
    under_way: HashSet<ExportId>,
}

impl Tries {
    /// Adds an export, in place of what was known of the export before.
    fn put(&mut self, stranded: Stranded) {
        self.waiting.retain(|other| !Arc::ptr_eq(&other.entry, &stranded.entry));
        self.waiting.push(stranded);
    }

    /// Adds an export after a try, unless more is known of the export since the try began.
    fn put_back(&mut self, stranded: Stranded) {
        if !self.waiting.iter().any(|other| Arc::ptr_eq(&other.entry, &stranded.entry)) {
            self.waiting.push(stranded);
        }
    }

    /// The export whose time comes first, if one of so many `places` is free.
    fn next(&self, places: usize) -> Option<(usize, Instant)> {
        if self.under_way.len() >= places {
            return None;
        }
        let waiting = self.waiting.iter().enumerate();
        let may_begin = waiting.filter(|(_, stranded)| !self.under_way.contains(&stranded.entry.id()));
        may_begin.map(|(at, stranded)| (at, stranded.due)).min_by_key(|(_, due)| *due)
    }

    /// Takes the export whose time has come longest ago.
    fn take_due(&mut self, places: usize) -> Option<Stranded> {
        let (at, _) = self.next(places).filter(|(_, due)| *due <= Instant::now())?;
        let stranded = self.waiting.swap_remove(at);
        self.under_way.insert(stranded.entry.id());
        Some(stranded)
    }
}

/// A try under way, until dropped.
struct UnderWay {
    router: Arc<Router>,
    export: ExportId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.router.stranded.lock_whole().under_way.remove(&self.export);
        self.router.tries_changed.notify_one();
    }
}

/// Whether an export still waits for its device. A drain releases a failed export without a device: another host may have the export
/// now, or is to have it.
fn is_wanted(held: &HeldExport) -> bool {
    let record = held.record();
    !held.is_gone()
        && matches!(held.entry().state(), State::Failed { .. })
        && record.desired == Desired::Attached
        && !record.may_be_released
}

impl Router {
    /// Has a failed export tried again. `is_claimed` says that the store has confirmed the export.
    pub(super) fn try_later(&self, held: &HeldExport, is_claimed: bool) {
        if is_wanted(held) {
            let stranded = Stranded::after(PAUSE, Arc::clone(held.entry()), is_claimed);
            self.stranded.lock_whole().put(stranded);
            self.tries_changed.notify_one();
        }
    }

    /// Returns when the time of an export has come: call [`Self::begin_tries`].
    pub async fn has_to_try(&self) {
        loop {
            // None while all places are taken: the end of a try changes that.
            let next = self.stranded.lock_whole().next(self.parallel());
            let due = async {
                match next {
                    Some((_, due)) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = due => return,
                () = self.tries_changed.notified() => {}
            }
        }
    }

    /// Begins tries of the exports whose time has come, each on its own. An export with another operation under way is tried later.
    pub fn begin_tries(self: &Arc<Self>) {
        let take_due = || self.stranded.lock_whole().take_due(self.parallel());
        while let Some(stranded) = take_due() {
            let under_way = UnderWay { router: Arc::clone(self), export: stranded.entry.id() };
            drop(tasks::spawn(async move {
                // An error is that of a daemon that stops.
                let _: Result<(), RouterError> = under_way.router.try_again(stranded).await;
                drop(under_way);
            }));
        }
    }

    /// Tries which are under way.
    #[cfg(test)]
    pub(super) fn tries_under_way(&self) -> usize {
        self.stranded.lock_whole().under_way.len()
    }

    /// Tries once to have the device of an export served.
    async fn try_again(&self, stranded: Stranded) -> Result<(), RouterError> {
        // A stopping daemon leaves the device to the next one.
        let gate = self.enter().await?;
        if let Some(held) = HeldExport::try_now(Arc::clone(&stranded.entry), gate) {
            if !is_wanted(&held) {
                return Ok(());
            }
            held.step(Event::BeginAttach)?;
            // Boxed, as the future is large.
            let recovered = Box::pin(self.recover_stranded(&held, stranded.is_claimed));
            let recovered = self.unless_stopping(recovered).await;
            let served = match recovered {
                // Not given up half-way, as any other attach: a drain at the end of the daemon must find the device.
                Ok(false) => self.attach_anew(&held).await,
                recovered => recovered.map(drop),
            };
            let Err(error) = served else {
                let device_id = held.record().device.number;
                tracing::info!(export = %held.entry().name(), device_id, "the device is served now, after tries that failed");
                return Ok(());
            };
            let reason = chain(&error);
            tracing::debug!(export = %held.entry().name(), error = %reason, "a device is not served yet");
            held.step(Event::Fail { reason })?;
            if matches!(error, RouterError::Lost { .. }) {
                return Ok(());
            }
        }
        let Stranded { entry, is_claimed, pause, .. } = stranded;
        let pause = pause.saturating_mul(2).min(PAUSE_MAX);
        self.stranded.lock_whole().put_back(Stranded::after(pause, entry, is_claimed));
        Ok(())
    }

    /// Has an existing device served, once the store has answered where it has to be asked. The device of a lost export is served too, and
    /// answers with errors. False when the export is to get a new device; a lost export gets none.
    async fn recover_stranded(&self, held: &HeldExport, is_claimed: bool) -> Result<bool, RouterError> {
        let found = self.find_device(held).await?;
        // A new device would show clients what another host may have taken over since.
        let lost = self.claim_again(held, is_claimed && found.is_some()).await?;
        match (found, lost) {
            (Some(_), _) => self.recover_device(held).await.map(|()| true),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(false),
        }
    }
}
