//! Giving exports up in the store, so that another host may open them, and taking them back.
//!
//! Owns when the store is told. Does not own what other hosts make of it. Invariant: an export that may be released gets no
//! device before the store has said that this host has it again, unless the user wants that.

use std::time::Duration;

use tokio::time::timeout;

use super::entry::Held;
use super::error::RouterError;
use super::{Entry, Router};
use crate::observe::chain;
use crate::store::volume::DeletedVolume;

/// How long the store is waited for to take what it does not have of an export that is given up.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

impl Router {
    /// Gives a detached export up in the store. What keeps the store from being told is noted with the export, and is no
    /// failure: the export stays this host's.
    pub(super) async fn release(&self, held: &Held) {
        if held.entry().export().volume().lost().is_some() || held.record().rolls_back_to.is_some() {
            return;
        }
        let given_up = timeout(RELEASE_PATIENCE, self.unless_stopping(self.give_up(held))).await;
        let reason = match given_up {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => {
                Some(format!("the store has not taken all of it within {} s", RELEASE_PATIENCE.as_secs()))
            }
        };
        if let Some(reason) = &reason {
            tracing::warn!(export = %held.entry().name(), reason, "a detached export could not be released in the store");
        }
        held.set_unreleased(reason);
    }

    async fn give_up(&self, held: &Held) -> Result<(), RouterError> {
        let volume = held.entry().export().volume();
        let Some(remote) = volume.remote() else { return Ok(()) };
        let name = || held.entry().name().to_string();
        volume.flushed().await.map_err(|source| RouterError::Flush { name: name(), source })?;
        let store = |source| RouterError::Store { name: name(), source };
        remote.confirm().await.map_err(store)?;
        // From here on another host may have it, whatever becomes of the answer.
        held.write(&self.catalog, |record| record.may_be_released = true).await?;
        let released = remote.release().await.map_err(store)?;
        Ok(self.catalog.flushed(held.record().export_id(), released).await?)
    }

    /// Takes an export back that was released, before it gets a device.
    pub(super) async fn take_back(&self, held: &Held) -> Result<(), RouterError> {
        if !held.record().may_be_released {
            held.set_unreleased(None);
            return Ok(());
        }
        let name = || held.entry().name().to_string();
        let Some(remote) = held.entry().export().volume().remote() else { return Ok(()) };
        let hold = async {
            match timeout(self.options.confirm_patience, remote.hold()).await {
                Ok(Ok(taken)) => Ok(taken),
                Ok(Err(source)) if source.is_fatal() => Err(RouterError::Lost { name: name(), source }),
                Ok(Err(source)) => Err(RouterError::Released { name: name(), source: Some(source) }),
                Err(_) => Err(RouterError::Released { name: name(), source: None }),
            }
        };
        let taken = self.unless_stopping(hold).await?;
        self.catalog.flushed(held.record().export_id(), taken).await?;
        held.write(&self.catalog, |record| record.may_be_released = false).await?;
        held.set_unreleased(None);
        Ok(())
    }

    /// Gives a flushed export up in the store while it may still be served, because the host is given up. The next flush takes it
    /// back, unless another host has opened it.
    pub(super) async fn release_drained(&self, entry: &Entry) -> Result<(), RouterError> {
        let Some(remote) = entry.export().volume().remote() else { return Ok(()) };
        let released = remote.release().await;
        let released =
            released.map_err(|source| RouterError::NotReleased { name: entry.name().to_string(), source })?;
        Ok(self.catalog.flushed(entry.export().id(), released).await?)
    }

    /// The volumes that were deleted from the store and can be had back.
    pub async fn deleted(&self) -> Result<Vec<DeletedVolume>, RouterError> {
        let deleted = self.volumes.deleted().await;
        let deleted = deleted.map_err(|source| RouterError::Store { name: "list".into(), source })?;
        deleted.ok_or(RouterError::NoStore)
    }
}
