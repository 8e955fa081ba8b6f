//! Moves of devices between workers when devices have come and gone, and when loads differ.
//!
//! Owns when a device may be moved: the export serves, and no other operation on the export runs. Does not own the choice of the
//! device, nor the steps ([`Devices`](super::Devices)). Invariants: at most one device is moved at a time; a move that has begun
//! goes on to its end also when the caller goes away, and the daemon stops after the move; a device that could not be given to
//! other workers waits with its requests like a device whose daemon died, and is tried again until the device is served, somebody
//! does something else with the export, or the daemon stops.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::Router;
use super::background::finish;
use super::catalog::record::Desired;
use super::devices::DeviceId;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::state::{Event, State};
use crate::locks::MutexExt;
use crate::observe::chain;

/// The first pause before a device on the way is tried again. Each further one is twice as long, up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// A device on the way to other workers which could not be given to these.
#[derive(Debug)]
pub(super) struct Stranded {
    entry: Arc<ExportEntry>,
    device: DeviceId,
    /// The pause before the try at `due`.
    pause: Duration,
    due: Instant,
}

impl Stranded {
    fn after(pause: Duration, entry: Arc<ExportEntry>, device: DeviceId) -> Self {
        Self { entry, device, pause, due: Instant::now() + pause }
    }

    /// Whether the export still waits for the device to be given to workers.
    fn is_wanted(&self, held: &HeldExport) -> bool {
        let record = held.record();
        !held.is_gone()
            && matches!(held.entry().state(), State::Failed { .. })
            && record.desired == Desired::Attached
            && record.device_id() == self.device
    }
}

impl Router {
    /// Has [`Self::has_to_spread`] return: devices came or went, or loads were sampled.
    pub fn spread(&self) {
        self.to_spread.notify_one();
    }

    /// Returns when devices may have to be moved, or a device on the way is to be tried again.
    pub async fn has_to_spread(&self) {
        let due = self.stranded.lock_whole().iter().map(|stranded| stranded.due).min();
        let notified = self.to_spread.notified();
        match due {
            // An error means that the time has come.
            Some(due) => drop(tokio::time::timeout_at(due, notified).await),
            None => notified.await,
        }
    }

    /// Tries devices on the way again whose time has come, then moves devices to other workers until nothing is to be gained, at most
    /// `moves_max`, and returns how many were moved. An export with another operation under way is left out.
    pub async fn spread_devices(self: &Arc<Self>, moves_max: usize) -> usize {
        let now = Instant::now();
        let due: Vec<_> = self.stranded.lock_whole().extract_if(.., |stranded| stranded.due <= now).collect();
        let tries = due
            .into_iter()
            .map(|stranded| finish(stranded.entry.name().to_string(), Arc::clone(self).try_again(stranded)));
        join_all(tries).await;
        let (mut except, mut moved) = (HashSet::new(), 0_usize);
        while moved < moves_max {
            let Some((export, device)) = self.devices.next_move(&except) else { break };
            // A stopping daemon moves nothing.
            let Ok(gate) = self.enter().await else { break };
            let entry = self.entry(export.name()).filter(|entry| entry.id() == export.id());
            let Some(held) = entry.and_then(|entry| HeldExport::try_now(entry, gate)) else {
                except.insert(export.id());
                continue;
            };
            let router = Arc::clone(self);
            let work = async move { router.move_held(&held, device).await };
            match finish(export.name().to_owned(), work).await {
                Ok(true) => moved = moved.saturating_add(1),
                Ok(false) | Err(_) => {
                    except.insert(export.id());
                }
            }
        }
        moved
    }

    /// Moves the device of an export. False when the device stays where the device is.
    async fn move_held(&self, held: &HeldExport, device: DeviceId) -> Result<bool, RouterError> {
        let record = held.record();
        if held.is_gone()
            || held.entry().state() != State::Serving
            || record.desired != Desired::Attached
            || record.device_id() != device
        {
            return Ok(false);
        }
        let source = match self.devices.relocate(record.export_id(), device).await {
            Ok(is_moved) => return Ok(is_moved),
            Err(source) => source,
        };
        tracing::error!(
            export = %held.entry().name(),
            device_id = device.0,
            "a device that was to go to another worker is not served, and its requests wait: the daemon tries again until the device is \
             served; a new start of the daemon recovers the device"
        );
        let stranded = Stranded::after(PAUSE, Arc::clone(held.entry()), device);
        self.stranded.lock_whole().push(stranded);
        held.failed(held.device_error("move", source))
    }

    /// Tries once to give a device on the way to workers.
    async fn try_again(self: Arc<Self>, stranded: Stranded) -> Result<(), RouterError> {
        // A stopping daemon leaves the device to the next one.
        let gate = self.enter().await?;
        if let Some(held) = HeldExport::try_now(Arc::clone(&stranded.entry), gate) {
            if !stranded.is_wanted(&held) {
                return Ok(());
            }
            held.step(Event::BeginAttach)?;
            let Err(error) = self.unless_stopping(self.attach_steps(&held)).await else {
                tracing::info!(
                    export = %held.entry().name(),
                    device_id = stranded.device.0,
                    "a device that was on the way to another worker is served"
                );
                return Ok(());
            };
            let reason = chain(&error);
            tracing::debug!(export = %held.entry().name(), error = %reason, "a device on the way is not served yet");
            held.step(Event::Fail { reason })?;
        }
        let Stranded { entry, device, pause, .. } = stranded;
        let pause = pause.saturating_mul(2).min(PAUSE_MAX);
        self.stranded.lock_whole().push(Stranded::after(pause, entry, device));
        Ok(())
    }
}
