//! Limits and weight of an export: how they are chosen, and changed while the export is served.
//!
//! Owns the meaning of a change. Does not own the values (`properties::limits`) nor the record (`catalog`). The settings belong to
//! this host's catalog, as the number of queues does: a volume takes no settings to another host, and a fork none to the new
//! export. Invariant: the export in memory never has settings which the catalog lacks.

use std::sync::Arc;
use std::time::Duration;

use super::Router;
use super::catalog::record::Desired;
use super::error::RouterError;
use super::info::ExportInfo;
use crate::properties::limits::{Limit, Settings};

/// A change of limits and weight. A setting not named stays as before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// In the order of [`Limit::ALL`]; `Some(None)` ends the limit.
    pub rates: [Option<Option<u64>>; 4],
    /// The time's worth of each limit which may be used at once.
    pub burst: Option<Duration>,
    /// The export's part where exports share.
    pub weight: Option<u16>,
}

impl SettingsChange {
    /// The settings after this change of `settings`.
    pub(super) fn applied_to(&self, settings: &Settings) -> Settings {
        let mut limits = settings.limits;
        limits.burst = self.burst.unwrap_or(limits.burst);
        for (limit, change) in Limit::ALL.into_iter().zip(self.rates) {
            if let Some(rate) = change {
                limits.set_rate(limit, rate);
            }
        }
        Settings { limits, weight: self.weight.unwrap_or(settings.weight) }
    }

    /// Checks each value of the change.
    pub(super) fn check(&self) -> Result<(), RouterError> {
        let refused = |error: crate::properties::limits::OutOfBounds| RouterError::Parameter {
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
            held.write(&router.catalog, |record| record.set_settings(&settings)).await?;
            if let Some(export) = held.entry().export() {
                export.set_settings(&settings);
            }
            tracing::info!(export = %held.entry().name(), ?settings, "limits and weight of an export set");
            Ok(held.entry().info())
        })
        .await
    }
}
