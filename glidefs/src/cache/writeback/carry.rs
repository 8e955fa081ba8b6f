//! The way of one cut to the store, step by step.
//!
//! Owns the order of the steps and the permits for the steps. Does not own when a cut is made (`engine`). Invariants: a cut is
//! stable on the local disk before a manifest tells the store of the cut; FLUSHes are told of the cut when the store has the manifest;
//! the catalog has the cut before the extents of the cut count as clean; once the store has the sectors damaged by a doubt, no data that
//! was in doubt is taken from the log; an export has at most one of the permits, because a volume has one cut on the way, and gives a
//! permit for a large cut up after a turn in proportion to the weight. Permits are given in order of arrival, those for small cuts apart.

use std::sync::Arc;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::cut::{Cut, OnUnread};
use super::steps::{
    Failure, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN, bar, blocking, failure, persist, tell_if_stopped, write_down,
};
use super::unnoted;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::hold::MOVED_MAX;
use crate::cache::volume::store_link::StoreLink;
use crate::store::StoreName;
use crate::store::volume::{Resume, VolumeError};
use crate::units::Seq;

/// Most cuts being uploaded at the same time, and most small ones beside: these take little of the line to the store, and somebody
/// may wait for each of them.
const UPLOADS_MAX: usize = 8;
const SMALL_UPLOADS_MAX: usize = 64;
/// Most data of a small cut, bytes, and most extents.
const SMALL_BYTES_MAX: u64 = 1 << 20;
const SMALL_EXTENTS_MAX: usize = 256;
/// After so many unreadable cuts in a row, with a pause between two, data that the disk does not read counts as lost. Until then
/// the disk may come back: with the longest pause the cuts take ten minutes.
pub(super) const UNREADABLE_CUTS_MAX: u64 = 20;

/// Limits how many cuts are on the way to the store at the same time. Neither semaphore is ever closed.
#[derive(Debug)]
pub(super) struct Permits {
    small: Semaphore,
    others: Semaphore,
}

impl Default for Permits {
    fn default() -> Self {
        Self { small: Semaphore::new(SMALL_UPLOADS_MAX), others: Semaphore::new(UPLOADS_MAX) }
    }
}

/// The result of carrying a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// The store has the cut. `compact` says that packs should be merged.
    Done { compact: bool },
    /// The cut was taken back, because some data of the cut cannot be read.
    Undone,
    /// Another writer has the volume, or the export was removed.
    Lost,
}

/// Carries the cut of `volume` to the store, with as many tries as needed.
pub(super) async fn carry(shared: &Arc<Shared>, volume: &Arc<Volume>, permits: &Permits) -> Carried {
    let Some(link) = volume.store_link() else { return Carried::Lost };
    // Only later tries of the same cut may use the packs uploaded for the cut.
    link.upload.clear();
    let carried = carry_on(shared, volume, link, permits).await;
    link.upload.clear();
    carried
}

async fn carry_on(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Permits,
) -> Carried {
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        match try_carry(shared, volume, link, permits).await {
            Ok(compact) => {
                link.set_unreadable(false);
                link.set_trouble(None);
                link.advanced();
                shared.writeback_ended();
                return Carried::Done { compact };
            }
            Err(Failure::Removed) => return Carried::Lost,
            Err(Failure::Fenced) => {
                link.fence();
                shared.writeback_ended();
                return Carried::Lost;
            }
            Err(failure @ (Failure::Source | Failure::TooDamaged)) => {
                link.set_unreadable(true);
                if matches!(failure, Failure::TooDamaged) {
                    link.was_read();
                }
                while !volume.undo_some(&shared.table, MOVED_MAX) {
                    tokio::task::yield_now().await;
                }
                link.upload.clear();
                link.advanced();
                shared.writeback_ended();
                tokio::time::sleep(RETRY_PAUSE_MAX).await;
                return Carried::Undone;
            }
            Err(Failure::Later) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
        }
    }
}

/// Tries once to carry the cut of `volume` to the store; returns whether packs should be merged.
///
/// A permit is held on the way to the store only, and meanwhile appended data is made stable: this waits for syncs of segment files
/// and for nothing else, whoever has begun them. Whoever has begun a sync of a file holds the file for one call to the disk, and
/// waits for no room and no permit meanwhile. The steps before and after wait for log space or for the catalog: a cut that waits there
/// may wait for room made by another cut alone.
async fn try_carry(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Permits,
) -> Result<bool, Failure> {
    unnoted::mend(shared, volume, link, &permits.small).await?;
    let seq = loop {
        // Begun before the look, so that no landing after the look is missed.
        let landed = link.landing.notified();
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
        match volume.cut_state() {
            CutState::Complete(seq) => break seq,
            CutState::None => {
                // Somebody asked, and there is no data to write back, but perhaps a new size or new properties.
                return tell_news(shared, volume, link, permits).await;
            }
            CutState::Landing => landed.await,
        }
    };
    let gives_up = link.unreadable_in_a_row() >= UNREADABLE_CUTS_MAX;
    let on_unread = if gives_up { OnUnread::GiveUp } else { OnUnread::Fail };
    let (extents, bytes) = volume.cut_size();
    let is_small = extents <= SMALL_EXTENTS_MAX && bytes <= SMALL_BYTES_MAX;
    let permits = if is_small { &permits.small } else { &permits.others };
    let permit = permits.acquire().await;
    let make = move |shared, volume| Ok(Arc::new(Cut::new(shared, volume, seq, on_unread)));
    let cut = if is_small {
        make(Arc::clone(shared), Arc::clone(volume))?
    } else {
        blocking(shared, volume, make).await?
    };
    let compact = if cut.is_empty() {
        drop(permit);
        bar_failed(shared, volume).await?;
        false
    } else {
        if let Some((doubt, _)) = volume.doubt() {
            keep_state(volume, link, doubt).await?;
        }
        let committed = if cut.has_lost_stored() {
            drop(permit);
            Err(Failure::Source)
        } else {
            commit(volume, link, Arc::clone(&cut), permits, permit).await
        };
        if matches!(committed, Err(Failure::Source)) && cut.has_lost_stored() {
            unnoted::leave(shared, volume, link, link.unnoted().unwrap_or_default()).await?;
            return Err(Failure::Later);
        }
        let (committed, compact) = committed?;
        // A second try commits the cut once more when the step behind the note has failed.
        if link.committed() < seq && (cut.has_losses() || link.upload.has_losses()) {
            link.lose_content();
        }
        link.set_committed(seq);
        note(shared, volume, committed).await?;
        if volume.is_doubted() {
            // Some of the writes up to the cut are older than lost ones, and the store has the cut.
            bar(shared, volume, seq).await?;
        }
        compact
    };
    loop {
        let (is_last, dead) = volume.thaw_some(&shared.table, MOVED_MAX);
        if is_last {
            shared.bury(dead);
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(compact)
}

/// Commits `cut` in turns with all other cuts, beginning with the turn of `permit`. Returns the state to note in the catalog, and
/// whether packs should be merged.
async fn commit<'a>(
    volume: &Arc<Volume>,
    link: &StoreLink,
    cut: Arc<Cut>,
    permits: &'a Semaphore,
    mut permit: Result<SemaphorePermit<'a>, AcquireError>,
) -> Result<(Resume, bool), Failure> {
    let (size_sectors, properties_set) = (link.size_sectors(), link.properties_set());
    let committed = loop {
        let committed = link.remote.commit_turn(Arc::clone(&cut) as _, size_sectors, &link.upload).await;
        let committed = committed.map_err(|error| match error {
            // The data of a removed volume cannot be read, and nobody wants the data in the store.
            VolumeError::Cut(_) if volume.is_removed() => Failure::Removed,
            error => failure(volume, &error),
        })?;
        if let Some(committed) = committed {
            break committed;
        }
        drop(permit);
        permit = permits.acquire().await;
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
    };
    drop(permit);
    link.stored_size(size_sectors);
    link.stored_properties(properties_set);
    link.crowding.set(committed.crowd);
    if !committed.compaction_due {
        tell_if_stopped(volume, committed.crowd);
    }
    Ok((committed.resume, committed.compaction_due))
}

/// Notes in the catalog that the store has a cut.
async fn note(shared: &Arc<Shared>, volume: &Arc<Volume>, resume: Resume) -> Result<(), Failure> {
    // A failed write is not in the cut. If recovery finds the record of the write, recovery must not take the write for a part of
    // the cut.
    let failed = volume.failed_in_cuts().min(resume.cut);
    persist(volume, || write_down(shared, volume, resume.clone(), failed)).await
}

/// Notes in the catalog the failed writes of a cut without content. No manifest is made of such a cut, and no other note.
async fn bar_failed(shared: &Arc<Shared>, volume: &Arc<Volume>) -> Result<(), Failure> {
    let failed = volume.failed_in_cuts();
    // Failed writes of earlier cuts are noted already.
    if failed > volume.figures().stored { bar(shared, volume, failed).await } else { Ok(()) }
}

async fn tell_news(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Permits,
) -> Result<bool, Failure> {
    if !link.has_news() {
        return Ok(false);
    }
    // A FLUSH may make a cut meanwhile. Such a cut is carried later.
    let seq = volume.figures().stored;
    let cut = Arc::new(Cut::empty(Arc::clone(shared), Arc::clone(volume), seq));
    let permit = permits.small.acquire().await;
    let (committed, compact) = commit(volume, link, cut, &permits.small, permit).await?;
    note(shared, volume, committed).await?;
    Ok(compact)
}

/// Keeps the state in the store as a snapshot before a cut that ends a doubt, unless an earlier try made the snapshot: the cut has the
/// reliable writes and marks all other sectors as damaged, while most of the state before is whole.
async fn keep_state(volume: &Arc<Volume>, link: &StoreLink, doubt: Seq) -> Result<(), Failure> {
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
