//! A cut that an earlier life of the daemon brought to the store, when the daemon died before the catalog noted the cut. The
//! content of the cut counts as not in the store, and goes there again, as long as all of the content can be read here. Of content
//! lost here the store has the good copy: then everything up to the cut is left to the store.
//!
//! Owns finding such a cut, and leaving content to the store. Does not own the content (`volume/linked`). Invariants: the cut is
//! that of a manifest which this host noted in this epoch, or made with a version without notes, so the cut has the writes of this
//! history and of no other; content that the manifest lists as damaged, and that readers here get, is not left to the store. All
//! of the content is left, not only the lost part: a write of the cut may have failed with its record in the log, and only the
//! dead daemon knew the write.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::steps::{Failure, failure, persist, write_down};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::store_link::StoreLink;
use crate::units::Seq;

/// Extents looked at while a volume's lock is held once.
const LEAVE_EXTENTS: usize = 128;

/// Leaves content to the store if some of the content is lost here, as far as known without reading any. Asks the store for the
/// newest manifest, with one of `permits`, unless the store has answered in this life. Call before each cut: no cut of this life may
/// be committed before the first call.
pub(super) async fn mend(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Semaphore,
) -> Result<(), Failure> {
    let unnoted = match link.unnoted() {
        Some(unnoted) => unnoted,
        None if volume.is_removed() => return Ok(()),
        None => {
            let permit = permits.acquire().await;
            link.remote.refresh().await.map_err(|error| failure(volume, &error))?;
            drop(permit);
            volume.keep_to_numbers(link);
            let unnoted = link.cut_before(volume.figures().stored).unwrap_or_default();
            link.set_unnoted(unnoted);
            unnoted
        }
    };
    if unnoted <= volume.figures().stored {
        volume.never_leaves();
    } else if volume.has_lost_up_to(unnoted).await {
        leave(shared, volume, link, unnoted).await?;
    }
    Ok(())
}

/// Leaves everything up to the cut `unnoted` to the store, except where only readers here get some of the content. The volume has
/// no cut on the way.
pub(super) async fn leave(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    unnoted: Seq,
) -> Result<(), Failure> {
    let damaged = link.remote.damaged().await.map_err(|error| failure(volume, &error))?;
    if volume.has_whole_in(&damaged, unnoted).await {
        link.set_unnoted(Seq(0));
        link.advanced();
        return Ok(());
    }
    let resume = link.remote.state();
    // A commit of this life may have reached the store as well, without an answer.
    debug_assert!(resume.cut >= unnoted, "the history in the store only grows");
    let evicted = volume.failed_in_cuts().min(resume.cut).max(unnoted);
    persist(volume, || write_down(shared, volume, resume.clone(), evicted)).await?;
    shared.bury(volume.begin_leaving());
    let mut next = Some(0);
    while let Some(from) = next {
        next = volume.leave_some(&shared.table, unnoted, from, LEAVE_EXTENTS);
        tokio::task::yield_now().await;
    }
    volume.left(unnoted);
    shared.signal.raise();
    tracing::warn!(
        export = volume.id().0,
        "some data of this export is lost on the local disk, and the store has the data: reads go to the store"
    );
    link.advanced();
    Ok(())
}
