//! Fewer packs with the same content, step by step.
//!
//! Owns how a step becomes the next state of the volume. Does not own which packs a step merges (`choose`), how (`merge`), nor
//! when: `VolumeWriter::compact` is called as often as one likes. Invariant: what any sector reads as does not change; the packs of
//! a step are neighbours in age, and their successors take their place.

pub(super) mod merge;
pub(super) mod plan;

use self::merge::Merge;
use self::plan::{MergeLimits, everything, is_hollow, oldest, plan_step};
use super::crowd::Crowd;
use super::error::VolumeError;
use super::ranges::overlaps;
use super::types::{Resume, next_number};
use super::writer::VolumeWriter;
use crate::store::format::{Manifest, PackRef, PieceKind};
use crate::units::{SECTOR_BYTES, SectorRange};

/// How often a step is begun anew because the state before it turned out to be another one.
const TRIES_MAX: usize = 3;

/// One step of a compaction that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// What to remember.
    pub resume: Resume,
    /// Packs that the manifest lists no more.
    pub packs_before: usize,
    /// Packs that it lists in their place.
    pub packs_after: usize,
    /// Length of those that were made for it, bytes.
    pub pack_bytes: u64,
    /// Whether another step is due.
    pub compaction_due: bool,
    /// How crowded the volume is.
    pub crowd: Crowd,
}

/// How a try of a step ended.
enum StepOutcome {
    Done(Box<Compacted>),
    /// There is nothing to merge.
    NotDue,
    /// What the step worked on is no longer the state of the volume: a lost answer turned up, or a rollback.
    Overtaken,
}

impl VolumeWriter {
    /// Does one step of compaction, if one is due. Commits go on meanwhile. `None`: none is due.
    ///
    /// # Errors
    /// [`VolumeError::Contended`] when the state that a step worked on was the volume's no longer, each time.
    pub async fn compact(&self) -> Result<Option<Compacted>, VolumeError> {
        self.compact_within(&MergeLimits::default()).await
    }

    pub(super) async fn compact_within(
        &self,
        limits: &MergeLimits,
    ) -> Result<Option<Compacted>, VolumeError> {
        let mut discarded_bytes = self.shared.compaction.lock().await;
        for _ in 0..TRIES_MAX {
            match self.try_step(limits, &mut discarded_bytes).await? {
                StepOutcome::Done(compacted) => return Ok(Some(*compacted)),
                StepOutcome::NotDue => return Ok(None),
                StepOutcome::Overtaken => {}
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    async fn try_step(
        &self,
        limits: &MergeLimits,
        discarded_bytes: &mut u64,
    ) -> Result<StepOutcome, VolumeError> {
        self.refresh().await?;
        let manifest = self.manifest().await?;
        let hollow = is_hollow(&manifest.packs, *discarded_bytes, limits);
        let step = plan_step(&manifest.packs, limits).or_else(|| hollow.then(|| everything(&manifest.packs)));
        let Some(step) = step else { return Ok(StepOutcome::NotDue) };
        self.host.check_notes(self.id(), next_number(manifest.number)).await?;
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
        let change = self.shared.change.lock().await;
        let published = self.publish(&uploads, edit).await?;
        drop(change);
        let Some(published) = published else { return Ok(StepOutcome::Overtaken) };
        for pack in inputs.iter().filter(|pack| !successors.iter().any(|other| other.pack == pack.pack)) {
            self.host.reader.metadata.forget_index(pack.pack);
            if let Some(recent) = &self.host.reader.recent {
                recent.forget(pack.pack);
            }
        }
        let packs = &published.manifest.packs;
        if step.inputs.end == manifest.packs.len() {
            *discarded_bytes = 0;
        } else if let Some(oldest) = oldest(packs, limits) {
            // The step is done, whatever becomes of this.
            *discarded_bytes += self.covered_bytes(oldest, &zeroes).await.unwrap_or(0);
        }
        let hollow = is_hollow(packs, *discarded_bytes, limits);
        let committed = self.committed(&published, &uploads);
        Ok(StepOutcome::Done(Box::new(Compacted {
            resume: committed.resume,
            packs_before: inputs.len(),
            packs_after: successors.len(),
            pack_bytes: committed.pack_bytes,
            compaction_due: hollow || plan_step(packs, limits).is_some(),
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
            let index = self.host.reader.index(&self.host.store, pack).await?;
            for piece in above.flat_map(|range| index.lookup(*range)) {
                if let PieceKind::Data(_) = piece.kind {
                    covered_bytes += piece.range.count() * SECTOR_BYTES;
                }
            }
        }
        Ok(covered_bytes)
    }
}
