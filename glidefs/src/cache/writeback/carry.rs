//! The way of one cut to the store, step by step.
//!
//! Owns the order of the steps and the permits for the steps. Does not own when a cut is made (`engine`). Invariants: a cut is
//! stable on the local disk before the cut leaves the host; the catalog has the cut before the extents of the cut count as clean;
//! an export has at most one of the permits of a step, because a volume has one cut on the way, and gives a permit for uploads up
//! after a turn in proportion to the weight. Permits are given in order of arrival.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::cut::{Cut, OnUnread};
use super::doubts;
use super::steps::{
    Failure, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN, blocking, failure, persist, tell_if_stopped, trouble,
    write_down,
};
use crate::cache::keeper::syncing;
use crate::cache::log::table::Stability;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::error::IoError;
use crate::cache::volume::store_link::StoreLink;
use crate::store::volume::{Resume, VolumeError};

/// Most cuts being uploaded at the same time.
const UPLOADS_MAX: usize = 8;
/// Most cuts whose data is being made stable at the same time: each takes one of the threads for blocking work, which others need
/// as well.
const SYNCS_MAX: usize = 8;
/// Extents that change layer while a volume's lock is held once.
const THAW_EXTENTS: usize = 128;
/// After so many unreadable cuts in a row, with a pause between two, data that the disk does not read counts as lost. Until then
/// the disk may come back: with the longest pause the cuts take ten minutes.
pub(super) const UNREADABLE_CUTS_MAX: u64 = 20;
/// Pause between two looks at writes being appended, and at a file that somebody else syncs.
const LANDING_PAUSE: Duration = Duration::from_millis(1);

/// Limits how many cuts are at a step at the same time. Neither semaphore is ever closed.
#[derive(Debug)]
pub(super) struct Permits {
    syncs: Semaphore,
    uploads: Semaphore,
}

impl Default for Permits {
    fn default() -> Self {
        Self { syncs: Semaphore::new(SYNCS_MAX), uploads: Semaphore::new(UPLOADS_MAX) }
    }
}

/// The result of carrying a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// The store has the cut. `compact` says that packs should be merged.
    Done { compact: bool },
    /// The cut was taken back, because some data of the cut cannot be read.
    Undone,
    /// Another writer has the volume, or the volume was deleted.
    Fenced,
    /// The export was removed.
    Removed,
}

/// Carries the cut of `volume` to the store, with as many tries as needed.
pub(super) async fn carry(shared: &Arc<Shared>, volume: &Arc<Volume>, permits: &Permits) -> Carried {
    let Some(link) = volume.store_link() else { return Carried::Removed };
    // Only later tries of the same cut may use the packs uploaded for the cut.
    link.upload().clear();
    let carried = carry_on(shared, volume, link, permits).await;
    link.upload().clear();
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
            Err(Failure::Removed) => return Carried::Removed,
            Err(Failure::Fenced) => {
                link.fence();
                shared.writeback_ended();
                return Carried::Fenced;
            }
            Err(failure @ (Failure::Source | Failure::TooDamaged)) => {
                link.set_unreadable(true);
                if matches!(failure, Failure::TooDamaged) {
                    link.was_read();
                }
                while !volume.undo_some(&shared.table, THAW_EXTENTS) {
                    tokio::task::yield_now().await;
                }
                link.upload().clear();
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
/// A permit for uploads is held on the way to the store only. The steps before and after wait for the disk, for log space or for
/// the catalog: a cut that waits there may wait for room made by another cut alone.
///
/// A permit for syncs is held while appended data is made stable. This step waits for syncs of segment files and for nothing
/// else: syncs of this cut, and syncs begun by the keeper, a shard or another cut. Whoever has begun a sync of a file holds the
/// file for one call to the disk, and waits for no room and no permit meanwhile. So every holder of a permit goes on as soon as
/// the disk answers, and no cut that waits for a permit would have to make room for the holders.
async fn try_carry(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Permits,
) -> Result<bool, Failure> {
    let seq = loop {
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
        match volume.cut_state() {
            CutState::Complete(seq) => break seq,
            CutState::None => {
                // Somebody asked, and there is no data to write back, but perhaps a new size.
                return resize(shared, volume, link, permits).await;
            }
            CutState::Landing => tokio::time::sleep(LANDING_PAUSE).await,
        }
    };
    {
        let _permit = permits.syncs.acquire().await;
        blocking(shared, volume, |shared, volume| make_stable(&shared, &volume)).await?;
    }
    let permit = permits.uploads.acquire().await;
    let gives_up = link.unreadable_in_a_row() >= UNREADABLE_CUTS_MAX;
    let on_unread = if gives_up { OnUnread::GiveUp } else { OnUnread::Fail };
    let cut = move |shared, volume| Ok(Arc::new(Cut::new(shared, volume, seq, on_unread)));
    let cut = blocking(shared, volume, cut).await?;
    let compact = !cut.is_empty() && {
        if let Some((doubt, _)) = volume.doubt() {
            doubts::keep_state(volume, link, doubt).await?;
        }
        let (committed, compact) = commit(volume, link, Arc::clone(&cut), permits, permit).await?;
        note(shared, volume, committed).await?;
        if volume.is_doubted() {
            doubts::give_up_local(shared, volume, seq).await?;
        }
        if cut.has_losses() || link.upload().has_losses() {
            link.lose_content();
        }
        compact
    };
    loop {
        let (is_last, dead) = volume.thaw_some(&shared.table, THAW_EXTENTS);
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
    permits: &'a Permits,
    mut permit: Result<SemaphorePermit<'a>, AcquireError>,
) -> Result<(Resume, bool), Failure> {
    let size_sectors = link.size_sectors();
    let committed = loop {
        let committed = link.remote().commit_turn(Arc::clone(&cut) as _, size_sectors, link.upload()).await;
        let committed = committed.map_err(|error| match error {
            // The data of a removed volume cannot be read, and nobody wants the data in the store.
            VolumeError::Cut(_) if volume.is_removed() => Failure::Removed,
            error => failure(volume, &error),
        })?;
        if let Some(committed) = committed {
            break committed;
        }
        drop(permit);
        permit = permits.uploads.acquire().await;
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
    };
    drop(permit);
    link.stored_size(size_sectors);
    link.crowding().set(committed.crowd);
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

async fn resize(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    link: &StoreLink,
    permits: &Permits,
) -> Result<bool, Failure> {
    if !link.has_new_size() {
        return Ok(false);
    }
    // A FLUSH may make a cut meanwhile. Such a cut is carried later.
    let seq = volume.figures().stored;
    let cut = Arc::new(Cut::empty(Arc::clone(shared), Arc::clone(volume), seq));
    let permit = permits.uploads.acquire().await;
    let (committed, compact) = commit(volume, link, cut, permits, permit).await?;
    note(shared, volume, committed).await?;
    Ok(compact)
}

/// Syncs the segments appended to by `volume` until all appended data is stable, which may be more than the data of the cut.
fn make_stable(shared: &Shared, volume: &Volume) -> Result<(), Failure> {
    let mut needs = Vec::new();
    if volume.unsynced(&shared.table, &mut needs).is_err() {
        // The keeper writes the data of a failed sync once more.
        trouble(volume, IoError::Sync.to_string());
        return Err(Failure::Later);
    }
    for place in needs {
        while let Stability::Unsynced = place.stability(&shared.table) {
            match syncing::sync(shared, shared.table.get(place.number), place.number) {
                Some(true) => {}
                Some(false) => return Err(Failure::Later),
                // Somebody else is syncing the file.
                None => std::thread::sleep(LANDING_PAUSE),
            }
        }
    }
    volume.unsynced(&shared.table, &mut Vec::new()).map_err(|_| Failure::Later)
}
