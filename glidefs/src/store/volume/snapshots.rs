//! Snapshots, rollback and forks: keeping a state, going back to one, and branching one off.
//!
//! Owns these operations. Does not own which operation a user wants. Invariant: no operation copies data, and no operation
//! that ends well lists a pack as content which garbage collection may have removed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::commit::Committed;
use super::error::VolumeError;
use super::host::Host;
use super::limits::{ROUNDS_MAX, UPLOAD_TIME_MAX};
use super::types::{SnapshotInfo, StatePoint, Taker};
use super::volume_store::{Beginning, VolumeStore};
use super::writer::VolumeWriter;
use super::writer::new_packs::NewPacks;
use crate::store::client::Created;
use crate::store::format::{Manifest, PackRef, Sections, Snapshot};
use crate::store::ids::{PackId, StoreName};
use crate::store::key::Key;

impl VolumeStore {
    /// A new volume with the content of `from`, whoever writes the volume of `from`: fewer than ten requests, and one for each pack
    /// of a snapshot that the newest manifest does not list. No data is copied. The properties are those of the volume of `from`
    /// now, or those kept by the snapshot where the newest manifest cannot be read.
    ///
    /// After an error that proves nothing about the packs, the new volume may stay in the store. A repeated call takes the volume
    /// up; a deletion might arrive after that call.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when a part of the content of `from` is gone.
    pub async fn fork(&self, from: &StatePoint, name: &StoreName) -> Result<VolumeWriter, VolumeError> {
        let begun = self.now();
        let (state, newest) = self.host.state_and_newest(from).await?;
        let properties = newest.as_ref().unwrap_or(&state).sections.properties;
        let beginning = Beginning::fork_of(&state, properties);
        let fork = self.host.begin(name, beginning).await?;
        let used = async {
            // No clock tells for sure how long this host stood still.
            in_time(begun, self.now())?;
            let packs = self.not_used(state, newest).await?;
            self.host.will_stay(fork.id(), packs).await
        };
        or_undo(used.await, || fork.delete()).await?;
        Ok(fork)
    }

    /// The packs of `state` that may have been unused since `state` was read, or before. `newest`: the newest manifest of the volume then.
    ///
    /// The newest manifest has used its own packs ever since, if the manifest is still the newest. A snapshot proves no use: the
    /// snapshot may have arrived long after the packs were removed.
    async fn not_used(&self, state: Manifest, newest: Option<Manifest>) -> Result<Vec<PackRef>, VolumeError> {
        let Some(newest) = newest.filter(proves_use) else { return Ok(state.packs) };
        let before = newest.number.checked_sub(1);
        let now = self.host.store.newest_manifest(newest.volume, before).await?;
        let is_newest = now == Some(newest.number);
        Ok(if is_newest { packs_beside(&state, &newest) } else { state.packs })
    }
}

impl VolumeWriter {
    /// Keeps the state of the last commit under a name: four requests. The key has a random part, so a deletion of an earlier snapshot
    /// with this name does nothing to this one, however late it arrives. After an error that proves nothing about the packs, the snapshot
    /// may stay in the store. A repeated call judges the snapshot; a deletion might arrive after that call.
    ///
    /// # Errors
    /// [`VolumeError::SnapshotExists`] and [`VolumeError::SnapshotBroken`], as [`Self::check_snapshot`].
    pub async fn snapshot(&self, name: &StoreName) -> Result<SnapshotInfo, VolumeError> {
        let _change = self.shared.change.lock().await;
        let host = &self.host;
        let begun = self.now();
        self.confirm().await?;
        self.check_snapshot(name).await?;
        let mut manifest = (*self.manifest().await?).clone();
        // Packs of an upload that goes on belong to a later state.
        manifest.sections.uploaded.clear();
        let created_unix_millis = host.options.clock.unix_millis();
        let key = name.made_unique(host.store.entropy());
        let snapshot = Snapshot { name: key.clone(), created_unix_millis, manifest };
        if host.store.create_snapshot(&snapshot).await? == Created::Existed {
            self.check_snapshot(name).await?;
            // The snapshot was deleted a moment ago.
            return Err(VolumeError::NoSuchSnapshot { name: name.clone() });
        }
        let undo = async || Ok(host.store.delete(&[Key::Snapshot(self.id(), key)]).await?);
        let number = snapshot.manifest.number;
        let used = async {
            self.check_newest().await?;
            // As long as the manifest is the newest, the manifest uses the packs. No clock tells for sure how long this host stood
            // still.
            let is_used = in_time(begun, self.now()).is_ok() && self.head().number == number;
            let packs = if is_used { Vec::new() } else { snapshot.manifest.packs.clone() };
            match host.will_stay(self.id(), packs).await {
                Err(VolumeError::Gone { .. }) => {
                    let elapsed = self.now().saturating_sub(begun);
                    Err(VolumeError::TooSlow { elapsed })
                }
                stay => stay,
            }
        };
        let used = used.await;
        if used.as_ref().is_err_and(VolumeError::is_fatal) {
            // The host that has the volume now may have taken the packs out of use. If the snapshot stays broken, those who come to use
            // the snapshot learn so.
            let stay = host.will_stay(self.id(), snapshot.manifest.packs).await;
            let _: Result<(), VolumeError> = or_undo(stay, undo).await;
            used?;
        } else {
            or_undo(used, undo).await?;
        }
        Ok(SnapshotInfo { name: name.clone(), created_unix_millis })
    }

    /// Whether the volume has no snapshot `name`: one request; if there is one, four more, and another for each pack of the snapshot that
    /// the newest manifest does not list. Waits for no change under way.
    ///
    /// # Errors
    /// [`VolumeError::SnapshotExists`] when the snapshot is there and can be used. [`VolumeError::SnapshotBroken`] when a part of the
    /// snapshot is gone: the snapshot may have arrived long after its host sent the snapshot, or failed to take it back.
    pub async fn check_snapshot(&self, name: &StoreName) -> Result<(), VolumeError> {
        let broken = || VolumeError::SnapshotBroken { name: name.clone() };
        let kept = match self.host.snapshot(self.id(), name).await {
            Err(VolumeError::NoSuchSnapshot { .. }) => return Ok(()),
            Err(error) if error.is_damaged() => return Err(broken()),
            kept => kept?,
        };
        let newest = self.host.store.latest_manifest(self.id(), None).await?;
        let newest = newest.ok_or(VolumeError::NoSuchVolume { volume: self.id() })?;
        Host::check_not_deleted(&newest)?;
        let packs = if proves_use(&newest) { packs_beside(&kept, &newest) } else { kept.packs };
        match self.host.will_stay(self.id(), packs).await {
            Ok(()) => Err(VolumeError::SnapshotExists { name: name.clone() }),
            Err(VolumeError::Gone { .. }) => Err(broken()),
            Err(error) => Err(error),
        }
    }

    /// Snapshots of this volume: one request.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, VolumeError> {
        let mut found = BTreeMap::new();
        for SnapshotInfo { name, created_unix_millis } in self.host.snapshot_keys(self.id()).await? {
            found.entry(name.without_unique()).or_insert(created_unix_millis);
        }
        let info = |(name, created_unix_millis)| SnapshotInfo { name, created_unix_millis };
        Ok(found.into_iter().map(info).collect())
    }

    /// Deletes a snapshot: two requests. A missing snapshot counts as deleted.
    pub async fn delete_snapshot(&self, name: &StoreName) -> Result<(), VolumeError> {
        let keys = self.host.keys_of_snapshot(self.id(), name).await?;
        let keys: Vec<_> = keys.into_iter().map(|key| Key::Snapshot(self.id(), key)).collect();
        Ok(self.host.store.delete(&keys).await?)
    }

    /// Goes back to a snapshot: three requests; if the newest manifest does not list all packs of the snapshot, three more, and one
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
        let begun = self.now();
        // The caller gives the rollback up for a snapshot that is gone.
        let is_missing = |error: &VolumeError| matches!(error, VolumeError::NoSuchSnapshot { .. });
        let snapshot = || self.host.store.insist(is_missing, || self.host.snapshot(self.id(), name));
        let state = snapshot().await?;
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
                in_time(begun, self.now())?;
            }
            // Also of packs that an earlier manifest keeps: an earlier rollback may have been refused after that manifest.
            let beside = packs_beside(&state, &base);
            if !beside.is_empty() {
                self.host.will_stay(self.id(), beside).await?;
                // As long as the snapshot is there, no run of garbage collection has seen the packs unused.
                if snapshot().await? != state {
                    return Err(VolumeError::NoSuchSnapshot { name: name.clone() });
                }
            }
            if let Some(published) = self.publish(&listed, edit).await? {
                return Ok(self.committed(&published));
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    /// A new volume with the content of the newest manifest this writer knows, even if the volume is lost; or of the older `manifest`,
    /// where the newest cannot be read. Makes one listing more, and one request for each pack.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when garbage collection has removed a part of that content, [`VolumeError::Fenced`] when another writer made
    /// the older manifest.
    pub async fn fork_known(&self, name: &StoreName, manifest: Option<u64>) -> Result<Self, VolumeError> {
        let host = &self.host;
        let begun = self.now();
        let gone = || VolumeError::Gone { volume: self.id() };
        let base = match manifest {
            Some(number) => Arc::new(host.store.manifest(self.id(), number).await?),
            None => match self.manifest().await {
                Err(error) if error.is_missing() => return Err(gone()),
                base => base?,
            },
        };
        // A copy of this host has the same epoch.
        if base.epoch > self.writer().epoch || base.number > self.head().number {
            return Err(VolumeError::Fenced(Taker::of(&base)));
        }
        let beginning = Beginning::fork_of(&base, self.properties_after(&base));
        let fork = host.begin(name, beginning).await?;
        // From now on the new volume lists the packs.
        let stay = host.will_stay(self.id(), base.packs.clone()).await;
        let stay = stay.and_then(|()| in_time(begun, self.now()));
        or_undo(stay, || fork.delete()).await?;
        Ok(fork)
    }
}

/// Whether all packs that `newest`, the newest manifest of a volume, lists are in use. The first manifest of a fork may have arrived
/// long after the packs were removed; whoever creates the second one makes sure that the packs are there.
fn proves_use(newest: &Manifest) -> bool {
    newest.number > 1 || newest.origin.is_none()
}

/// `used`, after `undo` if `used` proves that the new object must not stay: its packs are gone, or the object came too late.
async fn or_undo<F>(used: Result<(), VolumeError>, undo: impl FnOnce() -> F) -> Result<(), VolumeError>
where
    F: Future<Output = Result<(), VolumeError>>,
{
    if matches!(used, Err(VolumeError::Gone { .. } | VolumeError::TooSlow { .. })) {
        undo().await?;
    }
    used
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
