//! An export goes back to one of its snapshots.
//!
//! Owns the order of steps. Everything goes to the store first, then the export goes on under another id, so that nothing of
//! it is in the cache any more, and only then does the store go back. Invariants: a crash between these steps leaves the
//! export as it was, or as one that has no device until it has gone back; an export whose snapshot is gone by then goes on as the
//! store has the export.

use std::sync::Arc;
use std::time::Duration;

use super::entry::Held;
use super::error::RouterError;
use super::history::store_name;
use super::name::ExportName;
use super::size::ExportSize;
use super::state::State;
use super::{ExportInfo, Router};
use crate::store::volume::{self, Crowd, Resume, VolumeError};
use crate::units::SECTOR_BYTES;

/// How long a rollback waits for the store to take what it does not have yet.
const FLUSH_PATIENCE: Duration = Duration::from_mins(2);

/// Where an export goes on after a rollback.
struct GoneBack {
    resume: Resume,
    crowd: Crowd,
    is_snapshot_gone: bool,
}

impl Router {
    /// Gives an export, which must be detached, the content and the size of one of its snapshots. What was written since is
    /// given up, unless another snapshot has it.
    pub async fn rollback(
        self: &Arc<Self>,
        name: &str,
        snapshot: ExportName,
    ) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            let held = router.begin_rollback(held, &snapshot).await?;
            router.finish_rollback(&held).await?;
            tracing::info!(export = %held.entry().name(), %snapshot, "export rolled back");
            Ok(held.entry().info())
        })
        .await
    }

    async fn begin_rollback(&self, held: Held, snapshot: &ExportName) -> Result<Held, RouterError> {
        let name = held.entry().name().to_string();
        if held.entry().state() != State::Detached {
            return Err(RouterError::NotDetached { name });
        }
        let (_, remote) = self.counterpart(&name)?;
        let wanted =
            store_name(snapshot).map_err(|source| RouterError::Store { name: name.clone(), source })?;
        let snapshots = remote.snapshots().await;
        let snapshots = snapshots.map_err(|source| RouterError::Store { name: name.clone(), source })?;
        if !snapshots.iter().any(|info| info.name == wanted) {
            return Err(RouterError::Store { name, source: VolumeError::NoSuchSnapshot { name: wanted } });
        }
        if held.record().rolls_back_to.is_some() {
            // Nothing of it is here. It may go back to another one as well.
            held.write(&self.catalog, |record| record.rolls_back_to = Some(snapshot.to_string())).await?;
            return Ok(held);
        }
        let flushed = tokio::time::timeout(FLUSH_PATIENCE, self.flush(&name));
        let flush = async { flushed.await.map_err(|_| RouterError::NotFlushed { name: name.clone() })? };
        self.unless_stopping(flush).await?;
        let resume = Resume { manifest: None, ..remote.state() };
        self.replace(held, resume, |record| record.rolls_back_to = Some(snapshot.to_string())).await
    }

    /// Has the store go back, where an export waits for that.
    ///
    /// # Errors
    /// [`RouterError::SnapshotGone`] when there is nothing to go back to: the export goes on without that.
    pub(super) async fn finish_rollback(&self, held: &Held) -> Result<(), RouterError> {
        let Some(snapshot) = held.record().rolls_back_to else { return Ok(()) };
        let name = held.entry().name().to_string();
        let (volume, remote) = self.counterpart(&name)?;
        let snapshot = ExportName::new(&snapshot)?;
        let roll_back = async {
            // Boxed: every operation that may have to finish a rollback would have room for it otherwise.
            let gone_back = Box::pin(go_back(&remote, &snapshot)).await;
            gone_back.map_err(|source| RouterError::Store { name: name.clone(), source })
        };
        let GoneBack { resume, crowd, is_snapshot_gone } = self.unless_stopping(roll_back).await?;
        let size_sectors = resume.size_sectors;
        let size = ExportSize::new(size_sectors.saturating_mul(SECTOR_BYTES))?;
        self.catalog.flushed(held.record().export_id(), resume).await?;
        held.write(&self.catalog, |record| {
            record.rolls_back_to = None;
            record.size_bytes = size.bytes();
        })
        .await?;
        held.entry().export().set_size_bytes(size.bytes());
        volume.replaced(size_sectors, crowd);
        if is_snapshot_gone {
            tracing::warn!(export = %name, %snapshot, "an export cannot go back to a snapshot that was deleted");
            return Err(RouterError::SnapshotGone { name, snapshot: snapshot.to_string() });
        }
        Ok(())
    }
}

/// The state of `remote` after going back to `snapshot`; the newest state where the snapshot is gone.
async fn go_back(remote: &volume::VolumeWriter, snapshot: &ExportName) -> Result<GoneBack, VolumeError> {
    let (resume, crowd, is_snapshot_gone) = match remote.rollback(&store_name(snapshot)?).await {
        Ok(committed) => (committed.resume, committed.crowd, false),
        Err(VolumeError::NoSuchSnapshot { .. }) => {
            // An earlier try may have gone back, without an answer: asking finds that.
            remote.confirm().await?;
            let crowd = remote.view().await?.crowd();
            (remote.state(), crowd, true)
        }
        Err(error) => return Err(error),
    };
    Ok(GoneBack { resume: Resume { manifest: None, ..resume }, crowd, is_snapshot_gone })
}
