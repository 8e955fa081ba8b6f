//! What users do with the past of exports: flush, snapshots, and what is in the store.
//!
//! Owns which export is asked and what is flushed before. Does not own how the store keeps a state.

use std::sync::Arc;

use super::Router;
use super::error::RouterError;
use super::name::ExportName;
use crate::cache::Volume;
use crate::store::StoreName;
use crate::store::gc::{GcOptions, GcReport};
use crate::store::volume::{self, SnapshotInfo, VolumeError};
use crate::units::Seq;

impl Router {
    /// Returns when everything that was acknowledged before is in the store: the sequence number of the last of it.
    pub async fn flush(&self, name: &str) -> Result<Seq, RouterError> {
        let (volume, _) = self.counterpart(name)?;
        volume.flushed().await.map_err(|source| RouterError::Flush { name: name.into(), source })
    }

    /// Keeps the state of an export, with all that was acknowledged before, as `snapshot`.
    pub async fn snapshot(&self, name: &str, snapshot: &ExportName) -> Result<SnapshotInfo, RouterError> {
        let (_, remote) = self.counterpart(name)?;
        self.flush(name).await?;
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

    /// The data of an export, here and in the store.
    fn counterpart(&self, name: &str) -> Result<(Arc<Volume>, volume::Volume), RouterError> {
        let entry = self.entry(name).ok_or_else(|| RouterError::NotFound { name: name.into() })?;
        let volume = Arc::clone(entry.export().volume());
        let remote = volume.remote().ok_or(RouterError::NoStore)?.clone();
        Ok((volume, remote))
    }
}

/// The name of an export or snapshot as the store knows it; both follow one rule.
fn store_name(name: &ExportName) -> Result<StoreName, VolumeError> {
    Ok(name.as_str().parse()?)
}
