//! Exports without their device in service, to be tried again: at the start the device could not be had or made.
//!
//! Owns which exports are tried again, and when. Does not own the steps (`operations`). Invariants: the requests of a stranded device
//! wait; an export is tried again until the device is served, somebody does something else with the export, the export is released, or lost
//! and without a device, or the daemon stops; as many tries run at once as starts of exports; a slow try holds up no other try while there
//! are places. An export is stranded once in the life of a daemon, so no two tries of one export meet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Router;
use super::catalog::record::Desired;
use super::confirm::Ownership;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::state::{Event, State};
use crate::observe::chain;
use crate::tasks;

/// The first pause before an export is tried again. Each further one is twice as long, up to the longest. Every pause is up to a
/// quarter longer or shorter by chance, so that exports which failed together are not all tried at the same moment.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Whether an export still waits for its device. A drain releases a failed export without a device: another host may have the export
/// now, or is to have it.
fn is_wanted(held: &HeldExport) -> bool {
    let record = held.record();
    !held.is_gone()
        && matches!(held.entry.state(), State::Failed { .. })
        && record.desired == Desired::Attached
        && !record.may_be_released
}

impl Router {
    /// Has a failed export tried again. With `is_claimed` an existing device may be recovered without the store's word: the store has
    /// confirmed the export since the start, or the device was served.
    pub(super) fn try_later(self: &Arc<Self>, held: &HeldExport, is_claimed: bool) {
        if !is_wanted(held) {
            return;
        }
        // During a pause nothing is kept that has to be closed when the daemon stops.
        let (router, entry) = (Arc::downgrade(self), Arc::downgrade(&held.entry));
        drop(tokio::spawn(tasks::for_export(held.entry.id, async move {
            let mut pause = PAUSE;
            loop {
                sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
                let (Some(router), Some(entry)) = (router.upgrade(), entry.upgrade()) else { return };
                // An error is that of a daemon that stops.
                if router.try_again(entry, is_claimed).await.unwrap_or(true) {
                    return;
                }
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
        })));
    }

    /// Tries which are under way.
    #[cfg(test)]
    pub(super) fn tries_under_way(&self) -> usize {
        self.parallel() - self.tries.available_permits()
    }

    /// Tries once to have the device of an export served. False when the export has to be tried again: the device is not served, or another
    /// operation is under way.
    async fn try_again(&self, entry: Arc<ExportEntry>, is_claimed: bool) -> Result<bool, RouterError> {
        // The semaphore is never closed.
        let _place = self.tries.acquire().await;
        // A stopping daemon leaves the device to the next one.
        let Some(held) = HeldExport::try_now(entry, self.enter().await?) else { return Ok(false) };
        if !is_wanted(&held) {
            return Ok(true);
        }
        held.step(Event::BeginAttach)?;
        // Boxed, as the future is large.
        let recovered = self.unless_stopping(Box::pin(self.recover_stranded(&held, is_claimed))).await;
        let served = match recovered {
            // Not given up half-way, as any other attach: a drain at the end of the daemon must find the device.
            Ok(false) => self.attach_anew(&held).await,
            recovered => recovered.map(drop),
        };
        let Err(error) = served else {
            let device_id = held.record().device.number;
            tracing::info!(export = %held.entry.name, device_id, "the device is served now, after tries that failed");
            return Ok(true);
        };
        let reason = chain(&error);
        tracing::debug!(export = %held.entry.name, error = %reason, "a device is not served yet");
        held.step(Event::Fail { reason })?;
        Ok(matches!(error, RouterError::Lost { .. }))
    }

    /// Has an existing device served, once the store has answered where it has to be asked. The device of a lost export is served too, and
    /// answers with errors. False when the export is to get a new device; a lost export gets none.
    async fn recover_stranded(&self, held: &HeldExport, is_claimed: bool) -> Result<bool, RouterError> {
        let found = self.find_device(held).await?;
        // A new device would show clients what another host may have taken over since.
        let is_known = is_claimed && found.is_some() && !held.entry.is_lost();
        let ownership = if is_known { Ownership::Ours } else { self.claim(held).await };
        match (found, ownership) {
            (_, Ownership::Unknown) if !self.options.serve_unconfirmed => {
                Err(RouterError::Unconfirmed { name: held.name() })
            }
            (Some(_), _) => self.recover_device(held).await.map(|()| true),
            (None, Ownership::Lost(error)) => Err(error),
            (None, _) => Ok(false),
        }
    }
}
