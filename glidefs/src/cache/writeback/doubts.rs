//! A cut that ends a doubt: of an export that may have lost a record the store gets what can be relied on, and that everything
//! else is damaged.
//!
//! Owns what has to be safe before and after such a cut. Does not own which records may be lost (`recovery`), nor what the cut
//! holds (`cut`). Invariants: what the store had before stays to be had, as a snapshot, because most of it is whole; nothing
//! that was in doubt is taken from the log once the store says what is damaged.

use std::sync::Arc;

use super::steps::{Failure, blocking, failure, not_written, persist};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::store_link::StoreLink;
use crate::store::StoreName;
use crate::store::volume::VolumeError;
use crate::units::Seq;

/// Keeps the state that the store has as a snapshot, unless an earlier try has.
pub(super) async fn keep_state(volume: &Arc<Volume>, link: &StoreLink, doubt: Seq) -> Result<(), Failure> {
    let Ok(name) = format!("before-doubt-{}", doubt.0).parse::<StoreName>() else {
        debug_assert!(false, "letters, digits and hyphens make a name");
        return Ok(());
    };
    match link.remote().snapshot(&name).await {
        Ok(_) => {
            tracing::warn!(
                export = volume.id().0,
                snapshot = %name,
                "records of the export may be lost: what the store has of it is kept as a snapshot, to go back to or to fork"
            );
            Ok(())
        }
        Err(VolumeError::SnapshotExists { .. }) => Ok(()),
        Err(error) => Err(failure(volume, &error)),
    }
}

/// Writes down that nothing up to the cut `seq`, which the store has, may be taken from the log: some of it is older than what
/// was lost.
pub(super) async fn give_up_local(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    seq: Seq,
) -> Result<(), Failure> {
    let write = || {
        blocking(shared, volume, move |shared, volume| {
            shared.catalog.evicted(&[(volume.id(), seq)]).map_err(|error| not_written(&volume, &error))
        })
    };
    persist(volume, write).await
}
