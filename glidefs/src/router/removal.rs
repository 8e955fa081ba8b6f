//! How an export loses its device, and how an export ends.
//!
//! Owns the order of steps: users of the device are looked for, the wish goes to the catalog, the device goes, and of a deleted
//! export the data here, the volume in the store and the catalog entry. Does not own who asks (`operations`, `recovery`).
//! Invariant: a step that failed can be repeated, and says what is left.

use std::sync::Arc;
use std::time::Duration;

use super::Router;
use super::devices::DeviceError;
use super::entry::Held;
use super::error::RouterError;
use super::operations::{device_error, failed};
use super::record::Desired;
use super::state::{Event, State};

/// How long the kernel is given to say who uses a device.
const USER_PATIENCE: Duration = Duration::from_secs(5);

/// What becomes of those who use a device that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// The device stays while it is mounted, or held in another way.
    Spare,
    /// What they do next fails.
    Cut,
}

impl Router {
    pub(super) async fn detach_held(&self, held: &Held, users: Users) -> Result<(), RouterError> {
        if held.record().desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: held.entry().name().to_string() });
        }
        let state = held.entry().state();
        if state == State::Detached {
            return Ok(());
        }
        self.spare(held, users, "detach").await?;
        // An export whose wish cannot be written down stays as it is.
        held.write(&self.catalog, |record| record.desired = Desired::Detached).await?;
        held.step(Event::BeginDetach)?;
        match self.detach_steps(held, state == State::Serving).await {
            Ok(()) => {
                tracing::info!(export = %held.entry().name(), "export detached");
                Ok(())
            }
            Err(error) => failed(held, error),
        }
    }

    pub(super) async fn detach_steps(&self, held: &Held, serving: bool) -> Result<(), RouterError> {
        held.write(&self.catalog, |record| record.desired = Desired::Detached).await?;
        self.remove_device(held, serving).await?;
        held.write(&self.catalog, |record| record.device.boot_id = None).await?;
        held.step(Event::DeviceGone)?;
        Ok(())
    }

    pub(super) async fn delete_held(&self, held: &Held, users: Users) -> Result<(), RouterError> {
        let serving = held.entry().state() == State::Serving;
        self.spare(held, users, "delete").await?;
        held.write(&self.catalog, |record| record.desired = Desired::Deleted).await?;
        held.step(Event::BeginDelete)?;
        match self.delete_steps(held, serving).await {
            Ok(()) => {
                tracing::info!(export = %held.entry().name(), "export deleted");
                Ok(())
            }
            Err(error) => failed(held, error),
        }
    }

    pub(super) async fn delete_steps(&self, held: &Held, serving: bool) -> Result<(), RouterError> {
        held.write(&self.catalog, |record| record.desired = Desired::Deleted).await?;
        let unfinished = |left, source| RouterError::Undeleted {
            name: held.entry().name().to_string(),
            left,
            source: Box::new(source),
        };
        let removed = self.remove_device(held, serving).await;
        removed.map_err(|error| unfinished("its device, its data and its catalog entry", error))?;
        // What is here of it is wanted no more, and may be what fills the cache: it does not wait for the store.
        self.volumes.remove(held.record().export_id());
        let delete = async {
            let deleted = self.volumes.delete(Arc::clone(held.entry().export().volume())).await;
            deleted.map_err(|source| RouterError::Store { name: held.entry().name().to_string(), source })
        };
        let deleted = self.unless_stopping(delete).await;
        deleted.map_err(|error| unfinished("its volume in the store and its catalog entry", error))?;
        let forgotten = self.catalog.remove(held.record().export_id()).await;
        forgotten.map_err(|error| unfinished("its catalog entry", error.into()))?;
        self.forget(held);
        Ok(())
    }

    /// Refuses to `action` an export whose device somebody uses or may use, where users are to be spared.
    async fn spare(&self, held: &Held, users: Users, action: &'static str) -> Result<(), RouterError> {
        if users == Users::Cut {
            return Ok(());
        }
        // What cannot be found cannot be removed either, which is told when the wish is written.
        if !self.device_exists(held).await.unwrap_or(true) {
            return Ok(());
        }
        let device = held.record().device_id();
        let name = || held.entry().name().to_string();
        let asked = tokio::time::timeout(USER_PATIENCE, self.devices.user(device)).await;
        let late = |_| DeviceError::TimedOut {
            command: "looking for its users",
            path: device.path(),
            seconds: USER_PATIENCE.as_secs(),
        };
        let usage = asked.map_err(late).flatten();
        match usage.map_err(|source| RouterError::UserUnknown { name: name(), action, source })? {
            None => Ok(()),
            Some(usage) => Err(RouterError::InUse { name: name(), action, device: device.path(), usage }),
        }
    }

    /// Removes the device, if the export has one. Only a device that is known to be the export's own is touched: somebody may have
    /// removed the device of an export that is served, and another device may have got the number.
    async fn remove_device(&self, held: &Held, serving: bool) -> Result<(), RouterError> {
        if serving || self.device_exists(held).await? {
            let record = held.record();
            let removed = self.devices.detach(record.export_id(), record.device_id()).await;
            removed.map_err(|source| device_error("remove", held, source))?;
        }
        Ok(())
    }
}
