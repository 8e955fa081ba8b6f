//! The properties of an export: how they are chosen, and changed while the export is served.
//!
//! Owns when a change counts. Does not own the values (`properties`) nor the record (`catalog`). Catalog first, store next: a change
//! counts here although the store is away, and is in the store's next manifest of the volume. Invariants: the export in memory never has
//! properties which the catalog lacks; a durability of more than this host is acknowledged when the store names the durability and has
//! everything acknowledged before, so that it is true of every FLUSH, on whichever host.

use std::sync::Arc;

use super::Router;
use super::create::check_parameter;
use super::entry::ExportInfo;
use super::error::RouterError;
use super::state::State;
use crate::properties::limits::Settings;
use crate::properties::{Durability, Properties, PropertiesChange};

impl PropertiesChange {
    /// Checks each value of the change.
    pub(super) fn check(&self) -> Result<(), RouterError> {
        if let Some(Durability::Bounded(bound)) = self.durability
            && !bound.is_allowed()
        {
            return Err(RouterError::Bound);
        }
        if self.on_unreachable.is_some_and(|on_unreachable| !on_unreachable.is_allowed()) {
            return Err(RouterError::FailAfter);
        }
        check_parameter("weight", self.weight, Settings::WEIGHT_MAX)?;
        Ok(self.applied_to(&Properties::default()).settings.check()?)
    }

    /// Checks that the existing export `name` has the properties that a request to create the export names.
    pub(super) fn compare(&self, name: &str, existing: &Properties) -> Result<(), RouterError> {
        let wanted = self.applied_to(existing);
        let property = match existing {
            _ if wanted == *existing => return Ok(()),
            _ if wanted.durability != existing.durability => "durability",
            _ if wanted.on_unreachable != existing.on_unreachable => "on-unreachable",
            _ => "limits or weight",
        };
        Err(RouterError::OtherProperty { name: name.to_owned(), property })
    }
}

impl Router {
    /// Changes properties of an export, also for requests which wait, except READs that wait for the store. Asking for the same twice is
    /// no error.
    ///
    /// # Errors
    /// [`RouterError::NotWrittenBack`] when the store did not take a durability in time: it counts here already, and reaches the store
    /// later.
    pub async fn set(
        self: &Arc<Self>,
        name: &str,
        change: PropertiesChange,
    ) -> Result<ExportInfo, RouterError> {
        change.check()?;
        self.on_held(name, move |router, held| async move {
            let (record, entry) = (held.living_record()?, Arc::clone(&held.entry));
            let properties = change.applied_to(&record.properties());
            let is_promise = change.durability.is_some() && properties.durability != Durability::Local;
            if is_promise && !entry.is_stored() {
                return Err(RouterError::NotInStore { name: record.name });
            }
            held.write(&router.catalog, |record| record.set_properties(&properties)).await?;
            // Also where nothing changes here: before a restart the store may not have taken the change.
            let is_due = is_promise || properties != record.properties();
            if is_due && entry.is_stored() {
                router.open(&entry);
            }
            if let Some(export) = entry.export() {
                export.set_settings(&properties.settings);
                export.volume().set_properties(&properties, is_promise);
            }
            if is_due && entry.state() == State::Detached {
                router.release(&held).await;
            }
            tracing::info!(export = %entry.name, ?properties, "properties of an export set");
            // Other operations need not wait for the store.
            drop(held);
            if is_promise {
                router.write_back_soon(&record.name).await?;
            }
            Ok(entry.info())
        })
        .await
    }
}
