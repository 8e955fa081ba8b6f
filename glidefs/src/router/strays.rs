//! The devices of an export, also *stray* ones: devices under another number than the catalog's, because the catalog refused the
//! number, or the kernel did not remove a second device.
//!
//! Owns the search for the devices of an export, and the adoption and removal of stray ones. Does not own devices of no export
//! (`recovery`). Invariants: an export that may have a stray device gets no new one, and counts neither as detached nor as released; a
//! stray device is forgotten only when the catalog takes the number, or when the kernel has none of this number for the export. Not
//! known as stray is a device that the catalog does not know, and about which the kernel said nothing when the start listed devices.

use super::Router;
use super::catalog::error::CatalogError;
use super::devices::{DeviceId, FoundDevice};
use super::entry::HeldExport;
use super::error::RouterError;
use crate::locks::RwLockExt;

impl Router {
    /// The device of an export. The catalog gets the number of a stray device: clients may use the device already.
    pub(super) async fn find_device(&self, held: &HeldExport) -> Result<Option<FoundDevice>, RouterError> {
        let (found, unanswered) = self.search(held).await;
        let Some(found) = found? else { return Ok(None) };
        self.record_number(held, found.id).await?;
        // Also the number that was the catalog's before may have a device.
        for number in unanswered {
            held.note_stray(number);
        }
        Ok(Some(found))
    }

    /// Whether the kernel has a device made for this export.
    pub(super) async fn device_exists(&self, held: &HeldExport) -> Result<bool, RouterError> {
        Ok(self.search(held).await.0?.is_some())
    }

    /// The device of an export that is found first, and the numbers about which the kernel said nothing. Such a number is an error only where
    /// no other number has a device: a device that hangs keeps no other one from being served.
    async fn search(&self, held: &HeldExport) -> (Result<Option<FoundDevice>, RouterError>, Vec<DeviceId>) {
        let (mut found, mut unanswered) = (Ok(None), Vec::new());
        for number in self.numbers_of(held) {
            match self.find(held, number).await {
                Ok(Some(device)) => return (Ok(Some(device)), unanswered),
                Ok(None) => {}
                Err(error) => {
                    found = Err(error);
                    unanswered.push(number);
                }
            }
        }
        (found, unanswered)
    }

    /// The numbers under which an export may have devices, the one of the catalog first.
    pub(super) fn numbers_of(&self, held: &HeldExport) -> Vec<DeviceId> {
        let record = held.record();
        // Devices of an earlier boot are gone.
        let is_of_this_boot = record.device.boot_id.as_deref() == Some(self.options.boot_id.as_str());
        let recorded = is_of_this_boot.then(|| record.device_id());
        recorded.into_iter().chain(held.strays()).collect()
    }

    /// Looks for the export's device under one number.
    pub(super) async fn find(
        &self,
        held: &HeldExport,
        number: DeviceId,
    ) -> Result<Option<FoundDevice>, RouterError> {
        let found = self.devices.find(self.open(&held.entry), number).await;
        let found = found.map_err(|source| held.device_error("find", source))?;
        if found.is_none() {
            held.forget_stray(number);
        }
        Ok(found)
    }

    /// Notes in the catalog that the export's device has this number.
    pub(super) async fn record_number(
        &self,
        held: &HeldExport,
        number: DeviceId,
    ) -> Result<(), CatalogError> {
        let (before, boot_id) = (held.record().device.number, self.options.boot_id.clone());
        if before == number.0 {
            return Ok(());
        }
        held.write(&self.catalog, |record| {
            record.device.number = number.0;
            record.device.boot_id = Some(boot_id);
        })
        .await?;
        let mut exports = self.exports.write_whole();
        exports.numbers.take(number.0);
        exports.numbers.release(before);
        drop(exports);
        held.forget_stray(number);
        Ok(())
    }

    /// Removes every device of an export; with `is_certain` the one of the catalog without a search. A device made for another export or
    /// program is left alone: somebody may have removed the device of a served export, and another device may have its number.
    pub(super) async fn remove_device(&self, held: &HeldExport, is_certain: bool) -> Result<(), RouterError> {
        let recorded = held.record().device_id();
        if is_certain {
            self.remove_number(held, recorded).await?;
        }
        for number in self.numbers_of(held) {
            let is_removed = is_certain && number == recorded;
            if !is_removed && self.find(held, number).await?.is_some() {
                self.remove_number(held, number).await?;
            }
        }
        Ok(())
    }

    /// Removes the device of this number, if the device is the export's.
    pub(super) async fn remove_number(&self, held: &HeldExport, number: DeviceId) -> Result<(), RouterError> {
        let removed = self.devices.detach(held.record().export_id(), number).await;
        removed.map_err(|source| held.device_error("remove", source))?;
        held.forget_stray(number);
        Ok(())
    }
}
