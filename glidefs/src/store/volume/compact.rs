//! Compaction: fewer packs with the same content, step by step.
//!
//! Owns how the result of a step becomes the next manifest. Does not own which packs a step merges (`plan`), how (`merge`), nor
//! when: [`VolumeWriter::compact`] may be called as often as one likes. Invariants: compaction changes no content; the packs of a step
//! are neighbours in age, and their successors take their place; behind the successors no level is lower than that of the step, except
//! in the rest of an unfinished merge: so a pack that was left out never looks like such a rest.

pub(super) mod merge;
pub(super) mod plan;

use std::collections::HashMap;
use std::time::Duration;

use self::merge::Merge;
use self::plan::{MergeLimits, PlannedStep, everything, is_hollow, oldest, plan_step};
use super::commit::Committed;
use super::error::VolumeError;
use super::types::next_number;
use super::types::overlaps;
use super::writer::VolumeWriter;
use super::writer::state::Compaction;
use crate::store::format::{Manifest, PackRef, PieceKind};
use crate::store::ids::PackId;
use crate::units::{SECTOR_BYTES, SectorRange};

/// Number of tries of a step, when the state that a step began with was replaced meanwhile.
const TRIES_MAX: usize = 3;
/// Time for which a pack that could not be read is left out.
const LEFT_OUT_TIME: Duration = Duration::from_hours(1);

/// How a try of a step ended.
enum StepOutcome {
    Done(Box<Committed>),
    NotDue,
    /// The newest manifest no longer fits the step: the answer to an earlier manifest was lost and that manifest turned up, or
    /// the volume was rolled back.
    Overtaken,
}

impl VolumeWriter {
    /// Does one step of compaction. Commits go on meanwhile. `None` when no step is due.
    ///
    /// # Errors
    /// [`VolumeError::Contended`] when the state that a step began with was replaced in every try. After an error about a pack that is
    /// missing or damaged, steps leave the pack out for an hour; [`VolumeError::PacksLeftOut`] when no step can do without such packs.
    pub async fn compact(&self) -> Result<Option<Committed>, VolumeError> {
        self.compact_within(&MergeLimits::USUAL).await
    }

    pub(super) async fn compact_within(
        &self,
        limits: &MergeLimits,
    ) -> Result<Option<Committed>, VolumeError> {
        let mut compaction = self.shared.compaction.lock().await;
        for _ in 0..TRIES_MAX {
            match self.try_step(limits, &mut compaction).await? {
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
        compaction: &mut Compaction,
    ) -> Result<StepOutcome, VolumeError> {
        self.refresh().await?;
        let manifest = self.manifest().await?;
        let Compaction { discarded_bytes, left_out } = compaction;
        let now = self.now();
        left_out.retain(|left_out, since| {
            now.saturating_sub(*since) < LEFT_OUT_TIME
                && manifest.packs.iter().any(|pack| pack.pack == *left_out)
        });
        let Some(step) = next_step(&manifest.packs, limits, *discarded_bytes, left_out) else {
            let none = HashMap::new();
            let waits = next_step(&manifest.packs, limits, *discarded_bytes, &none).is_some();
            let error = VolumeError::PacksLeftOut { volume: self.id(), packs: left_out.len() };
            return if waits { Err(error) } else { Ok(StepOutcome::NotDue) };
        };
        self.host.check_notes(self.id(), next_number(manifest.number)).await?;
        let mut merge = Merge::new(self.clone(), &manifest, &step, limits);
        merge.run().await?;
        let uploads = merge.uploads();
        let Merge { inputs, outputs, last, at, ended_early, zeroes, unread, .. } = merge;
        if let Some((pack, error)) = unread {
            left_out.insert(pack, now);
            // A merge of all older packs drops zeroes, so its results are wrong while one of these packs stays.
            if last || outputs.is_empty() {
                return Err(error);
            }
        }
        // Sectors before `at` are in the results, which come first in the list.
        let rest: Vec<PackRef> = inputs
            .iter()
            .filter(|pack| ended_early && pack.highest_sector >= at)
            .map(|pack| PackRef { level: step.level - 1, ..*pack })
            .collect();
        let successors = [&outputs[..], &rest].concat();
        let before = step.inputs.start.checked_sub(1).and_then(|at| manifest.packs.get(at));
        let edit = |base: &Manifest| {
            // A released volume has nothing left on the way to the store: garbage collection relies on that.
            if base.is_released() && base.number != manifest.number {
                return None;
            }
            let from = base.packs.iter().position(|pack| inputs.first() == Some(pack))?;
            let until = from + inputs.len();
            let (newer, older) = (base.packs.get(..from)?, base.packs.get(until..)?);
            let same = base.packs.get(from..until)? == inputs
                && (step.begin == 0 || newer.last() == before)
                && (!last || older.is_empty());
            let raised = |pack: &PackRef| PackRef { level: pack.level.max(step.level), ..*pack };
            same.then(|| Manifest {
                generation: base.generation.saturating_add(1),
                packs: newer.iter().chain(&successors).copied().chain(older.iter().map(raised)).collect(),
                ..base.clone()
            })
        };
        let change = self.shared.change.lock().await;
        let published = self.publish(&uploads, edit).await?;
        drop(change);
        let Some(published) = published else { return Ok(StepOutcome::Overtaken) };
        for pack in inputs.iter().filter(|pack| !successors.iter().any(|other| other.pack == pack.pack)) {
            self.host.reader.metadata.forget_index(pack);
            self.host.reader.recent.forget(pack.pack);
        }
        let packs = &published.manifest.packs;
        if step.inputs.end == manifest.packs.len() {
            *discarded_bytes = 0;
        } else if let Some(oldest) = oldest(packs, limits) {
            // The step is done even if this count fails.
            *discarded_bytes += self.covered_bytes(oldest, &zeroes).await.unwrap_or(0);
        }
        // A step that waits for packs which are left out is due, and says so.
        let compaction_due = next_step(packs, limits, *discarded_bytes, &HashMap::new()).is_some();
        let committed = Committed { compaction_due, ..self.committed(&published) };
        Ok(StepOutcome::Done(Box::new(committed)))
    }

    /// Bytes of data in `oldest` that `zeroes` covers. `zeroes` ascends.
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

/// The next step, if one is due. No step merges packs of both sides of a pack that is left out.
fn next_step(
    packs: &[PackRef],
    limits: &MergeLimits,
    discarded_bytes: u64,
    left_out: &HashMap<PackId, Duration>,
) -> Option<PlannedStep> {
    let step = plan_step(packs, limits, |pack| left_out.contains_key(&pack.pack));
    let hollow = || left_out.is_empty() && is_hollow(packs, discarded_bytes, limits);
    step.or_else(|| hollow().then(|| everything(packs)))
}
