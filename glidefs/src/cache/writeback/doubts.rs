//! A cut that ends a doubt. An export in doubt may have lost a record: the cut has the reliable writes, and marks all other
//! sectors as damaged.
//!
//! Owns the snapshot made before such a cut. Does not own the decision which records may be lost (`recovery`), nor the
//! content of the cut (`cut`). Invariants: the state that the store had before is kept as a snapshot, because most of the state
//! is whole; once the store has the damaged sectors, no data that was in doubt is taken from the log (`carry` bars this data).

use std::sync::Arc;

use super::steps::{Failure, failure};
use crate::cache::volume::Volume;
use crate::cache::volume::store_link::StoreLink;
use crate::store::StoreName;
use crate::store::volume::VolumeError;
use crate::units::Seq;

/// Keeps the state in the store as a snapshot, unless an earlier try made the snapshot.
pub(super) async fn keep_state(volume: &Arc<Volume>, link: &StoreLink, doubt: Seq) -> Result<(), Failure> {
    let Ok(name) = format!("before-doubt-{}", doubt.0).parse::<StoreName>() else {
        debug_assert!(false, "a name of letters, digits and hyphens is valid");
        return Ok(());
    };
    match link.remote.snapshot(&name).await {
        Ok(_) => {
            tracing::warn!(
                export = volume.id().0,
                snapshot = %name,
                "records of the export may be lost: the state in the store is kept as a snapshot, to go back to or to fork"
            );
            Ok(())
        }
        Err(VolumeError::SnapshotExists { .. }) => Ok(()),
        Err(error @ VolumeError::SnapshotBroken { .. }) => {
            // An earlier try arrived so late that packs are gone. The name is only for this snapshot; the next try gives it again.
            let deleted = link.remote.delete_snapshot(&name).await;
            Err(failure(volume, deleted.as_ref().err().unwrap_or(&error)))
        }
        Err(error) => Err(failure(volume, &error)),
    }
}
