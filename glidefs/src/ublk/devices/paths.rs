//! The stable paths of devices: announced to udev, settled, and pointed where udev is late.
//!
//! Does not own the files (`names`). Invariant: a change of files is made on behalf of a device that the caller knows as its own.

use super::UblkDevices;
use crate::observe::chain;
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::names::{Names, NamesError};

impl UblkDevices {
    /// Changes the files about names on behalf of device `id`.
    ///
    /// # Errors
    /// When it is not known whether the change was begun.
    pub(super) async fn on_names<T: Send + 'static>(
        &self,
        id: DeviceId,
        change: impl FnOnce(&Names) -> Result<T, NamesError> + Send + 'static,
    ) -> Result<Result<T, NamesError>, DeviceError> {
        let names = self.names.clone();
        self.steps.on("naming", id, move || Ok(change(&names))).await
    }

    pub(super) fn warn_of_names(&self, id: DeviceId, reason: &str) {
        if let Some(suppressed) = self.unnamed.pass() {
            tracing::warn!(
                device_id = id.0,
                reason,
                suppressed,
                "the stable path of a device is not as it should be"
            );
        }
    }

    /// Sees to the stable path of a live device.
    pub(super) async fn give_path_now(&self, name: String, id: DeviceId) -> Result<(), String> {
        let settled = name.clone();
        let settle = move |names: &Names| {
            if names.are_kept(id, &settled) {
                // The device was taken over.
                return Ok(None);
            }
            let named = names.settle(id, &settled)?;
            if !named.was_announced {
                // udev has nothing to do any more.
                names.point(id, &settled, &named.disk)?;
            }
            Ok(Some(named).filter(|named| named.was_announced))
        };
        let Some(named) = told(self.on_names(id, settle).await)? else { return Ok(()) };
        // Whatever udev has done, the path is looked at next.
        self.udev.sees(&named.disk).await;
        told(self.on_names(id, move |names| names.point(id, &name, &named.disk)).await)
    }
}

/// The outcome of a change of names, with the error as a sentence.
fn told<T>(changed: Result<Result<T, NamesError>, DeviceError>) -> Result<T, String> {
    changed.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
}
