//! How the data of a cut becomes stable on the local disk.
//!
//! Owns the wait. Does not own the syncs of others: a shard, the keeper or another cut may sync the same file. Invariant: a thread is
//! taken only where nobody else has the file, and the file only on that thread; so whoever waits here holds up no other sync, even while
//! there is no thread.

use std::sync::Arc;

use crate::cache::keeper::sealing;
use crate::cache::log::table::{Place, Stability};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;

/// Syncs the segments appended to by `volume` until all appended data is stable, which may be more than the data of a cut.
///
/// # Errors
/// [`IoError::Sync`] when some of the data is not stable after a sync. The keeper writes such data once more.
pub(super) async fn make_stable(shared: &Arc<Shared>, volume: &Volume) -> Result<(), IoError> {
    let mut needs = Vec::new();
    volume.unsynced(&shared.table, &mut needs)?;
    for place in needs {
        sync_to(shared, place).await?;
    }
    volume.unsynced(&shared.table, &mut Vec::new())
}

async fn sync_to(shared: &Arc<Shared>, place: Place) -> Result<(), IoError> {
    loop {
        // Begun before the look, so that no end of a sync after the look is missed.
        let next_sync = shared.next_sync();
        if place.stability(&shared.table) != Stability::Unsynced {
            return Ok(());
        }
        if shared.table.get(place.number).is_file_held() {
            // Somebody else is syncing the file.
            next_sync.await;
            continue;
        }
        let on_thread = Arc::clone(shared);
        let synced = tokio::task::spawn_blocking(move || sealing::sync(&on_thread, place.number));
        // Fails only when the runtime ends.
        match synced.await.unwrap_or(Some(false)) {
            Some(true) => {}
            Some(false) => return Err(IoError::Sync),
            // Somebody else was first.
            None => next_sync.await,
        }
    }
}
