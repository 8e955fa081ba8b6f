//! Writeback on request, snapshots of exports, and the volumes in the store.
//!
//! Owns which volume is asked, and the writeback before a snapshot. Does not own how the store keeps a snapshot (`store::volume`).

use std::sync::Arc;
use std::time::Duration;

use super::ExportName;
use super::Router;
use super::error::RouterError;
use crate::cache::Volume;
use crate::store::format::Manifest;
use crate::store::gc::{self, GcOptions, GcReport};
use crate::store::volume::{self, DeletedVolume, SnapshotInfo, VolumeError, VolumeStore};
use crate::store::{Key, StoreError, SystemClock};
use crate::units::Seq;

/// How long an operation may wait for the writeback that it begins with, or ends with.
const WRITEBACK_PATIENCE: Duration = Duration::from_mins(2);

impl Router {
    /// Writes back everything acknowledged before the call. Returns the sequence number of the last write in the store.
    pub async fn write_back(&self, name: &str) -> Result<Seq, RouterError> {
        let (volume, _) = self.volume_and_writer(name)?;
        volume.written_back().await.map_err(|source| RouterError::Writeback { name: name.into(), source })
    }

    /// As [`Self::write_back`], for an operation that fails when this takes long.
    pub(super) async fn write_back_soon(&self, name: &str) -> Result<(), RouterError> {
        let written = tokio::time::timeout(WRITEBACK_PATIENCE, self.write_back(name));
        let late = |_| RouterError::NotWrittenBack { name: name.into() };
        self.unless_stopping(async { written.await.map_err(late)? }).await.map(drop)
    }

    /// Has an export written back as soon as possible. Returns the sequence number of the last write in the store already.
    pub fn begin_writeback(&self, name: &str) -> Result<Seq, RouterError> {
        let (volume, _) = self.volume_and_writer(name)?;
        if let Some(source) = volume.lost() {
            return Err(RouterError::Writeback { name: name.into(), source });
        }
        volume.ask_writeback();
        Ok(volume.figures().stored)
    }

    /// Keeps the content of an export, with everything acknowledged before the call, as `snapshot`. Goes on when the caller
    /// goes away.
    pub async fn snapshot(
        self: &Arc<Self>,
        name: &str,
        snapshot: &ExportName,
    ) -> Result<SnapshotInfo, RouterError> {
        let (router, name, snapshot) = (Arc::clone(self), name.to_owned(), snapshot.clone());
        let interrupted = RouterError::Interrupted { name: name.clone() };
        // Unambiguous: names have no slash.
        let key = format!("snapshot {name}/{snapshot}");
        let taken =
            self.background.run(key, async move { router.snapshot_now(&name, &snapshot).await }).await;
        taken.unwrap_or(Err(interrupted))
    }

    async fn snapshot_now(&self, name: &str, snapshot: &ExportName) -> Result<SnapshotInfo, RouterError> {
        let (_, writer) = self.volume_and_writer(name)?;
        // A repeated call is answered even if the writeback of a busy export takes long, or the store takes no writes.
        self.ask(name, writer.check_snapshot(snapshot)).await?;
        self.unless_stopping(self.write_back(name)).await?;
        writer.snapshot(snapshot).await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// The snapshots of an export.
    pub async fn snapshots(&self, name: &str) -> Result<Vec<SnapshotInfo>, RouterError> {
        let (_, writer) = self.volume_and_writer(name)?;
        writer.snapshots().await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// Deletes a snapshot of an export; returns whether the snapshot existed.
    pub async fn delete_snapshot(&self, name: &str, snapshot: &ExportName) -> Result<bool, RouterError> {
        let (_, writer) = self.volume_and_writer(name)?;
        if self.entry(name).is_some_and(|entry| entry.rolls_back_to().as_deref() == Some(snapshot.as_str())) {
            return Err(RouterError::SnapshotNeeded { name: name.into(), snapshot: snapshot.to_string() });
        }
        let deleted = async {
            let existed = writer.snapshots().await?.iter().any(|info| info.name == *snapshot);
            if existed {
                writer.delete_snapshot(snapshot).await?;
            }
            Ok(existed)
        };
        deleted.await.map_err(|source| RouterError::Store { name: name.into(), source })
    }

    /// The volumes of the store, for questions that are about no export.
    async fn volumes(
        &self,
        failed: impl FnOnce(StoreError) -> RouterError,
    ) -> Result<VolumeStore, RouterError> {
        self.storage.volumes().await.map_err(failed)?.ok_or(RouterError::NoStore)
    }

    /// Names of the volumes in the store, open on any host or none.
    pub async fn stored_names(&self) -> Result<Vec<String>, RouterError> {
        let names = self.volumes(list_error).await?.names().await.map_err(list_error)?;
        Ok(names.iter().map(ToString::to_string).collect())
    }

    /// The newest manifest of a volume in the store, whichever host has the volume.
    pub async fn stored(&self, name: &ExportName) -> Result<Manifest, RouterError> {
        let newest = self.volumes(list_error).await?.newest_of(name).await;
        newest.map_err(|source| RouterError::Store { name: name.to_string(), source })
    }

    /// The deleted volumes that can be undeleted.
    pub async fn deleted(&self) -> Result<Vec<DeletedVolume>, RouterError> {
        self.volumes(list_error).await?.deleted(None).await.map_err(list_error)
    }

    /// Removes unused objects from the store.
    pub async fn collect(&self, options: GcOptions) -> Result<GcReport, RouterError> {
        let volumes = self.volumes(|error| RouterError::Collect(error.into())).await?;
        gc::collect(volumes.store(), &SystemClock, &options).await.map_err(RouterError::Collect)
    }

    /// The observations of runs in the store, which change with each run of any host.
    pub async fn observations(&self) -> Result<Vec<Key>, RouterError> {
        let volumes = self.volumes(|error| RouterError::Collect(error.into())).await?;
        gc::observations(volumes.store()).await.map_err(|error| RouterError::Collect(error.into()))
    }

    /// The volume of an export in the cache, and the writer of the volume in the store.
    pub(super) fn volume_and_writer(
        &self,
        name: &str,
    ) -> Result<(Arc<Volume>, volume::VolumeWriter), RouterError> {
        let entry = self.entry(name).ok_or_else(|| RouterError::NotFound { name: name.into() })?;
        let volume = Arc::clone(self.open(&entry).volume());
        let writer = volume.remote().ok_or_else(|| RouterError::NotInStore { name: name.into() })?.clone();
        Ok((volume, writer))
    }
}

fn list_error(error: impl Into<VolumeError>) -> RouterError {
    RouterError::Store { name: String::new(), source: error.into() }
}
