//! The ways out for an export that this host has lost: another host has the export, or the store has another history of the
//! export.
//!
//! Owns the order of steps. Does not own how a loss is noticed (`store::volume`). Invariant: data that only this host has is
//! given up only when the user says so, and only after the volume in the store is taken over.

use std::sync::Arc;

use super::ExportName;
use super::Router;
use super::catalog::record::Desired;
use super::create::CreatedExport;
use super::entry::HeldExport;
use super::error::RouterError;
use super::removal::Users;
use super::size::ExportSize;
use super::state::State;
use super::storage::Begun;
use crate::properties::{Properties, PropertiesChange};
use crate::store::volume::VolumeError;
use crate::units::SECTOR_BYTES;

impl Router {
    /// Takes the volume of a lost export over, and has the export go on with content and properties in the store, the latter with
    /// `change`. Data that only this host has is given up.
    pub async fn discard_local(
        self: &Arc<Self>,
        name: &str,
        change: PropertiesChange,
    ) -> Result<CreatedExport, RouterError> {
        change.check()?;
        self.on_held(name, move |router, held| async move { router.discard_held(held, &change).await }).await
    }

    async fn discard_held(
        &self,
        held: HeldExport,
        change: &PropertiesChange,
    ) -> Result<CreatedExport, RouterError> {
        let (record, name) = (held.living_record()?, held.entry.name.clone());
        if !held.entry.is_lost() {
            // The store may not have been asked since the loss. The answer is in `lost`.
            let _: Result<bool, RouterError> = self.store_confirms(&held.entry).await;
        }
        let volume = Arc::clone(self.open(&held.entry).volume());
        if volume.lost().is_none() {
            return Err(RouterError::NotLost { name: record.name });
        }
        // The users of a device must not see the content change.
        if held.entry.state() != State::Detached {
            self.detach_held(&held, Users::Spare).await?;
        }
        let regain = async {
            let regained = self.storage.regain(name.clone(), Arc::clone(&volume)).await;
            regained.map_err(|source| match source {
                VolumeError::OtherVolume { .. } => RouterError::Replaced { name: name.to_string(), source },
                source => RouterError::Store { name: name.to_string(), source },
            })
        };
        let begun = self.unless_stopping(regain).await?.ok_or(RouterError::NoStore)?;
        let Begun { resume, properties: in_store, .. } = begun;
        let properties = change.applied_to(&in_store);
        let size = ExportSize::new(resume.size_sectors.saturating_mul(SECTOR_BYTES))?;
        let figures = volume.figures();
        let held = self
            .replace(held, resume, |record| {
                record.size_bytes = size.bytes();
                record.rolls_back_to = None;
                record.set_properties(&properties);
                // Before the device a manifest is made, and then the store has the properties.
                record.may_be_released = properties != in_store;
            })
            .await?;
        tracing::warn!(
            export = %name, dirty_bytes = figures.dirty_bytes, last_seq = figures.last_seq.0,
            "what was only here of an export is given up; it goes on with what the store has"
        );
        self.take_back(&held).await?;
        if record.desired == Desired::Attached {
            self.attach_held(&held).await?;
        }
        let is_assumed = in_store == Properties::default() && change.durability.is_none();
        Ok(CreatedExport { info: held.entry.info(), existed: true, is_assumed })
    }

    /// Creates a volume called `name` in the store with the content that this host has of the lost export `of`; or, with `manifest`, of any
    /// export without a device, with the content of that older manifest below the data at risk. The export is
    /// held until the store has everything, so nobody can give the content up meanwhile. No deadlock: the creation of `name`
    /// holds the lock of the name and waits for `of`, and nobody who holds an export waits for a name.
    pub(super) async fn rescue(
        &self,
        name: &ExportName,
        of: &ExportName,
        manifest: Option<u64>,
    ) -> Result<Begun, RouterError> {
        let held = self.hold(of.as_str()).await?;
        held.living_record()?;
        let volume = Arc::clone(self.open(&held.entry).volume());
        match manifest {
            _ if volume.lost().is_some() => {}
            None => return Err(RouterError::NotLost { name: of.to_string() }),
            Some(_) if held.entry.state() != State::Detached => {
                return Err(RouterError::NotDetached { name: of.to_string() });
            }
            Some(manifest) => tracing::warn!(
                export = %of, fork = %name, manifest,
                "a fork begins with an older manifest: what was written back after it, and is nowhere else, is not in the fork"
            ),
        }
        let size_sectors = self.open(&held.entry).sectors();
        let rescued = self.storage.rescue(name.clone(), volume, size_sectors, manifest).await;
        let rescued = rescued.map_err(|source| RouterError::Store { name: of.to_string(), source })?;
        let resume = rescued.ok_or(RouterError::NoStore)?;
        Ok(Begun { resume, is_released: false, properties: held.record().properties() })
    }
}
