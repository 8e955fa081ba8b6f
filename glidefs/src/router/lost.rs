//! The ways out for an export that this host has lost: another host has it, or the store has another history.
//!
//! Owns the order of steps. Does not own how a loss is noticed (`store::volume`). Invariant: what is only here is given up when
//! the user says so, and not before what the store has can be opened.

use std::sync::Arc;

use super::entry::Held;
use super::error::RouterError;
use super::name::ExportName;
use super::operations::confirm;
use super::record::Desired;
use super::removal::Users;
use super::size::ExportSize;
use super::state::State;
use super::{ExportInfo, Router};
use crate::store::volume::{Resume, VolumeError};
use crate::units::SECTOR_BYTES;

impl Router {
    /// Has an export that was lost go on with what the store has, which is taken over. What is only here is given up.
    pub async fn discard_local(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.on_held(name, |router, held| async move {
            let held = router.discard_held(held).await?;
            Ok(held.entry().info())
        })
        .await
    }

    async fn discard_held(&self, held: Held) -> Result<Held, RouterError> {
        let (record, name) = (held.record(), held.entry().name().clone());
        if record.desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: record.name });
        }
        if held.entry().export().volume().lost().is_none() {
            // Nobody may have asked yet.
            let _: Result<bool, RouterError> =
                self.unless_stopping(confirm(&held, self.options.confirm_patience)).await;
        }
        let volume = Arc::clone(held.entry().export().volume());
        if volume.lost().is_none() {
            return Err(RouterError::NotLost { name: record.name });
        }
        // What used the device has seen another content.
        if held.entry().state() != State::Detached {
            self.detach_held(&held, Users::Spare).await?;
        }
        let regain = async {
            let regained = self.volumes.regain(name.clone(), Arc::clone(&volume)).await;
            regained.map_err(|source| match source {
                VolumeError::OtherVolume { .. } => RouterError::Replaced { name: name.to_string(), source },
                source => RouterError::Store { name: name.to_string(), source },
            })
        };
        let resume = self.unless_stopping(regain).await?.ok_or(RouterError::NoStore)?;
        let size = ExportSize::new(resume.size_sectors.saturating_mul(SECTOR_BYTES))?;
        let figures = volume.figures();
        let held = self
            .replace(held, resume, |record| {
                record.size_bytes = size.bytes();
                record.rolls_back_to = None;
                record.may_be_released = false;
            })
            .await?;
        tracing::warn!(
            export = %name, dirty_bytes = figures.dirty_bytes, last_seq = figures.last_seq.0,
            "what was only here of an export is given up; it goes on with what the store has"
        );
        if record.desired == Desired::Attached {
            self.attach_held(&held).await?;
        }
        Ok(held)
    }

    /// A volume in the store, called `name`, with what is here of an export that was lost. Nobody can give up what is here of the
    /// export meanwhile: the export is held until the store has everything. Whoever is to have `name` waits for `of`, and nobody
    /// who holds an export waits for a name.
    pub(super) async fn begin_from_lost(
        &self,
        name: &ExportName,
        of: &ExportName,
    ) -> Result<Resume, RouterError> {
        let held = self.hold(of.as_str()).await?;
        if held.record().desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: of.to_string() });
        }
        let volume = Arc::clone(held.entry().export().volume());
        if volume.lost().is_none() {
            return Err(RouterError::NotLost { name: of.to_string() });
        }
        let size_sectors = held.entry().export().sectors();
        let begun = self.volumes.rescue(name.clone(), volume, size_sectors).await;
        let begun = begun.map_err(|source| RouterError::Store { name: of.to_string(), source })?;
        begun.ok_or(RouterError::NoStore)
    }
}
