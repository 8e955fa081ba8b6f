//! Reading the volume as its writer sees the volume: by the newest manifest.
//!
//! Owns waiting for a store that is away, finding the manifest that replaced a removed one, and when data is read ahead. Does not
//! own what a manifest says (`view`), nor which data is read ahead (`view/readahead`).

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::VolumeWriter;
use crate::locks::MutexExt;
use crate::store::volume::crowd::Crowd;
use crate::store::volume::error::VolumeError;
use crate::store::volume::view::View;
use crate::tasks;
use crate::units::SectorRange;

impl VolumeWriter {
    /// Whether a pack may have something of `range`, or a sector of `range` is damaged. If not, all of `range` is zero. Makes no
    /// request: the answer is yes when the manifest is not in memory.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.loaded_here().is_none_or(|loaded| loaded.covers(range))
    }

    /// As [`View::crowd`]; `None` when the manifest is not in memory.
    pub fn crowd(&self) -> Option<Crowd> {
        self.loaded_here().map(|loaded| loaded.rows.crowd())
    }

    /// The newest state. Fetches the manifest if the manifest is not in memory.
    pub async fn view(&self) -> Result<View, VolumeError> {
        self.looking(|view: View| async { Ok(view) }).await
    }

    /// As [`View::read_parts`]. With a block cache, data that a sequential reader wants next is fetched meanwhile. While the store cannot be
    /// reached, or refuses this host, the call waits without limit.
    pub async fn read_waiting(
        &self,
        range: SectorRange,
        parts: &[SectorRange],
    ) -> Result<Bytes, VolumeError> {
        let mut waiting = self.host.store.inner.outage.begin();
        loop {
            self.follow_reader(range).await;
            match self.looking(|view: View| async move { view.read_parts(range, parts).await }).await {
                Err(error) if error.is_unreachable() => waiting.failed(&error).await,
                answer => return answer,
            }
        }
    }

    /// The result of `look` on the newest state. When an object is missing, the store is asked for the newest manifest, and
    /// `look` runs again: another writer may have replaced the object, or a manifest of this writer whose answer was lost, or the
    /// object is missing only for a moment.
    pub(in crate::store::volume) async fn looking<T, F>(
        &self,
        look: impl Fn(View) -> F,
    ) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        match self.look(&look).await {
            Err(error) if error.is_missing() => {}
            result => return result,
        }
        self.writable()?;
        // Rare, and apart, because thousands of READs may wait in the first look.
        Box::pin(async {
            match self.check_newest().await {
                // A writer that cannot ask does not know whether the object is gone for good.
                Err(lost) if lost.is_fatal() || lost.is_unreachable() => Err(lost),
                _ => {
                    let found = self.host.store.insist(VolumeError::is_missing, || self.look(&look)).await?;
                    // A later question that finds an object missing is about another moment.
                    self.head().missing_since = None;
                    Ok(found)
                }
            }
        })
        .await
    }

    async fn look<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let store = self.host.store.for_readers(self.id(), self.weight());
        let loaded = match self.loaded_here() {
            Some(loaded) => loaded,
            None => Box::pin(self.load_from(&store)).await?,
        };
        look(View::new(Arc::clone(&self.host.reader), store, loaded)).await
    }

    /// Begins to fetch the range that the reader of `range` wants next. The future is polled once here, so that data in memory is
    /// looked up and GETs are under way before the next read; the rest runs in the background.
    pub(in crate::store::volume) async fn follow_reader(&self, range: SectorRange) {
        let Some((window, permit)) = self.next_window(range) else { return };
        let volume = self.clone();
        let mut fetching = tasks::boxed(async move {
            let _permit = permit;
            let Some(block_cache) = &volume.host.options.block_cache else { return };
            // An error is reported by the read that needs the data.
            if let Ok(bytes) = volume.look(|view: View| async move { view.read_ahead(window).await }).await {
                block_cache.counters().ahead_bytes.add(bytes);
            }
        });
        if futures_util::poll!(&mut fetching).is_pending() {
            tokio::spawn(fetching);
        }
    }

    fn next_window(&self, range: SectorRange) -> Option<(SectorRange, OwnedSemaphorePermit)> {
        let host = &self.host;
        let budget = host.readahead.as_ref()?;
        // Without a runtime nothing can run in the background.
        Handle::try_current().ok()?;
        let mut permit = None;
        let admit = |window| {
            permit = budget.take(window);
            permit.is_some()
        };
        let size_sectors = self.size_sectors();
        let mut streams = self.shared.streams.lock_whole();
        let window = streams.note(range, size_sectors, budget.window_sectors_max, admit)?;
        Some((window, permit?))
    }
}
