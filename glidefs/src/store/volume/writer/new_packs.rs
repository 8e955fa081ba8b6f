//! Packs that no manifest is known to keep: uploaded a moment ago, or of a snapshot to go back to.
//!
//! Owns the identity and the upload of a new pack, how old such a pack may be, and the last look at sectors that the manifest gives
//! up. Does not own creating the manifest (`publish`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::VolumeWriter;
use crate::store::client::Created;
use crate::store::error::BoxError;
use crate::store::format::{EncodedPack, Manifest, PackOptions, PackRef};
use crate::store::ids::PackId;
use crate::store::volume::cut::CutSource;
use crate::store::volume::error::{VolumeError, blocking};
use crate::store::volume::limits::UPLOAD_TIME_MAX;
use crate::units::Seq;

/// The error of a commit that would give up sectors although the sectors can be read again.
const BACK: &str = "sectors that the disk failed to read can be read again";

/// A pack that perhaps no manifest lists yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct NewPack {
    pub pack: PackRef,
    /// The start of the upload, or a time at which the pack was in use.
    pub begun: Duration,
    /// Number of the newest manifest then, as far as this writer knew.
    pub after: u64,
}

/// Packs that perhaps no manifest lists yet.
#[derive(Default)]
pub(in crate::store::volume) struct NewPacks {
    packs: Vec<NewPack>,
    /// The cut that the manifest commits without some sectors, although the sectors may become readable again.
    gives_up: Option<Arc<dyn CutSource>>,
}

impl NewPacks {
    /// `packs`, none of which counted as unused before `begun`, when manifest `after` was the newest.
    pub fn since(begun: Duration, after: u64, packs: impl IntoIterator<Item = PackRef>) -> Self {
        packs.into_iter().map(|pack| NewPack { pack, begun, after }).collect()
    }

    pub fn packs(&self) -> impl ExactSizeIterator<Item = &PackRef> {
        self.packs.iter().map(|new| &new.pack)
    }

    /// Whether garbage collection keeps all of the packs while `manifest` is the newest.
    pub fn are_kept_by(&self, manifest: &Manifest) -> bool {
        let kept = kept_by(manifest);
        self.packs().all(|pack| kept.contains(&pack.pack))
    }

    /// The same packs, for a manifest that gives up unreadable sectors of `cut`.
    pub fn giving_up(self, cut: Arc<dyn CutSource>) -> Self {
        Self { gives_up: Some(cut), ..self }
    }

    /// An error when sectors that the manifest gives up can be read again. Asked after the manifest was noted: if notes and cuts
    /// are on one disk that was away, a note that waited for the disk proves that the disk is back.
    pub(super) async fn look_again(&self) -> Result<(), VolumeError> {
        let Some(cut) = self.gives_up.clone() else { return Ok(()) };
        let back = || VolumeError::Cut(BoxError::from(BACK).into());
        let look = move || if cut.has_come_back() { Err(back()) } else { Ok(()) };
        blocking(look).await
    }

    /// An error when a pack is too old for the manifest after `base` to be the first that names the pack: by the clock, or because
    /// the release of the volume came into the store since. Packs that `base` keeps may have any age.
    pub(super) fn check_age(&self, base: &Manifest, now: Duration) -> Result<(), VolumeError> {
        let elapsed = |new: &NewPack| now.saturating_sub(new.begun);
        let is_too_old = |new: &NewPack| elapsed(new) > UPLOAD_TIME_MAX || is_passed(base, new.after);
        if !self.packs.iter().any(is_too_old) {
            return Ok(());
        }
        let kept = kept_by(base);
        let others = self.packs.iter().filter(|new| !kept.contains(&new.pack.pack) && is_too_old(new));
        match others.map(elapsed).max() {
            Some(elapsed) if elapsed > UPLOAD_TIME_MAX => Err(VolumeError::TooSlow { elapsed }),
            Some(_) => Err(VolumeError::ReleasedMeanwhile { volume: base.volume }),
            None => Ok(()),
        }
    }
}

/// Whether garbage collection waits no longer for the first manifest of a pack, because `base` says released: a host that releases a
/// volume has nothing left on the way. The release may have been on its way itself when the upload of the pack began, after
/// manifest `after`.
pub(in crate::store::volume) fn is_passed(base: &Manifest, after: u64) -> bool {
    base.is_released() && base.number > after
}

impl FromIterator<NewPack> for NewPacks {
    fn from_iter<T: IntoIterator<Item = NewPack>>(packs: T) -> Self {
        Self { packs: packs.into_iter().collect(), gives_up: None }
    }
}

impl VolumeWriter {
    pub(in crate::store::volume) fn pack_options(
        &self,
        level: u8,
        first_seq: Seq,
        last_seq: Seq,
    ) -> PackOptions {
        let pack = PackId::random(self.host.store.entropy());
        PackOptions { volume: self.id(), pack, level, first_seq, last_seq }
    }

    pub(in crate::store::volume) async fn create_pack(
        &self,
        pack: EncodedPack,
    ) -> Result<PackRef, VolumeError> {
        let host = &self.host;
        let created = pack.pack;
        match host.store.for_packs(self.id(), self.weight()).create_pack(&pack).await? {
            Created::Created => {}
            // The identity is random: another writer made the same random numbers, as a copy of this host could.
            Created::Existed => return Err(VolumeError::Contended { volume: self.id() }),
        }
        // Packs of level 0 are merged soon. Results of merges are read much later, and take no memory.
        if created.level == 0
            && let Some(index) = host.reader.recent.put(pack, || host.recent_bytes_max())
        {
            host.reader.metadata.put_index(&created, index);
        }
        Ok(created)
    }
}

/// Packs that garbage collection keeps while `manifest` is the newest.
fn kept_by(manifest: &Manifest) -> HashSet<PackId> {
    let listed = manifest.packs.iter().map(|pack| pack.pack);
    listed.chain(manifest.sections.uploaded.iter().copied()).collect()
}
