//! Giving exports up in the store, so that another host may open them, and taking them back.
//!
//! Owns when the store is told. Does not own what other hosts make of it. Invariant: an export that may be released gets no
//! device before the store has said that this host has it again, unless the user wants that.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use super::Router;
use super::entry::{Entry, Held};
use super::error::RouterError;
use super::operations::finish;
use super::record::Desired;
use super::state::State;
use crate::cache::IoError;
use crate::observe::chain;
use crate::store::volume::{DeletedVolume, VolumeError};

/// How long the store is waited for to take what it does not have of an export that is given up.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Exports that are flushed at the same time when all are.
const FLUSHES_MAX: usize = 64;

/// What [`Router::drain`] did.
#[derive(Debug, Default)]
pub struct Drain {
    /// Exports all of which is in the store.
    pub flushed: usize,
    /// Those of them that stay this host's, because they have a device.
    pub kept: usize,
    /// Why others are not in the store, or could not be given up.
    pub failed: Vec<RouterError>,
}

/// What a drain did with one export.
enum Drained {
    Released,
    Kept,
    /// It was deleted meanwhile.
    Gone,
}

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
        volume.written_back().await.map_err(|source| RouterError::Flush { name: name(), source })?;
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
                Ok(Err(source)) if source.is_fatal() => {
                    // The writer knows, and the cache learns from the writer, without a request.
                    let volume = held.entry().export().volume();
                    let _: Result<bool, VolumeError> = volume.confirm(self.options.confirm_patience).await;
                    Err(RouterError::Lost { name: name(), source })
                }
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

    /// Has everything flushed that was acknowledged before, and gives up in the store what has no device; also when the caller goes
    /// away, until somebody drains again.
    pub async fn drain(self: &Arc<Self>) -> Drain {
        let router = Arc::clone(self);
        self.left.run("drain".into(), async move { router.drain_now().await }).await.unwrap_or_default()
    }

    async fn drain_now(self: &Arc<Self>) -> Drain {
        let drained = self.entries().into_iter().map(|entry| self.drain_one(entry));
        let mut drained = stream::iter(drained).buffer_unordered(FLUSHES_MAX);
        let mut drain = Drain::default();
        while let Some(drained) = drained.next().await {
            match drained {
                Ok(Drained::Released) => drain.flushed += 1,
                Ok(Drained::Kept) => {
                    drain.flushed += 1;
                    drain.kept += 1;
                }
                Ok(Drained::Gone) => {}
                Err(error) => drain.failed.push(error),
            }
        }
        drain
    }

    /// Flushes an export and gives it up. One whose data was replaced meanwhile, by a rollback for example, is another entry of the
    /// same name, which is flushed in its turn.
    async fn drain_one(self: &Arc<Self>, mut entry: Arc<Entry>) -> Result<Drained, RouterError> {
        loop {
            let drained = match self.flush(entry.name().as_str()).await {
                Err(
                    RouterError::NotFound { .. } | RouterError::Flush { source: IoError::Removed(_), .. },
                ) => Drained::Gone,
                Ok(_) => self.release_drained(Arc::clone(&entry)).await?,
                Err(error) => return Err(error),
            };
            match (drained, self.entry(entry.name().as_str())) {
                (Drained::Gone, Some(next)) if !Arc::ptr_eq(&next, &entry) => entry = next,
                (drained, _) => return Ok(drained),
            }
        }
    }

    /// Gives a flushed export up in the store, to the end whatever becomes of the caller, also while the daemon stops.
    async fn release_drained(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Drained, RouterError> {
        let router = Arc::clone(self);
        finish(entry.name().to_string(), async move {
            let held = Held::wait(entry, Arc::clone(&router.stopping).read_owned().await).await;
            router.release_held(&held).await
        })
        .await
    }

    /// An export with a device stays this host's: a write between the flush and the release would be in no store, and another
    /// host would go on without that write.
    async fn release_held(&self, held: &Held) -> Result<Drained, RouterError> {
        if held.is_gone() {
            return Ok(Drained::Gone);
        }
        let record = held.record();
        let has_device = held.entry().state() == State::Serving || self.device_exists(held).await?;
        if has_device || record.desired == Desired::Deleted || record.rolls_back_to.is_some() {
            return Ok(Drained::Kept);
        }
        let not_released = |source| RouterError::NotReleased { name: record.name.clone(), source };
        let released = match timeout(RELEASE_PATIENCE, self.give_up(held)).await {
            Ok(Ok(())) => Ok(Drained::Released),
            Ok(Err(RouterError::Store { source, .. })) => Err(not_released(Some(source))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(not_released(None)),
        };
        held.set_unreleased(released.as_ref().err().map(|error| chain(error)));
        released
    }

    /// The volumes that were deleted from the store and can be had back.
    pub async fn deleted(&self) -> Result<Vec<DeletedVolume>, RouterError> {
        let deleted = self.volumes.deleted().await;
        let deleted = deleted.map_err(|source| RouterError::Store { name: "list".into(), source })?;
        deleted.ok_or(RouterError::NoStore)
    }
}
