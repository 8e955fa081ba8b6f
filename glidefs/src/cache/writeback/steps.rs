//! Steps that several parts of writeback share: failures and their consequences, and notes in the catalog.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::observe::chain;
use crate::store::volume::{Crowd, Resume, VolumeError};
use crate::tasks;
use crate::units::Seq;

/// Shortest and longest pause before a failed cut is tried again.
pub(super) const RETRY_PAUSE_MIN: Duration = Duration::from_millis(200);
pub(super) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Why a cut did not get to the store. The details are in the log already.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// Try the same cut again.
    Later,
    /// Some data of the cut cannot be read: try a newer cut later.
    Source,
    /// More places of the cut are lost than the store can note: try a newer cut later. Unlike with `Source`, the disk answered.
    TooDamaged,
    Fenced,
    Removed,
}

/// Calls `write` until the catalog has the note. The store has the cut already: only the note is tried again.
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

/// Notes in the catalog how far the store is, and the number up to which no write may be taken from the log any more.
pub(super) async fn write_down(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    resume: Resume,
    evicted: Seq,
) -> Result<(), Failure> {
    shared.catalog.stored(volume.id(), &resume, evicted).await.map_err(|error| not_written(volume, &error))
}

/// Notes in the catalog that no write up to `seq` may be taken from the log any more, with as many tries as needed.
pub(super) async fn bar(shared: &Arc<Shared>, volume: &Arc<Volume>, seq: Seq) -> Result<(), Failure> {
    let write = || {
        blocking(shared, volume, move |shared, volume| {
            shared.catalog.evicted(&[(volume.id(), seq)]).map_err(|error| not_written(&volume, &error))
        })
    };
    persist(volume, write).await
}

/// Notes why a cut did not get to the store, for those who wait for the cut.
pub(super) fn trouble(volume: &Volume, trouble: String) {
    if let Some(link) = volume.store_link() {
        link.set_trouble(Some(trouble));
    }
}

/// Logs that the catalog could not be written, and tells those who wait for the cut.
fn not_written(volume: &Volume, error: &io::Error) -> Failure {
    trouble(volume, format!("the catalog could not note that data was written back: {}", chain(error)));
    if let Some(suppressed) = volume.bad_writebacks.pass() {
        tracing::error!(
            export = volume.id().0,
            error = error as &dyn std::error::Error,
            suppressed,
            "the catalog could not note that data was written back; trying again: make room on the disk of cache.dir"
        );
    }
    Failure::Later
}

/// Logs why a commit failed, tells those who wait, and decides what follows. A commit that may succeed later is tried again and
/// again.
pub(super) fn failure(volume: &Volume, error: &VolumeError) -> Failure {
    trouble(volume, chain(error));
    let (failure, message) = match error {
        lost if lost.is_fatal() => {
            (Failure::Fenced, "the export stops on this host; data not written back stays in the cache")
        }
        // The keeper has logged the sync, and writes the data once more.
        VolumeError::Unsettled(_) => return Failure::Later,
        VolumeError::Cut(_) => (Failure::Source, "data cannot be written back; trying again later"),
        VolumeError::TooDamaged { .. } => (
            Failure::TooDamaged,
            "the export has more places of lost data than the store can note; trying again later",
        ),
        _ => (Failure::Later, "writing back to the store failed; trying again"),
    };
    let suppressed = match failure {
        Failure::Fenced => Some(0),
        // The store's client has logged the refusal for the whole host.
        _ if error.is_refused() => None,
        _ => volume.bad_writebacks.pass(),
    };
    if let Some(suppressed) = suppressed {
        let (export, error) = (volume.id().0, error as &dyn std::error::Error);
        tracing::error!(export, error, suppressed, "{message}");
    }
    failure
}

/// Logs an error when writes of a volume wait for a merge, and no packs of the volume can be merged.
pub(super) fn tell_if_stopped(volume: &Volume, crowd: Crowd) {
    if crowd.percent() == 100 {
        tracing::error!(
            export = volume.id().0,
            packs = crowd.packs,
            "the store lists as many packs of the export as one manifest can, and none can be merged: writes to the export wait; \
             copy the export to smaller ones (glidefs export dump), and delete the export"
        );
    }
}

/// Runs `work`, which may block, on a thread for blocking work.
pub(super) async fn blocking<R: Send + 'static>(
    shared: &Arc<Shared>,
    volume: &Arc<Volume>,
    work: impl FnOnce(Arc<Shared>, Arc<Volume>) -> Result<R, Failure> + Send + 'static,
) -> Result<R, Failure> {
    let (shared, volume) = (Arc::clone(shared), Arc::clone(volume));
    let working = move || {
        let _work = tasks::work_for(Some(volume.id()));
        work(shared, volume)
    };
    // Fails only when the runtime ends.
    tokio::task::spawn_blocking(working).await.unwrap_or(Err(Failure::Later))
}
