//! Releasing exports in the store, so that another host may open them, and taking exports back.
//!
//! Owns when the store is told. Does not own how the store records a release (`store::volume`). Invariant: an export that may
//! be released gets no device before the store has confirmed that this host has the export again, unless the user wants
//! otherwise.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout};

use super::Router;
use super::background::finish;
use super::catalog::change::Change;
use super::catalog::record::Desired;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::state::State;
use crate::cache::{IoError, Volume};
use crate::observe::chain;
use crate::store::volume::{Resume, VolumeError};
use crate::units::Seq;

/// How long the writeback and the release of an export may take before the attempt to release is given up.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Exports that a drain writes back at the same time.
const WRITEBACKS_MAX: usize = 64;

/// The result of [`Router::drain`].
#[derive(Debug, Default)]
pub struct Drain {
    /// Exports written back as a whole.
    pub written_back: usize,
    /// Exports written back that stay this host's because they have a device.
    pub kept: usize,
    /// Why the other exports could not be written back or released.
    pub failed: Vec<RouterError>,
}

/// The outcome of a drain for one export, all of which is in the store.
enum Drained {
    Released,
    Kept,
    /// The export was deleted meanwhile.
    Gone,
}

impl Router {
    /// Releases a detached export in the store. An obstacle is noted with the export and is no failure: the export stays this
    /// host's.
    pub(super) async fn release(&self, held: &HeldExport) {
        if held.entry.is_lost() || held.record().rolls_back_to.is_some() {
            return;
        }
        let reason = self.obstacle(held).await;
        if let Some(reason) = &reason {
            tracing::warn!(export = %held.entry.name, reason, "a detached export could not be released in the store");
        }
        held.set_unreleased(reason);
    }

    /// Tries to release an export. Returns the reason when the export could not be released. Of many exports detached while the store is
    /// away, only the first ones wait for the store.
    pub(super) async fn obstacle(&self, held: &HeldExport) -> Option<String> {
        // Without a volume in the store there is nothing to release.
        if !held.entry.is_stored() {
            return None;
        }
        let mut away = self.store_away.subscribe();
        let away =
            away.wait_for(|since| since.is_some_and(|since| since.elapsed() < self.options.confirm_patience));
        let given_up = timeout(RELEASE_PATIENCE, self.unless_stopping(self.give_up(held)));
        let reason = tokio::select! {
            biased;
            _ = away => return Some("the store did not answer a moment ago: detach the export again later".into()),
            given_up = given_up => match given_up {
                Ok(Ok(())) => return None,
                Ok(Err(error)) => chain(&error),
                Err(_) => format!("the store has not taken all of it within {} s", RELEASE_PATIENCE.as_secs()),
            },
        };
        if !self.can_ask().await && !*self.stops.borrow() {
            self.store_away.send_replace(Some(Instant::now()));
        }
        Some(reason)
    }

    /// Writes an export back and releases the export.
    async fn give_up(&self, held: &HeldExport) -> Result<(), RouterError> {
        let volume = self.open(&held.entry).volume();
        let Some(remote) = volume.remote() else { return Ok(()) };
        volume.written_back().await.map_err(|source| RouterError::Writeback { name: held.name(), source })?;
        let store = |source| RouterError::Store { name: held.name(), source };
        remote.confirm().await.map_err(store)?;
        // From here on another host may open the export, also when the store's answer is lost.
        held.write(&self.catalog, |record| record.may_be_released = true).await?;
        let released = remote.release().await.map_err(store)?;
        self.note(volume, released).await
    }

    /// Notes the newest manifest of `volume` in the catalog. A manifest with a cut that is still to be noted is noted together with
    /// the cut.
    async fn note(&self, volume: &Volume, newest: Resume) -> Result<(), RouterError> {
        if volume.has_noted(newest.cut) {
            self.catalog.change(Change::WrittenBack(volume.id(), newest, Seq(0))).await?;
        }
        Ok(())
    }

    /// Takes a released export back before the export gets a device.
    pub(super) async fn take_back(&self, held: &HeldExport) -> Result<(), RouterError> {
        if !held.record().may_be_released {
            held.set_unreleased(None);
            return Ok(());
        }
        let volume = self.open(&held.entry).volume();
        let Some(remote) = volume.remote() else { return Ok(()) };
        let hold = async {
            match timeout(self.options.confirm_patience, remote.hold()).await {
                Ok(Ok(taken)) => Ok(taken),
                Ok(Err(source)) if source.is_fatal() => {
                    // The writer knows the loss. Confirming passes the loss on to the cache without another request.
                    let _: Result<bool, VolumeError> = volume.confirm(self.options.confirm_patience).await;
                    Err(RouterError::Lost { name: held.name(), source })
                }
                Ok(Err(source)) => Err(RouterError::Released { name: held.name(), source: Some(source) }),
                Err(_) => Err(RouterError::Released { name: held.name(), source: None }),
            }
        };
        let taken = self.unless_stopping(hold).await?;
        self.note(volume, taken).await?;
        held.write(&self.catalog, |record| record.may_be_released = false).await?;
        held.set_unreleased(None);
        Ok(())
    }

    /// Writes back everything acknowledged before the call, and releases the exports without a device. Goes on when the caller goes away.
    pub async fn drain(self: &Arc<Self>) -> Drain {
        let router = Arc::clone(self);
        self.background.run("drain".into(), async move { router.drain_now().await }).await.unwrap_or_default()
    }

    async fn drain_now(self: &Arc<Self>) -> Drain {
        let drained = self.entries().into_iter().map(|entry| self.drain_one(entry));
        let mut drained = stream::iter(drained).buffer_unordered(WRITEBACKS_MAX);
        let mut drain = Drain::default();
        while let Some(drained) = drained.next().await {
            match drained {
                Ok(Drained::Released) => drain.written_back += 1,
                Ok(Drained::Kept) => {
                    drain.written_back += 1;
                    drain.kept += 1;
                }
                Ok(Drained::Gone) => {}
                Err(error) => drain.failed.push(error),
            }
        }
        drain
    }

    /// Writes an export back and releases the export. If the export was replaced meanwhile, by a rollback for example, the
    /// entry that has the name now is drained too.
    async fn drain_one(self: &Arc<Self>, mut entry: Arc<ExportEntry>) -> Result<Drained, RouterError> {
        loop {
            let drained = match self.write_back(entry.name.as_str()).await {
                Err(
                    RouterError::NotFound { .. } | RouterError::Writeback { source: IoError::Removed(_), .. },
                ) => Drained::Gone,
                Ok(_) => self.release_drained(Arc::clone(&entry)).await?,
                Err(error) => return Err(error),
            };
            match (drained, self.entry(entry.name.as_str())) {
                (Drained::Gone, Some(next)) if !Arc::ptr_eq(&next, &entry) => entry = next,
                (drained, _) => return Ok(drained),
            }
        }
    }

    /// Releases a drained export, to the end also when the caller goes away, and also while the daemon stops.
    async fn release_drained(self: &Arc<Self>, entry: Arc<ExportEntry>) -> Result<Drained, RouterError> {
        let router = Arc::clone(self);
        finish(entry.name.to_string(), async move {
            let held = HeldExport::wait(entry, Arc::clone(&router.stopping).read_owned().await).await;
            router.release_held(&held).await
        })
        .await
    }

    /// Releases an export without a device. An export with a device stays this host's: a write between writeback and release
    /// would be missing from the store, and another host would go on without the write.
    async fn release_held(&self, held: &HeldExport) -> Result<Drained, RouterError> {
        if held.is_gone() {
            return Ok(Drained::Gone);
        }
        let record = held.record();
        let has_device = held.entry.state() == State::Serving || self.device_exists(held).await?;
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
}
