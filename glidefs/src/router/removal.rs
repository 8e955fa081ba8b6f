//! How an export loses its device, and how an export is deleted.
//!
//! Owns the order of steps: the users of the device are looked for, the wish is written to the catalog, the device is removed;
//! of a deleted export then the data in the cache, the volume in the store and the catalog entry. Invariant: a failed step can
//! be repeated, and the error names the parts that are left.

use std::sync::Arc;
use std::time::Duration;

use super::Router;
use super::catalog::change::Change;
use super::catalog::record::Desired;
use super::devices::{DeviceError, DeviceId};
use super::entry::{ExportInfo, HeldExport};
use super::error::RouterError;
use super::state::{Event, State};

/// How long the kernel may take to say who uses a device.
const USER_PATIENCE: Duration = Duration::from_secs(5);

/// How the users of a device are treated when the device is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// A device that is mounted, or held in another way, stays.
    Spare,
    /// The device is removed, and the next requests of its users fail.
    Cut,
}

impl Users {
    /// The treatment of users with or without force.
    pub fn by_force(force: bool) -> Self {
        if force { Self::Cut } else { Self::Spare }
    }
}

impl Router {
    /// Removes the device of an export, keeps the data, and releases the export in the store, if the store can be asked.
    /// Succeeds also without a device.
    pub async fn detach(self: &Arc<Self>, name: &str, users: Users) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.detach_held(&held, users).await?;
            router.release(&held).await;
            Ok(held.entry.info())
        })
        .await
    }

    /// Removes an export: device, data and catalog entry. Succeeds also without such an export. A deletion that failed half-way goes
    /// on at the failed step when this is called again. Returns whether there was one.
    pub async fn delete(self: &Arc<Self>, name: &str, users: Users) -> Result<bool, RouterError> {
        let deleted = self
            .on_held(name, move |router, held| async move { router.delete_held(&held, users).await })
            .await;
        match deleted {
            Ok(()) => Ok(true),
            Err(RouterError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn detach_held(&self, held: &HeldExport, users: Users) -> Result<(), RouterError> {
        held.living_record()?;
        let state = held.entry.state();
        if state == State::Detached {
            return Ok(());
        }
        self.spare(held, users, "detach").await?;
        // The wish is written before the state changes: if the catalog fails, the export stays as it is.
        held.write(&self.catalog, |record| record.desired = Desired::Detached).await?;
        held.step(Event::BeginDetach)?;
        self.detach_steps(held, state == State::Serving).await.or_else(|error| held.failed(error))?;
        tracing::info!(export = %held.entry.name, "export detached");
        Ok(())
    }

    pub(super) async fn detach_steps(&self, held: &HeldExport, serving: bool) -> Result<(), RouterError> {
        held.write(&self.catalog, |record| record.desired = Desired::Detached).await?;
        self.remove_device(held, serving).await?;
        held.write(&self.catalog, |record| record.device.boot_id = None).await?;
        held.step(Event::DeviceGone)?;
        Ok(())
    }

    pub(super) async fn delete_held(&self, held: &HeldExport, users: Users) -> Result<(), RouterError> {
        let serving = held.entry.state() == State::Serving;
        self.spare(held, users, "delete").await?;
        held.write(&self.catalog, |record| record.desired = Desired::Deleted).await?;
        held.step(Event::BeginDelete)?;
        self.delete_steps(held, serving).await.or_else(|error| held.failed(error))?;
        tracing::info!(export = %held.entry.name, "export deleted");
        Ok(())
    }

    pub(super) async fn delete_steps(&self, held: &HeldExport, serving: bool) -> Result<(), RouterError> {
        held.write(&self.catalog, |record| record.desired = Desired::Deleted).await?;
        // Made before the cache forgets the export: the deletion in the store needs the writer, and nothing may come back after.
        let export = Arc::clone(self.open(&held.entry));
        let unfinished =
            |left, source| RouterError::PartlyDeleted { name: held.name(), left, source: Box::new(source) };
        let removed = self.remove_device(held, serving).await;
        removed.map_err(|error| unfinished("its device, its data and its catalog entry", error))?;
        // Nobody wants the data any more, and the data may fill the cache: the removal does not wait for the store.
        self.storage.remove(held.record().export_id());
        let deletion = self.storage.delete(Arc::clone(export.volume()));
        let deleted = self.ask(held.entry.name.as_str(), deletion).await;
        deleted.map_err(|error| unfinished("its volume in the store and its catalog entry", error))?;
        let forgotten = self.catalog.change(Change::Remove(held.record().export_id())).await;
        forgotten.map_err(|error| unfinished("its catalog entry", error.into()))?;
        self.forget(held);
        Ok(())
    }

    /// Refuses `action` on an export whose device somebody uses or may use, if users are to be spared.
    async fn spare(&self, held: &HeldExport, users: Users, action: &'static str) -> Result<(), RouterError> {
        if users == Users::Cut {
            return Ok(());
        }
        for device in self.numbers_of(held) {
            // An error of the search counts as a device: the kernel is asked for its users.
            if !matches!(self.find(held, device).await, Ok(None)) {
                self.spare_device(held, device, action).await?;
            }
        }
        Ok(())
    }

    async fn spare_device(
        &self,
        held: &HeldExport,
        device: DeviceId,
        action: &'static str,
    ) -> Result<(), RouterError> {
        let asked = tokio::time::timeout(USER_PATIENCE, self.devices.user(device)).await;
        let late = |_| DeviceError::TimedOut {
            command: "looking for its users",
            path: device.path(),
            seconds: USER_PATIENCE.as_secs(),
        };
        let usage = asked.map_err(late).flatten();
        match usage.map_err(|source| RouterError::UserUnknown { name: held.name(), action, source })? {
            None => Ok(()),
            Some(usage) => {
                Err(RouterError::InUse { name: held.name(), action, device: device.path(), usage })
            }
        }
    }
}
