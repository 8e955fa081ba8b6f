//! Packs that no manifest is known to keep: uploaded a moment ago, or of a snapshot to go back to.
//!
//! Owns how old such a pack may be, and the last look at sectors that the manifest gives up. Does not own creating the manifest
//! (`publish`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::store::format::{Manifest, PackRef};
use crate::store::ids::PackId;
use crate::store::volume::blocking::blocking;
use crate::store::volume::cut::CutSource;
use crate::store::volume::error::VolumeError;
use crate::store::volume::limits::UPLOAD_TIME_MAX;

/// The error of a commit that would give up sectors although the sectors can be read again.
const BACK: &str = "sectors that the disk failed to read can be read again";

/// Packs that perhaps no manifest lists yet. Each pack has a time: the start of its upload, or a time at which the pack was in
/// use.
#[derive(Default)]
pub(in crate::store::volume) struct NewPacks {
    packs: Vec<(PackRef, Duration)>,
    /// The cut that the manifest commits without some sectors, although the sectors may become readable again.
    gives_up: Option<Arc<dyn CutSource>>,
}

impl NewPacks {
    /// `packs`, none of which counted as unused before `begun`.
    pub fn since(begun: Duration, packs: impl IntoIterator<Item = PackRef>) -> Self {
        packs.into_iter().map(|pack| (pack, begun)).collect()
    }

    pub fn packs(&self) -> impl ExactSizeIterator<Item = &PackRef> {
        self.packs.iter().map(|(pack, _)| pack)
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
        let look = move || if cut.has_come_back() { Err(VolumeError::cut(BACK.into())) } else { Ok(()) };
        blocking(look).await
    }

    /// An error when a pack is too old for the manifest after `base` to be the first that names the pack. Packs that `base` keeps
    /// may have any age.
    pub(super) fn check_age(&self, base: &Manifest, now: Duration) -> Result<(), VolumeError> {
        let too_old = |begun: Duration| {
            let elapsed = now.saturating_sub(begun);
            (elapsed > UPLOAD_TIME_MAX).then_some(elapsed)
        };
        if self.packs.iter().all(|(_, begun)| too_old(*begun).is_none()) {
            return Ok(());
        }
        let kept = kept_by(base);
        let others = self.packs.iter().filter(|(pack, _)| !kept.contains(&pack.pack));
        match others.filter_map(|(_, begun)| too_old(*begun)).max() {
            Some(elapsed) => Err(VolumeError::TooSlow { elapsed }),
            None => Ok(()),
        }
    }
}

impl FromIterator<(PackRef, Duration)> for NewPacks {
    fn from_iter<T: IntoIterator<Item = (PackRef, Duration)>>(packs: T) -> Self {
        Self { packs: packs.into_iter().collect(), gives_up: None }
    }
}

/// Packs that garbage collection keeps while `manifest` is the newest.
fn kept_by(manifest: &Manifest) -> HashSet<PackId> {
    let listed = manifest.packs.iter().map(|pack| pack.pack);
    listed.chain(manifest.sections.uploaded.iter().copied()).collect()
}
