//! Fewer packs with the same content, step by step.
//!
//! Owns how a step becomes the next state of the volume. Does not own which packs a step merges (`choose`), how (`merge`), nor
//! when: `Volume::compact` is called as often as one likes. Invariant: what any sector reads as does not change; the packs of
//! a step are neighbours in age, and their successors take their place.

use super::choose::{Limits, choose, everything, is_hollow, oldest};
use super::host::next;
use super::merge::Merge;
use super::view::overlaps;
use super::{Compacted, Volume, VolumeError};
use crate::store::format::{Manifest, PackRef, PieceKind};
use crate::units::{SECTOR_BYTES, SectorRange};

/// How often a step is begun anew because the state before it turned out to be another one.
const TRIES_MAX: usize = 3;

/// How a try of a step ended.
enum Step {
    Done(Box<Compacted>),
    /// There is nothing to merge.
    NotDue,
    /// What the step worked on is no longer the state of the volume: a lost answer turned up, or a rollback.
    Overtaken,
}

impl Volume {
    /// Does one step of compaction, if one is due. Commits go on meanwhile. `None`: none is due.
    ///
    /// # Errors
    /// [`VolumeError::Contended`] when the state that a step worked on was the volume's no longer, each time.
    pub async fn compact(&self) -> Result<Option<Compacted>, VolumeError> {
        self.compact_within(&Limits::default()).await
    }

    pub(super) async fn compact_within(&self, limits: &Limits) -> Result<Option<Compacted>, VolumeError> {
        let mut discarded_bytes = self.0.compaction.lock().await;
        for _ in 0..TRIES_MAX {
            match self.try_step(limits, &mut discarded_bytes).await? {
                Step::Done(compacted) => return Ok(Some(*compacted)),
                Step::NotDue => return Ok(None),
                Step::Overtaken => {}
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    async fn try_step(&self, limits: &Limits, discarded_bytes: &mut u64) -> Result<Step, VolumeError> {
        self.refresh().await?;
        let manifest = self.manifest().await?;
        let hollow = is_hollow(&manifest.packs, *discarded_bytes, limits);
        let step = choose(&manifest.packs, limits).or_else(|| hollow.then(|| everything(&manifest.packs)));
        let Some(step) = step else { return Ok(Step::NotDue) };
        self.0.host.check_notes(self.id(), next(manifest.number)).await?;
        let mut merge = Merge::new(self.clone(), &manifest, &step, limits);
        merge.run().await?;
        let uploads = merge.uploads();
        let Merge { inputs, outputs, last, at, ended_early, zeroes, .. } = merge;
        // Their sectors before `at` are in the results, which come first.
        let rest: Vec<PackRef> = inputs
            .iter()
            .filter(|pack| ended_early && pack.highest_sector >= at)
            .map(|pack| PackRef { level: step.level - 1, ..*pack })
            .collect();
        let successors = [&outputs[..], &rest].concat();
        let before = step.inputs.start.checked_sub(1).and_then(|at| manifest.packs.get(at));
        let edit = |base: &Manifest| {
            // A volume that was released has nothing on its way from before: garbage collection relies on that.
            if base.is_released() && base.number != manifest.number {
                return None;
            }
            let from = base.packs.iter().position(|pack| inputs.first() == Some(pack))?;
            let until = from + inputs.len();
            let (newer, older) = (base.packs.get(..from)?, base.packs.get(until..)?);
            let same = base.packs.get(from..until)? == inputs
                && (step.begin == 0 || newer.last() == before)
                && (!last || older.is_empty());
            same.then(|| Manifest {
                generation: base.generation.saturating_add(1),
                packs: [newer, &successors, older].concat(),
                ..base.clone()
            })
        };
        let change = self.0.change.lock().await;
        let landed = self.land(&uploads, edit).await?;
        drop(change);
        let Some(landed) = landed else { return Ok(Step::Overtaken) };
        for pack in inputs.iter().filter(|pack| !successors.iter().any(|other| other.pack == pack.pack)) {
            self.0.host.metadata.forget_index(pack.pack);
            if let Some(recent) = &self.0.host.recent {
                recent.forget(pack.pack);
            }
        }
        let packs = &landed.manifest.packs;
        if step.inputs.end == manifest.packs.len() {
            *discarded_bytes = 0;
        } else if let Some(oldest) = oldest(packs, limits) {
            // The step is done, whatever becomes of this.
            *discarded_bytes += self.covered_bytes(oldest, &zeroes).await.unwrap_or(0);
        }
        let hollow = is_hollow(packs, *discarded_bytes, limits);
        let committed = self.committed(&landed, &uploads);
        Ok(Step::Done(Box::new(Compacted {
            resume: committed.resume,
            packs_before: inputs.len(),
            packs_after: successors.len(),
            pack_bytes: committed.pack_bytes,
            compaction_due: hollow || choose(packs, limits).is_some(),
            crowd: committed.crowd,
        })))
    }

    /// How much data of `oldest` lies below `zeroes`, which ascend, bytes.
    async fn covered_bytes(&self, oldest: &[PackRef], zeroes: &[SectorRange]) -> Result<u64, VolumeError> {
        let mut covered_bytes = 0;
        for pack in oldest {
            let first = zeroes.partition_point(|range| range.end() <= pack.lowest_sector);
            let above = zeroes[first..].iter().take_while(|range| overlaps(pack, **range));
            if above.clone().next().is_none() {
                continue;
            }
            let index = self.0.host.index(&self.0.host.store, pack).await?;
            for piece in above.flat_map(|range| index.lookup(*range)) {
                if let PieceKind::Data(_) = piece.kind {
                    covered_bytes += piece.range.count() * SECTOR_BYTES;
                }
            }
        }
        Ok(covered_bytes)
    }
}
