//! The holder that a manifest names: the host that has the volume.
//!
//! Owns how this host enters itself as the holder, and which manifests let this host do so. Does not own when (`ownership`).

use super::Host;
use crate::store::format::{Deletion, Holder, Manifest, Sections};
use crate::store::volume::error::{Held, VolumeError};
use crate::store::volume::types::next_number;

impl Host {
    /// The manifest with which this host takes the volume of `newest`.
    pub fn next_of(&self, newest: Manifest) -> Manifest {
        Manifest {
            number: next_number(newest.number),
            epoch: next_number(newest.epoch),
            writer: self.options.writer,
            created_unix_millis: self.options.clock.unix_millis(),
            sections: self.holding(&newest.sections),
            ..newest
        }
    }

    /// `sections` of a volume that this host writes, without packs on their way: a manifest that goes on with an upload says so.
    pub fn holding(&self, sections: &Sections) -> Sections {
        Sections { uploaded: Vec::new(), ..self.held_as(sections, false) }
    }

    pub fn held_as(&self, sections: &Sections, released: bool) -> Sections {
        let holder = Some(Holder { host: self.options.host.clone(), released });
        Sections { holder, ..sections.clone() }
    }

    /// An error when the volume of `newest` is deleted.
    pub async fn check_not_deleted(&self, newest: &Manifest) -> Result<(), VolumeError> {
        let volume = newest.volume;
        if newest.sections.deleted.is_some() {
            return Err(VolumeError::Deleted { volume });
        }
        // Earlier versions marked a deleted volume by an object of its own. The mark of a writer that another one had followed
        // is void.
        let tombstone = self.store.tombstone(volume).await?;
        if tombstone.is_some_and(|tombstone| tombstone.writer == newest.writer) {
            return Err(VolumeError::Deleted { volume });
        }
        Ok(())
    }

    /// An error when another host has the volume of `newest`.
    pub fn check_not_held(&self, newest: &Manifest) -> Result<(), VolumeError> {
        let holder = newest.sections.holder.as_ref();
        if newest.writer == self.options.writer || newest.is_released() {
            return Ok(());
        }
        Err(VolumeError::Held(Box::new(Held {
            name: newest.name.clone(),
            host: holder.map(|holder| holder.host.clone()),
            heard_unix_millis: newest.created_unix_millis,
        })))
    }
}

impl Manifest {
    /// Whether the volume is deleted for good.
    pub(in crate::store) fn is_gone(&self) -> bool {
        self.sections.deleted == Some(Deletion::ForGood)
    }

    /// Whether the host that had the volume has given the volume up, with all that was on the way into the store.
    pub(in crate::store) fn is_released(&self) -> bool {
        self.sections.holder.as_ref().is_some_and(|holder| holder.released)
    }
}
