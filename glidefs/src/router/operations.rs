//! What users do with exports that there are: attach, detach, resize, delete.
//!
//! Owns the order of steps: the wish goes to the catalog, then the device follows, then the catalog learns what became of it.
//! Does not own start-up (`recovery`), which finishes what a crash cut short between these steps.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::devices::{DeviceError, DeviceId};
use super::entry::Held;
use super::error::RouterError;
use super::record::Desired;
use super::removal::Users;
use super::size::ExportSize;
use super::state::{Event, State};
use super::{ExportInfo, Router};
use crate::observe::chain;
use crate::store::volume::check_size;
use crate::units::SECTOR_BYTES;

/// What [`Router::delete`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The export was there and is gone.
    Now,
    /// There was none.
    Absent,
}

impl Router {
    /// Makes a device for an export that has none. Succeeds when it has one.
    pub async fn attach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.attach_confirmed(name, true).await
    }

    /// As [`Self::attach`], also where the store cannot be asked whose the export is: what is in the cache may be old.
    pub async fn attach_unconfirmed(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.attach_confirmed(name, false).await
    }

    async fn attach_confirmed(
        self: &Arc<Self>,
        name: &str,
        needs_answer: bool,
    ) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.finish_rollback(&held).await?;
            if held.entry().state() != State::Serving {
                router.may_serve(&held, needs_answer).await?;
            }
            router.attach_held(&held).await?;
            Ok(held.entry().info())
        })
        .await
    }

    /// Removes the device of an export, keeps its data, and releases it in the store, if the store can be asked. Succeeds when it
    /// has none; refused while the device is in use.
    pub async fn detach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.detach_from(name, Users::Spare).await
    }

    /// Removes the device of an export and keeps its data, whoever uses the device: what they do next fails.
    pub async fn force_detach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.detach_from(name, Users::Cut).await
    }

    async fn detach_from(self: &Arc<Self>, name: &str, users: Users) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.detach_held(&held, users).await?;
            router.release(&held).await;
            Ok(held.entry().info())
        })
        .await
    }

    /// Makes an export larger while it is used.
    pub async fn resize(self: &Arc<Self>, name: &str, size: ExportSize) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.resize_held(&held, size).await?;
            Ok(held.entry().info())
        })
        .await
    }

    /// Removes an export: its device, its data and its catalog entry. Succeeds when there is none; refused while the device is in
    /// use. What failed half-way goes on where it failed when this is called again.
    pub async fn delete(self: &Arc<Self>, name: &str) -> Result<Deleted, RouterError> {
        self.delete_from(name, Users::Spare).await
    }

    /// Removes an export, whoever uses its device.
    pub async fn force_delete(self: &Arc<Self>, name: &str) -> Result<Deleted, RouterError> {
        self.delete_from(name, Users::Cut).await
    }

    async fn delete_from(self: &Arc<Self>, name: &str, users: Users) -> Result<Deleted, RouterError> {
        let deleted = self
            .on_held(name, move |router, held| async move { router.delete_held(&held, users).await })
            .await;
        match deleted {
            Ok(()) => Ok(Deleted::Now),
            Err(RouterError::NotFound { .. }) => Ok(Deleted::Absent),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` with the right to change the export called `name`, to its end whatever becomes of the caller.
    pub(super) async fn on_held<T, W, F>(self: &Arc<Self>, name: &str, work: W) -> Result<T, RouterError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Self>, Held) -> F + Send + 'static,
        F: Future<Output = Result<T, RouterError>> + Send,
    {
        let (router, name) = (Arc::clone(self), name.to_owned());
        finish(name.clone(), async move {
            let held = router.hold(&name).await?;
            work(router, held).await
        })
        .await
    }

    /// Gives an export its device, new or recovered, whatever state it is in.
    pub(super) async fn attach_held(&self, held: &Held) -> Result<(), RouterError> {
        if held.record().desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: held.entry().name().to_string() });
        }
        if held.entry().state() == State::Serving {
            return Ok(());
        }
        held.step(Event::BeginAttach)?;
        match self.attach_steps(held).await {
            Ok(()) => {
                tracing::info!(export = %held.entry().name(), device_id = held.record().device.number, "export attached");
                Ok(())
            }
            Err(error) => failed(held, error),
        }
    }

    async fn attach_steps(&self, held: &Held) -> Result<(), RouterError> {
        if self.device_exists(held).await? {
            held.write(&self.catalog, |record| record.desired = Desired::Attached).await?;
            return self.recover_device(held).await;
        }
        self.attach_anew(held).await
    }

    /// Writes the wish for a device and makes one; there is none yet.
    pub(super) async fn attach_anew(&self, held: &Held) -> Result<(), RouterError> {
        let boot_id = Some(self.options.boot_id.clone());
        held.write(&self.catalog, |record| {
            record.desired = Desired::Attached;
            record.device.boot_id = boot_id;
            record.device.size_bytes = record.size_bytes;
        })
        .await?;
        self.make_device(held).await
    }

    /// Makes the device that the catalog entry asks for.
    pub(super) async fn make_device(&self, held: &Held) -> Result<(), RouterError> {
        let record = held.record();
        let export = Arc::clone(held.entry().export());
        let made = self.devices.attach(export, record.device_options(), Some(record.device_id())).await;
        let device = made.map_err(|source| device_error("attach", held, source))?;
        if device != record.device_id() {
            self.adopt_number(held, device).await?;
        }
        held.step(Event::DeviceReady)?;
        Ok(())
    }

    /// Remembers the number that the kernel gave instead of the one asked for; removes the device where that fails.
    async fn adopt_number(&self, held: &Held, device: DeviceId) -> Result<(), RouterError> {
        let before = held.record().device.number;
        if let Err(error) = held.write(&self.catalog, |record| record.device.number = device.0).await {
            let removed = self.devices.detach(held.record().export_id(), device).await;
            removed.map_err(|source| device_error("remove", held, source))?;
            return Err(error.into());
        }
        self.renumber(before, device.0);
        Ok(())
    }

    /// Takes over the device that an earlier daemon, or an attempt that failed, left behind.
    pub(super) async fn recover_device(&self, held: &Held) -> Result<(), RouterError> {
        let device = held.record().device_id();
        let recovered = self.devices.recover(Arc::clone(held.entry().export()), device).await;
        recovered.map_err(|source| device_error("recover", held, source))?;
        held.step(Event::DeviceReady)?;
        if let Err(error) = self.tell_size(held).await {
            tracing::warn!(
                export = %held.entry().name(), device_id = device.0, error = %chain(&error),
                "device keeps its old size until it is attached again"
            );
        }
        Ok(())
    }

    /// Tells the kernel the export's size, where it does not know.
    async fn tell_size(&self, held: &Held) -> Result<(), RouterError> {
        let record = held.record();
        if record.device.size_bytes == record.size_bytes {
            return Ok(());
        }
        let told = self.devices.resize(held.entry().export(), record.device_id()).await;
        told.map_err(|source| RouterError::SizeNotTold {
            name: record.name,
            size_bytes: record.size_bytes,
            source,
        })?;
        held.write(&self.catalog, |record| record.device.size_bytes = record.size_bytes).await?;
        Ok(())
    }

    async fn resize_held(&self, held: &Held, size: ExportSize) -> Result<(), RouterError> {
        let record = held.record();
        if record.desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: record.name });
        }
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
        let is_stored = held.entry().export().volume().remote().is_some();
        if is_stored && size.bytes() > record.size_bytes {
            check_size(size.bytes() / SECTOR_BYTES)
                .map_err(|source| RouterError::Store { name: record.name.clone(), source })?;
        }
        // The catalog and the export grow before the device does: a device must never be larger than its export.
        held.write(&self.catalog, |record| record.size_bytes = size.bytes()).await?;
        held.entry().export().set_size_bytes(size.bytes());
        let volume = held.entry().export().volume();
        volume.grow(record.size_bytes / SECTOR_BYTES, size.bytes() / SECTOR_BYTES);
        if held.entry().state() == State::Serving {
            self.tell_size(held).await?;
        }
        tracing::info!(export = %held.entry().name(), size_bytes = size.bytes(), "export resized");
        Ok(())
    }

    /// Whether the kernel has a device that was made for this export.
    pub(super) async fn device_exists(&self, held: &Held) -> Result<bool, RouterError> {
        let record = held.record();
        if record.device.boot_id.as_deref() != Some(self.options.boot_id.as_str()) {
            return Ok(false);
        }
        let found = self.devices.find(held.entry().export(), record.device_id()).await;
        found.map(|device| device.is_some()).map_err(|source| device_error("find", held, source))
    }
}

/// Makes sure that no other host has taken an export over while it was not served here: `false` when the store did not say.
pub(super) async fn confirm(held: &Held, patience: Duration) -> Result<bool, RouterError> {
    let confirmed = held.entry().export().volume().confirm(patience).await;
    confirmed.map_err(|source| RouterError::Lost { name: held.entry().name().to_string(), source })
}

/// Notes in the export's state why an operation failed, and gives the error back.
pub(super) fn failed<T>(held: &Held, error: RouterError) -> Result<T, RouterError> {
    let reason = chain(&error);
    tracing::error!(export = %held.entry().name(), error = %reason, "operation on an export failed");
    held.step(Event::Fail { reason })?;
    Err(error)
}

/// Runs `work` to its end whatever becomes of the caller.
pub(super) async fn finish<T: Send + 'static>(
    name: String,
    work: impl Future<Output = Result<T, RouterError>> + Send + 'static,
) -> Result<T, RouterError> {
    tokio::spawn(work).await.map_err(|_| RouterError::Interrupted { name })?
}

pub(super) fn device_error(action: &'static str, held: &Held, source: DeviceError) -> RouterError {
    RouterError::Device { action, name: held.entry().name().to_string(), source }
}
