//! Snapshots, rollback and forks: keeping a state, going back to one, and branching one off.
//!
//! Owns these operations. Does not own which operation a user wants. Invariant: no operation copies data, and no operation
//! that ends well lists a pack as content which garbage collection may have removed.

use std::collections::HashSet;
use std::time::Duration;

use super::commit::Committed;
use super::create::Beginning;
use super::error::VolumeError;
use super::limits::{ROUNDS_MAX, UPLOAD_TIME_MAX};
use super::types::{SnapshotInfo, StatePoint};
use super::volume_store::VolumeStore;
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::{Manifest, Origin, PackRef, Sections, Snapshot};
use crate::store::ids::{PackId, StoreName};

impl VolumeStore {
    /// A new volume with the content of `from`, whoever writes the volume of `from`: fewer than ten requests. No data is copied.
    pub async fn fork(&self, from: &StatePoint, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        let begun = self.now();
        let (state, newest) = self.host.state_and_newest(from).await?;
        let beginning = Beginning {
            size_sectors: state.size_sectors,
            origin: Some(Origin { volume: state.volume, manifest: state.number }),
            packs: state.packs.clone(),
            damaged: state.sections.damaged.clone(),
        };
        let fork = self.host.begin(name, beginning).await?;
        // No clock tells for sure how long this host stood still.
        let used = async {
            in_time(begun, self.now())?;
            if self.still_uses(from, &state, newest).await? {
                return Ok(());
            }
            self.host.will_stay(fork.id(), state.packs.clone()).await
        };
        if let Err(error) = used.await {
            fork.delete().await?;
            return Err(error);
        }
        Ok(fork)
    }

    /// Whether `from` still means `state`, and so has used the packs of `state` ever since `state` was read. `newest`: the number of
    /// the volume's newest manifest then.
    async fn still_uses(
        &self,
        from: &StatePoint,
        state: &Manifest,
        newest: Option<u64>,
    ) -> Result<bool, VolumeError> {
        let Some(newest) = newest else { return Ok(false) };
        let now = self.host.store.newest_manifest(from.volume, newest.checked_sub(1)).await?;
        let is_newest = now == Some(newest);
        let Some(name) = &from.snapshot else { return Ok(is_newest) };
        let again = if is_newest {
            self.host.snapshot(from.volume, name).await
        } else {
            self.host.state(from).await
        };
        Ok(again.is_ok_and(|again| again == *state))
    }

    fn now(&self) -> Duration {
        self.host.options.clock.since_boot()
    }
}

impl VolumeWriter {
    /// Keeps the state of the last commit under a name: three requests.
    pub async fn snapshot(&self, name: &StoreName) -> Result<SnapshotInfo, VolumeError> {
        let _change = self.shared.change.lock().await;
        let host = &self.host;
        let begun = host.options.clock.since_boot();
        self.writable()?;
        self.check_newest().await?;
        let mut manifest = (*self.manifest().await?).clone();
        // Packs of an upload that goes on belong to a later state.
        manifest.sections.uploaded.clear();
        let created_unix_millis = host.options.clock.unix_millis();
        let snapshot = Snapshot { name: name.clone(), created_unix_millis, manifest };
        if host.store.create_snapshot(&snapshot).await? == Created::Existed {
            self.check_existing(name, &snapshot.manifest).await?;
            return Err(VolumeError::SnapshotExists { name: name.clone() });
        }
        // No clock tells for sure how long this host stood still. As long as the manifest is the newest, the manifest uses the packs.
        let used = async {
            in_time(begun, host.options.clock.since_boot())?;
            self.check_newest().await?;
            let is_newest = self.head().number == snapshot.manifest.number;
            if is_newest { Ok(()) } else { Err(VolumeError::Contended { volume: self.id() }) }
        };
        if let Err(error) = used.await {
            self.delete_snapshot(name).await?;
            return Err(error);
        }
        Ok(SnapshotInfo { name: name.clone(), created_unix_millis })
    }

    /// An error when the snapshot `name` cannot be used. The snapshot may have arrived long after its host sent the snapshot, or
    /// failed to take it back. `newest`: the newest manifest.
    async fn check_existing(&self, name: &StoreName, newest: &Manifest) -> Result<(), VolumeError> {
        let broken = || VolumeError::SnapshotBroken { name: name.clone() };
        let kept = match self.host.snapshot(self.id(), name).await {
            Err(VolumeError::NoSuchSnapshot { .. }) => return Ok(()),
            Err(error) if error.is_damaged() => return Err(broken()),
            kept => kept?,
        };
        match self.host.will_stay(self.id(), packs_beside(&kept, newest)).await {
            Err(VolumeError::Gone { .. }) => Err(broken()),
            stay => stay,
        }
    }

    /// Snapshots of this volume: one request.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, VolumeError> {
        VolumeStore::of(self.host.clone()).snapshots(self.id()).await
    }

    /// Deletes a snapshot: one request. A missing snapshot counts as deleted.
    pub async fn delete_snapshot(&self, name: &StoreName) -> Result<(), VolumeError> {
        VolumeStore::of(self.host.clone()).delete_snapshot(self.id(), name).await
    }

    /// Goes back to a snapshot: two requests; if the newest manifest does not list all packs of the snapshot, three more, and one
    /// for each of these packs. Later writes are given up; sequence numbers go on.
    ///
    /// The packs of the snapshot stay in use only while the snapshot exists, and the manifest of the rollback may be under way
    /// for any time. So the manifest before keeps the packs, and the packs and the snapshot are in the store after that manifest.
    /// The packs of a snapshot that arrived late may be gone.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when a pack of the snapshot is gone: the volume is unchanged.
    pub async fn rollback(&self, name: &StoreName) -> Result<Committed, VolumeError> {
        let _change = self.shared.change.lock().await;
        self.refresh().await?;
        let begun = self.host.options.clock.since_boot();
        let state = self.host.snapshot(self.id(), name).await?;
        let listed = NewPacks::since(begun, self.head().number, state.packs.iter().copied());
        let edit = |base: &Manifest| {
            listed.are_kept_by(base).then(|| Manifest {
                size_sectors: state.size_sectors,
                generation: base.generation.saturating_add(1),
                packs: state.packs.clone(),
                sections: self
                    .host
                    .holding(&Sections { damaged: state.sections.damaged.clone(), ..base.sections.clone() }),
                ..base.clone()
            })
        };
        for _ in 0..ROUNDS_MAX {
            let base = self.manifest().await?;
            if !listed.are_kept_by(&base) {
                self.keep(&listed).await?;
                // A manifest that came too late names packs that may be gone. They are no content, so nothing is lost.
                in_time(begun, self.host.options.clock.since_boot())?;
            }
            // Also of packs that an earlier manifest keeps: an earlier rollback may have been refused after that manifest.
            let beside = packs_beside(&state, &base);
            if !beside.is_empty() {
                self.host.will_stay(self.id(), beside).await?;
                // As long as the snapshot is there, no run of garbage collection has seen the packs unused.
                if self.host.snapshot(self.id(), name).await? != state {
                    return Err(VolumeError::NoSuchSnapshot { name: name.clone() });
                }
            }
            if let Some(published) = self.publish(&listed, edit).await? {
                return Ok(self.committed(&published, &NewPacks::default()));
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    /// A new volume with the content of the last commit: see [`VolumeStore::fork`].
    pub async fn fork(&self, name: &StoreName) -> Result<Self, VolumeError> {
        VolumeStore::of(self.host.clone()).fork(&StatePoint { volume: self.id(), snapshot: None }, name).await
    }

    /// A new volume with the content of the newest manifest this writer knows, even if the volume is lost. Makes one listing more,
    /// and one request for each pack.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when garbage collection has removed a part of that content.
    pub async fn fork_known(&self, name: &StoreName) -> Result<Self, VolumeError> {
        let host = &self.host;
        let begun = host.options.clock.since_boot();
        let gone = || VolumeError::Gone { volume: self.id() };
        let base = match self.manifest().await {
            Err(error) if error.is_missing() => return Err(gone()),
            base => base?,
        };
        let beginning = Beginning {
            size_sectors: base.size_sectors,
            origin: Some(Origin { volume: base.volume, manifest: base.number }),
            packs: base.packs.clone(),
            damaged: base.sections.damaged.clone(),
        };
        let fork = host.begin(name, beginning).await?;
        // From now on the new volume lists the packs.
        let stay = host.will_stay(self.id(), base.packs.clone()).await;
        if let Err(error) = stay.and_then(|()| in_time(begun, host.options.clock.since_boot())) {
            fork.delete().await?;
            return Err(error);
        }
        Ok(fork)
    }
}

/// The packs listed by `manifest`, without those listed as content by `newest`, which the newest manifest keeps.
fn packs_beside(manifest: &Manifest, newest: &Manifest) -> Vec<PackRef> {
    let listed: HashSet<PackId> = newest.packs.iter().map(|pack| pack.pack).collect();
    manifest.packs.iter().filter(|pack| !listed.contains(&pack.pack)).copied().collect()
}

/// An error when garbage collection may have stopped waiting for an operation that began at `begun`.
fn in_time(begun: Duration, now: Duration) -> Result<(), VolumeError> {
    let elapsed = now.saturating_sub(begun);
    if elapsed <= UPLOAD_TIME_MAX { Ok(()) } else { Err(VolumeError::TooSlow { elapsed }) }
}
