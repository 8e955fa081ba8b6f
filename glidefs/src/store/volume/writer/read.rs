//! Reading the volume as its writer sees the volume: the newest manifest, found again when that one was overtaken.
//!
//! Owns waiting for a store that is away, and when data is read ahead. Does not own what a manifest says (`view`), nor which data is
//! read ahead (`view/readahead`).

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::VolumeWriter;
use crate::store::volume::crowd::Crowd;
use crate::store::volume::error::VolumeError;
use crate::store::volume::types::ReadExtent;
use crate::store::volume::view::View;
use crate::units::SectorRange;

impl VolumeWriter {
    /// Whether any pack may have something of `range`, or some of it is damaged; if not, it is zero. Asks nobody: with a manifest that is not in memory
    /// the answer is yes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.loaded_here().is_none_or(|loaded| loaded.covers(range))
    }

    /// As [`View::crowd`]; `None` when the manifest is not in memory.
    pub fn crowd(&self) -> Option<Crowd> {
        self.loaded_here().map(|loaded| loaded.rows.crowd())
    }

    /// The state it has now. Fetches the manifest if it is not in memory.
    pub async fn view(&self) -> Result<View, VolumeError> {
        self.looking(|view: View| async { Ok(view) }).await
    }

    /// See [`View::read`]. What a sequential reader wants next is fetched meanwhile, if there is a clean cache.
    pub async fn read(&self, range: SectorRange) -> Result<Bytes, VolumeError> {
        self.follow_reader(range).await;
        self.looking(|view: View| async move { view.read(range).await }).await
    }

    /// As [`View::read_parts`]. While the store cannot be reached, or refuses this host, the call waits, for as long as it takes.
    pub async fn read_waiting(
        &self,
        range: SectorRange,
        parts: &[SectorRange],
    ) -> Result<Bytes, VolumeError> {
        let mut waiting = self.host.store.outage().begin();
        loop {
            self.follow_reader(range).await;
            match self.looking(|view: View| async move { view.read_parts(range, parts).await }).await {
                Err(error) if error.is_unreachable() => waiting.failed(&error).await,
                answer => return answer,
            }
        }
    }

    /// See [`View::read_extents`].
    pub async fn read_extents(&self, range: SectorRange) -> Result<Vec<ReadExtent>, VolumeError> {
        self.looking(|view: View| async move { view.read_extents(range).await }).await
    }

    /// See [`View::mapped`].
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.looking(|view: View| async move { view.mapped(range).await }).await
    }

    /// What `look` finds in the state it has now. An object that is missing may have been made superfluous by another writer, or
    /// by a manifest of this one of which the answer was lost.
    pub(in crate::store::volume) async fn looking<T, F>(
        &self,
        look: impl Fn(View) -> F,
    ) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let number = self.head().number;
        let error = match self.look(&look).await {
            Err(error) if error.is_missing() => error,
            result => return result,
        };
        self.writable()?;
        match self.check_newest().await {
            // Who cannot ask does not know that the object is gone for good.
            Err(lost) if lost.is_fatal() || lost.is_unreachable() => Err(lost),
            Ok(()) if self.head().number != number => self.look(&look).await,
            _ => Err(error),
        }
    }

    async fn look<T, F>(&self, look: impl Fn(View) -> F) -> Result<T, VolumeError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let store = self.host.store.for_readers(self.id());
        let loaded = self.load_from(&store).await?;
        look(View::new(Arc::clone(&self.host.reader), store, loaded)).await
    }

    /// Begins to fetch what whoever reads `range` wants next. What is in memory is looked up and requested at once, so that the
    /// next read finds it on its way; the rest goes on in the background.
    pub(in crate::store::volume) async fn follow_reader(&self, range: SectorRange) {
        let Some((window, permit)) = self.next_window(range) else { return };
        let volume = self.clone();
        let mut fetching = Box::pin(async move {
            let _permit = permit;
            let Some(clean) = &volume.host.options.clean else { return };
            let counters = clean.counters();
            match volume.looking(|view: View| async move { view.read_ahead(window).await }).await {
                Ok(0) => {}
                Ok(bytes) => {
                    counters.ahead_windows.add(1);
                    counters.ahead_bytes.add(bytes);
                }
                // Whoever reads it is told.
                Err(_) => counters.ahead_errors.add(1),
            }
        });
        if futures_util::poll!(&mut fetching).is_pending() {
            tokio::spawn(fetching);
        }
    }

    fn next_window(&self, range: SectorRange) -> Option<(SectorRange, OwnedSemaphorePermit)> {
        let host = &self.host;
        let (budget, clean) = (host.readahead.as_ref()?, host.options.clean.as_ref()?);
        // Nowhere else can anything go on in the background.
        Handle::try_current().ok()?;
        let mut permit = None;
        let admit = |window| {
            permit = budget.take(window);
            if permit.is_none() {
                clean.counters().ahead_skipped.add(1);
            }
            permit.is_some()
        };
        let size_sectors = self.size_sectors();
        let mut streams = self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let window = streams.note(range, size_sectors, budget.window_sectors_max, admit)?;
        Some((window, permit?))
    }
}
