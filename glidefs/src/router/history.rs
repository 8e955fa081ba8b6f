//! What users do with the past of exports: flush, snapshots, and what is in the store.
//!
//! Owns which export is asked and what is flushed before. Does not own how the store keeps a state.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Router;
use super::entry::Held;
use super::error::RouterError;
use super::name::ExportName;
use super::record::Desired;
use super::size::ExportSize;
use super::volumes::Source;
use crate::cache::Volume;
use crate::observe::chain;
use crate::store::StoreName;
use crate::store::gc::{GcOptions, GcReport};
use crate::store::volume::{self, SnapshotInfo, VolumeError};
use crate::units::Seq;

/// How long one export that is brought to the store keeps the next one waiting.
const BRING_PATIENCE: Duration = Duration::from_mins(5);

impl Router {
    /// Returns when everything that was acknowledged before is in the store: the sequence number of the last of it.
    pub async fn flush(&self, name: &str) -> Result<Seq, RouterError> {
        let (volume, _) = self.counterpart(name)?;
        volume.written_back().await.map_err(|source| RouterError::Flush { name: name.into(), source })
    }

    /// Has an export flushed as soon as possible: up to where it is in the store already.
    pub fn begin_flush(&self, name: &str) -> Result<Seq, RouterError> {
        let (volume, _) = self.counterpart(name)?;
        if let Some(source) = volume.lost() {
            return Err(RouterError::Flush { name: name.into(), source });
        }
        volume.ask_writeback();
        Ok(volume.figures().stored)
    }

    /// Keeps the state of an export, with all that was acknowledged before, as `snapshot`; also when the caller goes away, until
    /// somebody asks for the same snapshot again.
    pub async fn snapshot(
        self: &Arc<Self>,
        name: &str,
        snapshot: &ExportName,
    ) -> Result<SnapshotInfo, RouterError> {
        let (router, name, snapshot) = (Arc::clone(self), name.to_owned(), snapshot.clone());
        let interrupted = RouterError::Interrupted { name: name.clone() };
        // Names have no slash.
        let key = format!("snapshot {name}/{snapshot}");
        let taken = self.left.run(key, async move { router.snapshot_now(&name, &snapshot).await }).await;
        taken.unwrap_or(Err(interrupted))
    }

    async fn snapshot_now(&self, name: &str, snapshot: &ExportName) -> Result<SnapshotInfo, RouterError> {
        let (_, remote) = self.counterpart(name)?;
        self.unless_stopping(self.flush(name)).await?;
        let taken = async { remote.snapshot(&store_name(snapshot)?).await };
        taken.await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// The snapshots of an export.
    pub async fn snapshots(&self, name: &str) -> Result<Vec<SnapshotInfo>, RouterError> {
        let (_, remote) = self.counterpart(name)?;
        remote.snapshots().await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// Gives a snapshot of an export up; returns whether there was one.
    pub async fn delete_snapshot(&self, name: &str, snapshot: &ExportName) -> Result<bool, RouterError> {
        let (_, remote) = self.counterpart(name)?;
        if self.entry(name).is_some_and(|entry| entry.rolls_back_to().as_deref() == Some(snapshot.as_str())) {
            return Err(RouterError::SnapshotNeeded { name: name.into(), snapshot: snapshot.to_string() });
        }
        let deleted = async {
            let snapshot = store_name(snapshot)?;
            let existed = remote.snapshots().await?.iter().any(|info| info.name == snapshot);
            if existed {
                remote.delete_snapshot(&snapshot).await?;
            }
            Ok(existed)
        };
        deleted.await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// Names of the volumes in the store, whoever has them open.
    pub async fn stored(&self) -> Result<Vec<String>, RouterError> {
        let names = self.volumes.names().await;
        let names = names.map_err(|source| RouterError::Store { name: "list".into(), source })?;
        names.ok_or(RouterError::NoStore)
    }

    /// Removes from the store what nothing uses any more.
    pub async fn collect(&self, options: GcOptions) -> Result<GcReport, RouterError> {
        let report = self.volumes.collect(options).await.map_err(RouterError::Collect)?;
        report.ok_or(RouterError::NoStore)
    }

    /// Brings exports to the store that were made before there was one: how many are left that could not be brought.
    pub async fn bring_to_store(self: &Arc<Self>) -> usize {
        let mut left = 0;
        for entry in self.entries() {
            if entry.export().volume().remote().is_some() {
                continue;
            }
            let name = entry.name().to_string();
            let brought = self.on_held(&name, |router, held| async move { router.bring(&held).await }).await;
            match brought {
                // One after the other: all that an export has is one cut, and others have to flush as well. One that cannot be
                // flushed keeps no other from it.
                Ok(()) => drop(timeout(BRING_PATIENCE, self.flush(&name)).await),
                Err(RouterError::NotFound { .. } | RouterError::Stopping) => {}
                Err(error) => {
                    left += 1;
                    tracing::warn!(
                        export = name,
                        error = %chain(&error),
                        "an export that was made before there was a store could not be brought to it"
                    );
                }
            }
        }
        left
    }

    async fn bring(&self, held: &Held) -> Result<(), RouterError> {
        let (record, name) = (held.record(), held.entry().name().clone());
        let volume = held.entry().export().volume();
        if volume.remote().is_some() || record.desired == Desired::Deleted {
            return Ok(());
        }
        let size = ExportSize::new(record.size_bytes)?;
        let begin = async {
            let begun = self.volumes.begin(name.clone(), Source::Blank(size)).await;
            begun.map_err(|source| RouterError::Store { name: name.to_string(), source })
        };
        let Some(resume) = self.unless_stopping(begin).await? else { return Ok(()) };
        self.catalog.tie(record.export_id(), resume.clone()).await?;
        self.volumes.tie(volume, record.size_bytes, &resume);
        tracing::info!(export = %name, "an export that was made before there was a store is brought to it");
        Ok(())
    }

    /// The data of an export, here and in the store.
    pub(super) fn counterpart(&self, name: &str) -> Result<(Arc<Volume>, volume::VolumeWriter), RouterError> {
        let entry = self.entry(name).ok_or_else(|| RouterError::NotFound { name: name.into() })?;
        let volume = Arc::clone(entry.export().volume());
        let remote = volume.remote().ok_or_else(|| RouterError::NotInStore { name: name.into() })?.clone();
        Ok((volume, remote))
    }
}

/// The name of an export or snapshot as the store knows it; both follow one rule.
pub(super) fn store_name(name: &ExportName) -> Result<StoreName, VolumeError> {
    Ok(name.as_str().parse()?)
}
