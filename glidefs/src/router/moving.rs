//! Moves of devices between workers when devices have come and gone, and when loads differ.
//!
//! Owns when a device may be moved: the export serves, and no other operation on the export runs. Does not own the choice of the
//! device, nor the steps ([`Devices`](super::Devices)). Invariants: at most one device is moved at a time; a move that has begun
//! goes on to its end also when the caller goes away, and the daemon stops after the move; a device that could not be given to
//! other workers waits with its requests like a device whose daemon died, and is tried again (`stranded`).

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;

use tokio::time::sleep_until;

use super::Router;
use super::background::finish;
use super::catalog::record::Desired;
use super::devices::DeviceId;
use super::entry::HeldExport;
use super::error::RouterError;
use super::state::State;

impl Router {
    /// Has [`Self::has_to_tend`] return: devices came or went, loads were sampled, or an export is to be tried again.
    pub fn request_tending(&self) {
        self.to_tend.notify_one();
    }

    /// Returns when devices may have to be moved, or an export is to be tried again.
    pub async fn has_to_tend(&self) {
        loop {
            let due = async {
                match self.next_try() {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.to_tend.notified() => return,
                () = due => return,
                () = self.tries_changed.notified() => {}
            }
        }
    }

    /// Begins to try exports again that have no device in service, each on its own, then moves devices to other workers until nothing is
    /// to be gained, at most `moves_max`, and returns how many were moved. An export with another operation under way is left out.
    pub async fn tend_devices(self: &Arc<Self>, moves_max: usize) -> usize {
        self.begin_tries();
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
        let failed = held.failed(held.device_error("move", source));
        self.strand(held, true);
        failed
    }
}
