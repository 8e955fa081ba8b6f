//! Which host has a volume: opening one, taking one over, and giving one up.
//!
//! Owns the holder that manifests name. Does not own what a host that lost a volume does (`land`), nor how a volume ends
//! (`end`). Invariant: a volume that a host has not released is opened by another host only on purpose.

use std::sync::Arc;

use super::host::{Host, ROUNDS_MAX, Volumes, next};
use super::land::Uploads;
use super::{Held, Resume, Volume, VolumeError};
use crate::store::client::Created;
use crate::store::format::{Deletion, Holder, Manifest, Sections};
use crate::store::ids::{StoreName, VolumeId};

impl Volumes {
    /// Opens the volume of a name, which no other host has: the host that had it has released it, or was this one.
    ///
    /// # Errors
    /// [`VolumeError::Held`] when another host has not released it.
    pub async fn open(&self, name: &StoreName) -> Result<Volume, VolumeError> {
        self.acquire(self.named(name).await?, false).await
    }

    /// Takes over the volume of a name: whoever has it is fenced, and loses what was not committed.
    pub async fn take_over(&self, name: &StoreName) -> Result<Volume, VolumeError> {
        self.acquire(self.named(name).await?, true).await
    }

    async fn named(&self, name: &StoreName) -> Result<VolumeId, VolumeError> {
        self.find(name).await?.ok_or_else(|| VolumeError::NoSuchName { name: name.clone() })
    }

    pub(in crate::store) async fn acquire(
        &self,
        volume: VolumeId,
        takes_over: bool,
    ) -> Result<Volume, VolumeError> {
        for _ in 0..ROUNDS_MAX {
            let newest = self.0.store.latest_manifest(volume, None).await?;
            let newest = newest.ok_or(VolumeError::NoSuchVolume { volume })?;
            self.0.check_not_deleted(&newest).await?;
            if !takes_over {
                self.0.check_not_held(&newest)?;
            }
            let begun = self.0.options.clock.since_boot();
            let manifest = self.0.next_of(newest);
            if self.0.create_manifest(&manifest).await? == Created::Created {
                return Ok(Volume::new(self.0.clone(), Arc::new(manifest), begun));
            }
        }
        Err(VolumeError::Contended { volume })
    }
}

impl Host {
    /// The manifest with which this host takes the volume of `newest`.
    pub fn next_of(&self, newest: Manifest) -> Manifest {
        Manifest {
            number: next(newest.number),
            epoch: next(newest.epoch),
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

    fn held_as(&self, sections: &Sections, released: bool) -> Sections {
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
    fn check_not_held(&self, newest: &Manifest) -> Result<(), VolumeError> {
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

impl Volume {
    /// Gives the volume up, so that another host may open it: two requests. The next commit takes it back, unless another host
    /// has opened it.
    pub async fn release(&self) -> Result<Resume, VolumeError> {
        self.hold_as(true).await
    }

    /// Takes back a volume that this host may have released: two requests. There is a new manifest in any case: a release that is
    /// still on its way has the number of that one, and comes too late.
    pub async fn hold(&self) -> Result<Resume, VolumeError> {
        self.hold_as(false).await
    }

    async fn hold_as(&self, released: bool) -> Result<Resume, VolumeError> {
        let _change = self.0.change.lock().await;
        self.writable()?;
        self.check_newest().await?;
        let host = &self.0.host;
        let edit = |base: &Manifest| {
            let sections = host.held_as(&base.sections, released);
            (!(released && base.is_released())).then(|| Manifest { sections, ..base.clone() })
        };
        let landed = self.land(&Uploads::default(), edit).await?;
        Ok(landed.map_or_else(|| self.state(), |landed| self.resume_landed(&landed)))
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
