//! How an existing export gets its device, and how an export grows.
//!
//! Owns the order of steps: the wish is written to the catalog, then the device is made or changed, then the catalog gets the
//! outcome. Does not own the start (`recovery`), which finishes the steps that a crash interrupted.

use std::sync::Arc;

use super::Router;
use super::catalog::record::Desired;
use super::deaths::PROBATION;
use super::devices::DeviceError;
use super::entry::{ExportInfo, HeldExport};
use super::error::RouterError;
use super::size::ExportSize;
use super::state::{Event, State};
use crate::observe::chain;
use crate::store::volume::check_size;
use crate::tasks;
use crate::units::SECTOR_BYTES;

impl Router {
    /// Gives an export its device. Succeeds also when the export has a device already. Unless `needs_answer`, also when the store cannot
    /// be asked whose the export is: the data in the cache may be old.
    pub async fn attach(self: &Arc<Self>, name: &str, needs_answer: bool) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.finish_rollback(&held).await?;
            if held.entry.state() != State::Serving {
                router.may_serve(&held, needs_answer).await?;
            }
            router.attach_held(&held).await?;
            Ok(held.entry.info())
        })
        .await
    }

    /// Lets an export of which the daemon has died twice be attached, until it dies of it once more.
    pub async fn end_hold(&self, name: &str) {
        let Some(entry) = self.entry(name) else { return };
        let (id, deaths) = (entry.id, Arc::clone(&self.options.deaths));
        if deaths.holds_back(id).is_some() {
            // Fails only when the runtime ends.
            let _ = tokio::task::spawn_blocking(move || deaths.forget(id, 1)).await;
        }
    }

    /// Makes an export larger, also while the device is in use.
    pub async fn resize(self: &Arc<Self>, name: &str, size: ExportSize) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.resize_held(&held, size).await?;
            Ok(held.entry.info())
        })
        .await
    }

    /// Gives an export in any state its device, new or recovered.
    pub(super) async fn attach_held(&self, held: &HeldExport) -> Result<(), RouterError> {
        held.living_record()?;
        if held.entry.state() == State::Serving {
            // The path may have been lost.
            self.give_path(held).await;
            return Ok(());
        }
        if let Some(death) = self.options.deaths.holds_back(held.entry.id) {
            return Err(RouterError::HeldBack { name: held.name(), death });
        }
        held.step(Event::BeginAttach)?;
        self.attach_steps(held).await.or_else(|error| held.failed(error))?;
        tracing::info!(export = %held.entry.name, device_id = held.record().device.number, "export attached");
        Ok(())
    }

    pub(super) async fn attach_steps(&self, held: &HeldExport) -> Result<(), RouterError> {
        if self.find_device(held).await?.is_some() {
            held.write(&self.catalog, |record| record.desired = Desired::Attached).await?;
            return self.recover_device(held).await;
        }
        self.attach_anew(held).await
    }

    /// Writes the wish for a device and makes the device. The export has none yet.
    pub(super) async fn attach_anew(&self, held: &HeldExport) -> Result<(), RouterError> {
        let boot_id = Some(self.options.boot_id.clone());
        held.write(&self.catalog, |record| {
            record.desired = Desired::Attached;
            record.device.boot_id = boot_id;
            record.device.size_bytes = record.size_bytes;
        })
        .await?;
        self.make_device(held).await
    }

    /// Makes the device of the catalog record.
    pub(super) async fn make_device(&self, held: &HeldExport) -> Result<(), RouterError> {
        let record = held.record();
        let export = Arc::clone(self.open(&held.entry));
        export.begin_device();
        let made = self.devices.attach(export, record.device_options(), Some(record.device_id())).await;
        let device = made.map_err(|source| {
            if let DeviceError::Left { device, .. } = source {
                held.note_stray(device);
            }
            held.device_error("attach", source)
        })?;
        // The kernel may have given another number than the requested one.
        if let Err(error) = self.record_number(held, device).await {
            held.note_stray(device);
            self.remove_number(held, device).await?;
            return Err(error.into());
        }
        self.note_served(held).await
    }

    /// Notes that the device is served. When it has been for a minute, deaths of before do not count any more.
    async fn note_served(&self, held: &HeldExport) -> Result<(), RouterError> {
        self.give_path(held).await;
        held.step(Event::DeviceReady)?;
        let (id, deaths) = (held.entry.id, Arc::clone(&self.options.deaths));
        if deaths.knows(id) {
            let entry = Arc::downgrade(&held.entry);
            drop(tasks::spawn(async move {
                tokio::time::sleep(PROBATION).await;
                if entry.upgrade().is_some_and(|entry| entry.state() == State::Serving) {
                    drop(tokio::task::spawn_blocking(move || deaths.forget(id, 0)));
                }
            }));
        }
        Ok(())
    }

    /// Sees to the stable path of the export's live device. A device without one is served all the same.
    async fn give_path(&self, held: &HeldExport) {
        let given = self.devices.give_path(held.entry.name.as_str(), held.record().device_id()).await;
        held.set_path(given);
    }

    /// Takes over the device left by an earlier daemon, or by an attempt that failed.
    pub(super) async fn recover_device(&self, held: &HeldExport) -> Result<(), RouterError> {
        let device = held.record().device_id();
        let export = Arc::clone(self.open(&held.entry));
        export.begin_device();
        let recovered = self.devices.recover(export, device).await;
        recovered.map_err(|source| held.device_error("recover", source))?;
        if let Some(since) = self.options.waiting_since {
            held.set_pause(since.elapsed());
        }
        self.note_served(held).await?;
        if let Err(error) = self.tell_size(held).await {
            tracing::warn!(
                export = %held.entry.name, device_id = device.0, error = %chain(&error),
                "device keeps its old size until it is attached again"
            );
        }
        Ok(())
    }

    /// Tells the kernel the size of the export, if the kernel has another size.
    async fn tell_size(&self, held: &HeldExport) -> Result<(), RouterError> {
        let record = held.record();
        if record.device.size_bytes == record.size_bytes {
            return Ok(());
        }
        let told = self.devices.resize(self.open(&held.entry), record.device_id()).await;
        told.map_err(|source| RouterError::SizeNotTold {
            name: record.name,
            size_bytes: record.size_bytes,
            source,
        })?;
        held.write(&self.catalog, |record| record.device.size_bytes = record.size_bytes).await?;
        Ok(())
    }

    async fn resize_held(&self, held: &HeldExport, size: ExportSize) -> Result<(), RouterError> {
        let record = held.living_record()?;
        if record.rolls_back_to.is_some() {
            return Err(RouterError::HalfRolledBack { name: record.name });
        }
        if size.bytes() < record.size_bytes {
            return Err(RouterError::Shrink {
                name: record.name,
                existing_bytes: record.size_bytes,
                wanted_bytes: size.bytes(),
            });
        }
        let is_stored = held.entry.is_stored();
        if is_stored && size.bytes() > record.size_bytes {
            check_size(size.bytes() / SECTOR_BYTES)
                .map_err(|source| RouterError::Store { name: record.name.clone(), source })?;
        }
        if is_stored {
            // Made with the old size: the store has to be told the new one.
            self.open(&held.entry);
        }
        // The catalog and the export grow before the device: a device must never be larger than its export.
        held.write(&self.catalog, |record| record.size_bytes = size.bytes()).await?;
        if let Some(export) = held.entry.export() {
            export.set_size_bytes(size.bytes());
            export.volume().grow(record.size_bytes / SECTOR_BYTES, size.bytes() / SECTOR_BYTES);
        }
        if held.entry.state() == State::Serving {
            self.tell_size(held).await?;
        }
        tracing::info!(export = %held.entry.name, size_bytes = size.bytes(), "export resized");
        Ok(())
    }
}
