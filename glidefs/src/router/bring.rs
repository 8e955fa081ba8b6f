//! Bringing exports to the store that were created before there was a store.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Router;
use super::catalog::change::Change;
use super::catalog::record::Desired;
use super::entry::HeldExport;
use super::error::RouterError;
use super::size::ExportSize;
use super::storage::{Begun, InitialContent};
use crate::observe::chain;

/// How long the writeback of one export may delay the next export.
const BRING_PATIENCE: Duration = Duration::from_mins(5);

impl Router {
    /// Creates volumes in the store for the exports without one, and writes these exports back. Returns the number of exports
    /// that failed.
    pub async fn bring_to_store(self: &Arc<Self>) -> usize {
        let mut failed = 0;
        for entry in self.entries() {
            if entry.is_stored() {
                continue;
            }
            let name = entry.name.to_string();
            let brought = self.on_held(&name, |router, held| async move { router.bring(&held).await }).await;
            match brought {
                // One after the other: the whole export is one cut, and other exports must be written back meanwhile. A failure
                // or a timeout stops no other export.
                Ok(()) => drop(timeout(BRING_PATIENCE, self.write_back(&name)).await),
                Err(RouterError::NotFound { .. } | RouterError::Stopping) => {}
                Err(error) => {
                    failed += 1;
                    tracing::warn!(
                        export = name,
                        error = %chain(&error),
                        "an export that was made before there was a store could not be brought to it"
                    );
                }
            }
        }
        failed
    }

    /// Creates the volume of one export, and links the export to the volume.
    async fn bring(&self, held: &HeldExport) -> Result<(), RouterError> {
        let (record, name) = (held.record(), held.entry.name.clone());
        let volume = self.open(&held.entry).volume();
        if volume.remote().is_some() || record.desired == Desired::Deleted {
            return Ok(());
        }
        let size = ExportSize::new(record.size_bytes)?;
        let begin =
            self.storage.begin(name.clone(), InitialContent::Blank(size), None, record.properties(), false);
        let begun = self.ask(name.as_str(), begin).await?;
        let Some(Begun { resume, is_released, properties: _ }) = begun else {
            return Ok(());
        };
        if is_released {
            // Left by the creation of an export of this name that stopped.
            held.write(&self.catalog, |record| record.may_be_released = true).await?;
        }
        self.catalog.change(Change::Link(record.export_id(), resume.clone())).await?;
        self.storage.link(volume, record.size_bytes, &resume);
        volume.set_properties(&record.properties(), false);
        if is_released && let Err(error) = self.take_back(held).await {
            tracing::warn!(export = %name, error = %chain(&error), "a released export could not be taken back");
            self.ask_later(&held.entry);
        }
        tracing::info!(export = %name, "an export that was made before there was a store is brought to it");
        Ok(())
    }
}
