//! The engine that carries cuts to the store.
//!
//! Owns when each volume's next cut is made and the steps of a cut under way. Invariants: one cut a volume at a time; a cut
//! that could not be carried is tried again, the same cut, until the store has it; content that was lost here keeps nothing
//! else from the store; nothing here runs on a worker. A host whose volumes have nothing to flush does nothing at all.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;

use super::cut::{Cut, OnUnread};
use super::doubts;
use super::due::{Due, Watch};
use super::merging::{self, Merging};
use crate::cache::IoError;
use crate::cache::keeper;
use crate::cache::shared::Shared;
use crate::cache::volume::durability::Triggers;
use crate::cache::volume::store_link::{Link, Tie};
use crate::cache::volume::{CutState, Volume};
use crate::observe::chain;
use crate::store::volume::{Resume, VolumeError};
use crate::units::{ExportId, Seq};

/// How often volumes that have something to flush are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Cuts on their way to the store at the same time, at most.
const UPLOADS_MAX: usize = 8;
/// Cuts whose data is being made stable at the same time, at most: each has a thread of those that may block, which are shared.
const SYNCS_MAX: usize = 8;
/// Extents that change layer while a volume's lock is held once.
const THAW_EXTENTS: usize = 128;
/// Pauses before a cut that failed is tried again.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(200);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Cuts in a row that could not be read, a pause apart, after which what the disk does not read is lost: a disk may come back.
/// With the longest pause ten minutes.
pub(super) const UNREADABLE_CUTS_MAX: u64 = 20;
/// Pause of a look at writes that are being appended.
const LANDING_PAUSE: Duration = Duration::from_millis(1);

/// Carries cuts to the store until it is told to stop. One a cache.
#[derive(Debug)]
pub struct Flusher {
    shared: Arc<Shared>,
    link: Arc<Link>,
    triggers: Triggers,
}

/// A volume that has something to flush.
#[derive(Debug)]
struct Watched {
    volume: Arc<Volume>,
    watch: Watch,
    /// Somebody waits for all that was written before.
    asked: bool,
    /// A cut is on its way.
    busy: bool,
}

/// How many cuts may be at a step at the same time. Neither semaphore is ever closed.
#[derive(Debug)]
struct Permits {
    syncs: Semaphore,
    uploads: Semaphore,
}

impl Default for Permits {
    fn default() -> Self {
        Self { syncs: Semaphore::new(SYNCS_MAX), uploads: Semaphore::new(UPLOADS_MAX) }
    }
}

/// How carrying a cut ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    /// The store has it. Its packs should be made fewer if `compact`.
    Done { compact: bool },
    /// It was taken back, because data in it cannot be read.
    Undone,
    /// Another writer has the volume, or it was deleted.
    Fenced,
    /// The export was removed.
    Removed,
}

impl Flusher {
    pub(in crate::cache) fn new(shared: Arc<Shared>, link: Arc<Link>, triggers: Triggers) -> Self {
        Self { shared, link, triggers }
    }

    /// Works until `stop` is true. Cuts under way are dropped then; the next daemon makes them again.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut watched: HashMap<ExportId, Watched> = HashMap::new();
        let mut uploads = JoinSet::new();
        let mut merging = Merging::new(Arc::clone(&self.shared));
        let permits = Arc::<Permits>::default();
        loop {
            let idle = watched.values().all(|watched| watched.busy);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.link.changed() => {}
                () = tokio::time::sleep(TICK), if !idle => {}
                Some(ended) = uploads.join_next() => {
                    if let Some(volume) = self.ended(&mut watched, ended) {
                        merging.add(volume);
                    }
                }
                Some(()) = merging.ended() => {}
            }
            for volume in self.link.take_crowded().into_iter().filter_map(|id| self.shared.find_volume(id)) {
                merging.add(volume);
            }
            let now = self.shared.clock.now();
            for (id, asked) in self.link.take() {
                let Some(volume) = self.shared.find_volume(id) else { continue };
                let entry = watched.entry(id).or_insert_with(|| Watched {
                    volume,
                    watch: Watch::new(now),
                    asked: false,
                    busy: false,
                });
                entry.asked |= asked;
            }
            let full = self.shared.pressure.wants_flush();
            for (id, watched) in watched.iter_mut().filter(|(_, watched)| !watched.busy) {
                let figures = watched.volume.figures();
                let triggers = watched.volume.triggers(&self.triggers);
                match watched.watch.look(now, &figures, &triggers, watched.asked || full) {
                    Due::Later => {}
                    Due::AtFlush => watched.volume.cut_at_flush(),
                    Due::Now => watched.volume.cut_now(),
                }
                if watched.volume.cut_state() != CutState::None || watched.asked {
                    watched.busy = true;
                    watched.asked = false;
                    let (shared, volume) = (Arc::clone(&self.shared), Arc::clone(&watched.volume));
                    let (id, permits) = (*id, Arc::clone(&permits));
                    uploads.spawn(async move { (id, carry(&shared, &volume, &permits).await) });
                }
            }
            watched.retain(|_, watched| watched.busy || watched.volume.has_to_flush());
        }
    }

    /// Takes note of a cut that is no longer under way; returns a volume that is to be compacted.
    fn ended(
        &self,
        watched: &mut HashMap<ExportId, Watched>,
        ended: Result<(ExportId, Carried), tokio::task::JoinError>,
    ) -> Option<Arc<Volume>> {
        let (id, carried) = match ended {
            Ok(ended) => ended,
            // Panics abort the process, and nobody aborts these tasks.
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a flush ended without a result");
                return None;
            }
        };
        if matches!(carried, Carried::Fenced | Carried::Removed) {
            watched.remove(&id);
            return None;
        }
        let watched = watched.get_mut(&id)?;
        watched.busy = false;
        watched.watch = Watch::new(self.shared.clock.now());
        (carried == Carried::Done { compact: true }).then(|| Arc::clone(&watched.volume))
    }
}

/// Carries the cut of `volume` to the store, as often as it takes.
async fn carry(shared: &Arc<Shared>, volume: &Arc<Volume>, permits: &Permits) -> Carried {
    let Some(tie) = volume.tie() else { return Carried::Removed };
    // What was uploaded is used by later tries of this cut, and by no other.
    tie.upload().clear();
    let carried = carry_on(shared, volume, tie, permits).await;
    tie.upload().clear();
    carried
}

async fn carry_on(shared: &Arc<Shared>, volume: &Arc<Volume>, tie: &Tie, permits: &Permits) -> Carried {
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        match try_carry(shared, volume, tie, permits).await {
            Ok(compact) => {
                tie.set_unreadable(false);
                tie.set_trouble(None);
                tie.advanced();
                shared.flushed();
                return Carried::Done { compact };
            }
            Err(Failure::Removed) => return Carried::Removed,
            Err(Failure::Fenced) => {
                tie.fence();
                shared.flushed();
                return Carried::Fenced;
            }
            Err(failure @ (Failure::Source | Failure::TooDamaged)) => {
                tie.set_unreadable(true);
                if matches!(failure, Failure::TooDamaged) {
                    tie.was_read();
                }
                volume.undo_cut(&shared.slots);
                tie.upload().clear();
                tie.advanced();
                shared.flushed();
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

/// Why a cut did not reach the store. The details have been logged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// Try the same cut again.
    Later,
    /// Data in it cannot be read: try a newer cut later.
    Source,
    /// More places of it are lost than the store can note: the same, but the disk answered.
    TooDamaged,
    Fenced,
    Removed,
}

/// Carries the cut of `volume` to the store; returns whether its packs should be made fewer.
///
/// A permit for uploads is held for the way to the store only. What comes before and after waits for the disk, for log space or
/// for the catalog: a cut that waits there may wait for room that only another cut makes.
///
/// A permit for syncs is held while appended data is made stable, which waits for syncs of segment files and nothing else: those
/// of this cut, and those that the keeper, a shard or another cut has begun. Whoever has begun a sync of a file holds the file for
/// that one call to the disk, and waits for no room and no permit meanwhile. So every holder of a permit goes on as soon as the
/// disk answers, and cuts that wait for a permit wait for no room that they would have to make.
async fn try_carry(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    tie: &Tie,
    permits: &Permits,
) -> Result<bool, Failure> {
    let seq = loop {
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
        match volume.cut_state() {
            CutState::Complete(seq) => break seq,
            CutState::None => {
                // Asked for, and nothing to flush but perhaps a new size.
                return resize(shared, volume, tie, permits).await;
            }
            CutState::Landing => tokio::time::sleep(LANDING_PAUSE).await,
        }
    };
    {
        let _permit = permits.syncs.acquire().await;
        blocking(shared, volume, |shared, volume| make_stable(&shared, &volume)).await?;
    }
    let permit = permits.uploads.acquire().await;
    let gives_up = tie.unreadable_in_a_row() >= UNREADABLE_CUTS_MAX;
    let on_unread = if gives_up { OnUnread::GiveUp } else { OnUnread::Fail };
    let cut = move |shared, volume| Ok(Arc::new(Cut::new(shared, volume, seq, on_unread)));
    let cut = blocking(shared, volume, cut).await?;
    let compact = !cut.is_empty() && {
        if let Some((doubt, _)) = volume.doubt() {
            doubts::keep_state(volume, tie, doubt).await?;
        }
        let (committed, compact) = commit(volume, tie, Arc::clone(&cut), permits, permit).await?;
        note(shared, volume, committed).await?;
        if volume.is_doubted() {
            doubts::give_up_local(shared, volume, seq).await?;
        }
        if cut.has_losses() || tie.upload().has_losses() {
            tie.lose_content();
        }
        compact
    };
    while !volume.thaw_some(&shared.slots, THAW_EXTENTS) {
        tokio::task::yield_now().await;
    }
    Ok(compact)
}

/// Has the store take `cut`, in turns with all other cuts, the first of which is that of `permit`; returns what is to be written down,
/// and whether the packs should be made fewer.
async fn commit<'a>(
    volume: &Arc<Volume>,
    tie: &Tie,
    cut: Arc<Cut>,
    permits: &'a Permits,
    mut permit: Result<SemaphorePermit<'a>, AcquireError>,
) -> Result<(Resume, bool), Failure> {
    let size_sectors = tie.size_sectors();
    let committed = loop {
        let committed = tie.remote.commit_turn(Arc::clone(&cut) as _, size_sectors, tie.upload()).await;
        let committed = committed.map_err(|error| match error {
            // What was removed cannot be read, and nobody wants it stored.
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
    tie.stored_size(size_sectors);
    tie.crowding().set(committed.crowd);
    if !committed.compaction_due {
        merging::tell_if_stopped(volume, committed.crowd);
    }
    Ok((committed.resume, committed.compaction_due))
}

/// Calls `write` until the book has it. The store has a cut: what is tried again is only to say so.
pub(super) async fn persist<F>(volume: &Volume, write: impl Fn() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let mut pause = RETRY_PAUSE_MIN;
    while write().await.is_err() {
        if volume.is_removed() {
            return Err(Failure::Removed);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
    Ok(())
}

/// Has the book say that the store has a cut.
async fn note(shared: &Arc<Shared>, volume: &Arc<Volume>, resume: Resume) -> Result<(), Failure> {
    // A write that failed is not in the cut, and must not be taken for a part of it if recovery finds it.
    let failed = volume.failed_in_cuts().min(resume.cut);
    persist(volume, || write_down(shared, volume, resume.clone(), failed)).await
}

/// Has the book say how far the store is, and up to where nothing may be taken from the log any more.
pub(super) async fn write_down(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    resume: Resume,
    evicted: Seq,
) -> Result<(), Failure> {
    blocking(shared, volume, move |shared, volume| {
        shared.book.flushed(volume.id(), &resume, evicted).map_err(|error| not_written(&volume, &error))
    })
    .await
}

/// Notes for those who wait why a cut did not get to the store.
fn trouble(volume: &Volume, trouble: String) {
    if let Some(tie) = volume.tie() {
        tie.set_trouble(Some(trouble));
    }
}

/// Logs that the book could not be written, and tells those who wait.
pub(super) fn not_written(volume: &Volume, error: &io::Error) -> Failure {
    trouble(volume, format!("what was flushed could not be written down: {}", chain(error)));
    if let Some(suppressed) = volume.bad_flushes().pass() {
        tracing::error!(
            export = volume.id().0,
            error = error as &dyn std::error::Error,
            suppressed,
            "what was flushed could not be written down; trying again: make room on the disk of cache.dir"
        );
    }
    Failure::Later
}

/// Logs why a commit failed, tells those who wait, and decides what follows. A commit that may succeed later is tried again and again.
pub(super) fn failure(volume: &Volume, error: &VolumeError) -> Failure {
    trouble(volume, chain(error));
    let (failure, message) = match error {
        lost if lost.is_fatal() => {
            (Failure::Fenced, "the export stops here; what it had not flushed stays in the cache")
        }
        VolumeError::Cut(_) => (Failure::Source, "data cannot be flushed; trying again later"),
        VolumeError::TooDamaged { .. } => {
            (Failure::TooDamaged, "too much data is lost to be flushed without it; trying again later")
        }
        _ => (Failure::Later, "flushing to the store failed; trying again"),
    };
    let suppressed = match failure {
        Failure::Fenced => Some(0),
        // The store said for the whole host that it does not let us.
        _ if error.is_refused() => None,
        _ => volume.bad_flushes().pass(),
    };
    if let Some(suppressed) = suppressed {
        let (export, error) = (volume.id().0, error as &dyn std::error::Error);
        tracing::error!(export, error, suppressed, "{message}");
    }
    failure
}

async fn resize(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    tie: &Tie,
    permits: &Permits,
) -> Result<bool, Failure> {
    if !tie.has_new_size() {
        return Ok(false);
    }
    // A FLUSH may make a cut meanwhile, which comes later.
    let seq = volume.figures().flushed;
    let cut = Arc::new(Cut::empty(Arc::clone(shared), Arc::clone(volume), seq));
    let permit = permits.uploads.acquire().await;
    let (committed, compact) = commit(volume, tie, cut, permits, permit).await?;
    note(shared, volume, committed).await?;
    Ok(compact)
}

/// Runs `work`, which blocks, off the control threads.
pub(super) async fn blocking<R: Send + 'static>(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    work: impl FnOnce(Arc<Shared>, Arc<Volume>) -> Result<R, Failure> + Send + 'static,
) -> Result<R, Failure> {
    let (shared, volume) = (Arc::clone(shared), Arc::clone(volume));
    // Fails only when the runtime ends.
    tokio::task::spawn_blocking(move || work(shared, volume)).await.unwrap_or(Err(Failure::Later))
}

/// Syncs what `volume` appended until all of it is stable. It may have appended more than the cut covers.
fn make_stable(shared: &Shared, volume: &Volume) -> Result<(), Failure> {
    let mut needs = Vec::new();
    if volume.unsynced(&shared.slots, &mut needs).is_err() {
        // The keeper moves what could not be made stable.
        trouble(volume, IoError::Sync.to_string());
        return Err(Failure::Later);
    }
    for place in needs {
        while let crate::cache::log::table::Stability::Unsynced = place.stability(&shared.slots) {
            match keeper::sync(shared, shared.slots.get(place.slot), place.slot) {
                Some(true) => {}
                Some(false) => return Err(Failure::Later),
                // Somebody else is at it.
                None => std::thread::sleep(LANDING_PAUSE),
            }
        }
    }
    volume.unsynced(&shared.slots, &mut Vec::new()).map_err(|_| Failure::Later)
}
