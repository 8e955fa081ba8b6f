//! Limits and weight of an export: how they are chosen, and changed while the export is served.
//!
//! Owns when a change counts. Does not own the values (`properties`) nor the record (`catalog`). Catalog first, store next: a change
//! is accepted although the store is away, and is in the store's next manifest of the volume. Invariant: the export in memory never
//! has settings which the catalog lacks.

use std::sync::Arc;

use super::Router;
use super::catalog::record::Desired;
use super::error::RouterError;
use super::info::ExportInfo;
use super::state::State;
use crate::properties::limits::{OutOfBounds, Settings, SettingsChange};

impl SettingsChange {
    /// Checks each value of the change.
    pub(super) fn check(&self) -> Result<(), RouterError> {
        let refused = |error: OutOfBounds| RouterError::Parameter {
            parameter: error.setting,
            value: error.value,
            min: error.min,
            max: error.max,
        };
        self.applied_to(&Settings::default()).check().map_err(refused)
    }

    /// Checks that the existing export `name` has the settings of a request to create the export.
    pub(super) fn compare(&self, name: &str, existing: &Settings) -> Result<(), RouterError> {
        if self.applied_to(existing) == *existing {
            return Ok(());
        }
        Err(RouterError::OtherSettings { name: name.to_owned() })
    }
}

impl Router {
    /// Changes limits and weight of an export, also for requests which wait. Asking for the same twice is no error.
    pub async fn set(
        self: &Arc<Self>,
        name: &str,
        change: SettingsChange,
    ) -> Result<ExportInfo, RouterError> {
        change.check()?;
        self.on_held(name, move |router, held| async move {
            let record = held.record();
            if record.desired == Desired::Deleted {
                return Err(RouterError::HalfDeleted { name: record.name });
            }
            let settings = change.applied_to(&record.settings());
            let is_change = settings != record.settings();
            held.write(&router.catalog, |record| record.set_settings(&settings)).await?;
            if is_change && held.entry().is_stored() {
                // The store has to be told.
                router.open(held.entry());
            }
            if let Some(export) = held.entry().export() {
                export.set_settings(&settings);
                export.volume().keep_properties(held.record().properties());
            }
            if is_change && held.entry().state() == State::Detached {
                router.release(&held).await;
            }
            tracing::info!(export = %held.entry().name(), ?settings, "limits and weight of an export set");
            Ok(held.entry().info())
        })
        .await
    }
}
