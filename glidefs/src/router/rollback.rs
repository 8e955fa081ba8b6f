//! An export goes back to one of its snapshots.
//!
//! Owns the order of steps: everything is written back, then the export goes on under another id with nothing in the cache, and
//! only then does the volume in the store go back. Invariants: a crash between these steps leaves the export unchanged, or
//! without a device until the rollback is finished; if the snapshot was deleted meanwhile, the export goes on with the newest
//! content in the store.

use std::sync::Arc;

use super::ExportName;
use super::Router;
use super::catalog::change::Change;
use super::entry::{ExportInfo, HeldExport};
use super::error::RouterError;
use super::size::ExportSize;
use super::state::State;
use crate::store::volume::{self, Crowd, Resume, VolumeError};
use crate::units::{SECTOR_BYTES, Seq};

impl Router {
    /// Gives a detached export the content and the size of one of its snapshots. Data written after the snapshot is given up,
    /// except in other snapshots.
    pub async fn rollback(
        self: &Arc<Self>,
        name: &str,
        snapshot: ExportName,
    ) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            let held = router.begin_rollback(held, &snapshot).await?;
            router.finish_rollback(&held).await?;
            tracing::info!(export = %held.entry.name, %snapshot, "export rolled back");
            Ok(held.entry.info())
        })
        .await
    }

    async fn begin_rollback(
        &self,
        held: HeldExport,
        snapshot: &ExportName,
    ) -> Result<HeldExport, RouterError> {
        let name = held.name();
        if held.entry.state() != State::Detached {
            return Err(RouterError::NotDetached { name });
        }
        let (_, writer) = self.volume_and_writer(&name)?;
        let snapshots = writer.snapshots().await;
        let snapshots = snapshots.map_err(|source| RouterError::Store { name: name.clone(), source })?;
        if !snapshots.iter().any(|info| info.name == *snapshot) {
            return Err(RouterError::Store {
                name,
                source: VolumeError::NoSuchSnapshot { name: snapshot.clone() },
            });
        }
        if held.record().rolls_back_to.is_some() {
            // An earlier rollback was not finished, and the cache has no data of the export. The snapshot may be another one now.
            held.write(&self.catalog, |record| record.rolls_back_to = Some(snapshot.to_string())).await?;
            return Ok(held);
        }
        self.write_back_soon(&name).await?;
        let resume = Resume { manifest: None, ..writer.state() };
        self.replace(held, resume, |record| record.rolls_back_to = Some(snapshot.to_string())).await
    }

    /// Has the volume in the store go back, if a rollback of the export has begun.
    ///
    /// # Errors
    /// [`RouterError::SnapshotGone`] when the snapshot was deleted: the export goes on with the newest content.
    pub(super) async fn finish_rollback(&self, held: &HeldExport) -> Result<(), RouterError> {
        let Some(snapshot) = held.record().rolls_back_to else { return Ok(()) };
        let name = held.name();
        let (volume, writer) = self.volume_and_writer(&name)?;
        let snapshot = ExportName::new(&snapshot)?;
        // Boxed, so that the future of every operation that may have to finish a rollback stays small.
        let roll_back = Box::pin(go_back(&writer, &snapshot));
        let (resume, crowd, is_snapshot_gone) = self.ask(&name, roll_back).await?;
        let size_sectors = resume.size_sectors;
        let size = ExportSize::new(size_sectors.saturating_mul(SECTOR_BYTES))?;
        self.catalog.change(Change::WrittenBack(held.record().export_id(), resume, Seq(0))).await?;
        held.write(&self.catalog, |record| {
            record.rolls_back_to = None;
            record.size_bytes = size.bytes();
        })
        .await?;
        self.open(&held.entry).set_size_bytes(size.bytes());
        volume.replaced(size_sectors, crowd);
        if is_snapshot_gone {
            tracing::warn!(export = %name, %snapshot, "an export cannot go back to a snapshot that is gone, or without all of its content");
            return Err(RouterError::SnapshotGone { name, snapshot: snapshot.to_string() });
        }
        Ok(())
    }
}

/// The state of `writer` and its packs after going back to `snapshot`; the newest state where the snapshot is gone, and whether it is.
async fn go_back(
    writer: &volume::VolumeWriter,
    snapshot: &ExportName,
) -> Result<(Resume, Crowd, bool), VolumeError> {
    let (resume, crowd, is_snapshot_gone) = match writer.rollback(snapshot).await {
        Ok(committed) => (committed.resume, committed.crowd, false),
        // Without all of the content, the snapshot is as good as deleted.
        Err(VolumeError::NoSuchSnapshot { .. } | VolumeError::Gone { .. }) => {
            // An earlier attempt may have gone back without an answer, which confirming finds out.
            writer.confirm().await?;
            let crowd = writer.view().await?.crowd();
            (writer.state(), crowd, true)
        }
        Err(error) => return Err(error),
    };
    Ok((Resume { manifest: None, ..resume }, crowd, is_snapshot_gone))
}
