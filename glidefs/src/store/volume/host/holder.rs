//! The holder that a manifest names: the host that has the volume.
//!
//! Owns how this host enters itself as the holder, and which manifests forbid that. Does not own when this host does so
//! (`ownership`).

use super::Host;
use crate::store::format::{Deletion, Holder, Manifest, Sections};
use crate::store::ids::{StoreName, VolumeId};
use crate::store::volume::error::{Held, VolumeError};
use crate::store::volume::notes::ManifestHash;
use crate::store::volume::types::next_number;

impl Host {
    /// The manifest after `newest` with which this host takes the volume.
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

    /// `sections` with this host as the holder, and without uploaded packs: a manifest that continues an upload lists the
    /// uploaded packs itself.
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
        // Earlier versions marked a deleted volume by an object of its own.
        if newest.sections.deleted.is_some() || self.store.is_marked_deleted(volume, newest.writer).await? {
            return Err(VolumeError::Deleted { volume });
        }
        Ok(())
    }

    /// The other host that has the volume of `newest`, whose bytes have this `hash`, and has not released the volume. A copy of this
    /// host is another host, though it writes under the same name: what it wrote is not noted here.
    fn other_holder(&self, newest: &Manifest, hash: &ManifestHash) -> Option<Box<Held>> {
        let holder = newest.sections.holder.as_ref();
        let is_noted = || self.options.notes.intended(newest.volume, newest.number, hash) == Some(true);
        // Earlier versions named no holder, and took no notes.
        let is_own = newest.writer == self.options.writer && (holder.is_none() || is_noted());
        (!is_own && !newest.is_released()).then(|| {
            Box::new(Held {
                name: newest.name.clone(),
                host: holder.map(|holder| holder.host.clone()),
                heard_unix_millis: newest.created_unix_millis,
            })
        })
    }

    /// An error when another host has the volume of `newest` and has not released the volume.
    pub fn check_not_held(&self, newest: &Manifest, hash: &ManifestHash) -> Result<(), VolumeError> {
        self.other_holder(newest, hash).map_or(Ok(()), |held| Err(VolumeError::Held(held)))
    }

    /// The error of a `name` that `volume` has: two requests, to name the host.
    pub async fn name_taken(&self, name: &StoreName, volume: VolumeId) -> VolumeError {
        let newest = self.store.latest_manifest_hashed(volume, None).await.ok().flatten();
        let held = newest.and_then(|(newest, hash)| self.other_holder(&newest, &hash));
        VolumeError::NameTaken { name: name.clone(), held }
    }
}

impl Manifest {
    /// Whether the deletion of the volume can no longer be undone.
    pub(in crate::store) fn is_gone(&self) -> bool {
        self.sections.deleted == Some(Deletion::ForGood)
    }

    /// Whether the host that had the volume has released the volume, and has nothing left on the way to the store.
    pub(in crate::store) fn is_released(&self) -> bool {
        self.sections.holder.as_ref().is_some_and(|holder| holder.released)
    }
}
