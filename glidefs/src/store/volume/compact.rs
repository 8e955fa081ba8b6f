//! Fewer packs with the same content, step by step.
//!
//! Owns which packs are merged, and how. Does not own when: `Volume::compact` is called as often as one likes. Invariant: what
//! any sector reads as does not change; the packs of a step are neighbours in age, and their successors take their place.
//!
//! Long packs of one level whose sectors ascend, and a last one of any length, are a **run**: a sector is in one of them at
//! most. A manifest lists runs by age, newest first, with levels that grow. With [`LEVEL_RUNS_MAX`] runs on a level, they
//! become one run on the next. When everything else has become twice as long as the oldest run, or half of the data in that
//! was discarded, all of it is merged, so that what was overwritten and discarded goes.
//!
//! ```text
//! newest ── oldest       0 0 0 0 0 0 0 0 │ 1 1 │ 2        eight runs on level 0
//!                        1 1 1 │ 2                        ... are one on level 1
//! ```
//!
//! A step that would take long ends early: its results, up to some sector, come before the packs they were made of. Those
//! that have something behind that sector stay listed, one level below the results, and the next step goes on there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::commit::{bad, blocking};
use super::land::Uploads;
use super::view::{Content, Keeping, Opened, Part, between, overlaps, reach, resolve};
use super::{Compacted, ReadExtent, Volume, VolumeError};
use crate::store::format::{
    ENTRIES_MAX, EncodedPack, Manifest, PACK_BYTES_TARGET, PackBuilder, PackIndex, PackOptions, PackRef,
    PieceKind,
};
use crate::store::ids::PackId;
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// So many runs on a level are merged.
pub(super) const LEVEL_RUNS_MAX: usize = 8;
/// How long everything but the oldest run may be, in lengths of that.
const YOUNG_RATIO_MAX: u64 = 2;
/// Below this, that does not matter.
const YOUNG_BYTES_MIN: u64 = 16 << 20;
/// A step of which the packs are longer ends early, after as many bytes.
const STEP_BYTES_MAX: u64 = 1 << 30;
/// A pack that is at least so long, and alone with its sectors, is taken over as it is.
const MOVE_BYTES_MIN: u64 = PACK_BYTES_TARGET / 2;
/// How much data is read at once.
const BATCH_BYTES: u64 = 8 << 20;
/// Entries of an index that are looked at together.
const WINDOW_ENTRIES: usize = 64;

/// What a step merges.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// Which packs of the manifest.
    inputs: Range<usize>,
    /// The level of the results.
    level: u8,
    /// Sectors before were merged by the steps before.
    begin: u64,
}

/// Limits, which tests make smaller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub step_bytes_max: u64,
    pub young_bytes_min: u64,
    pub move_bytes_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            step_bytes_max: STEP_BYTES_MAX,
            young_bytes_min: YOUNG_BYTES_MIN,
            move_bytes_min: MOVE_BYTES_MIN,
        }
    }
}

/// Whether a step of compaction is due.
pub(super) fn is_due(packs: &[PackRef]) -> bool {
    choose(packs, &Limits::default()).is_some()
}

/// The runs of `packs`.
fn runs<'a>(packs: &'a [PackRef], limits: &Limits) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let long_bytes = limits.move_bytes_min.min(MOVE_BYTES_MIN);
    // One with that many entries was full, however short it is.
    let is_long =
        move |pack: &PackRef| pack.total_bytes >= long_bytes || pack.entries as usize >= ENTRIES_MAX / 2;
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = from;
        let mut previous = packs.get(first)?;
        from += 1;
        while let Some(pack) = packs.get(from)
            && is_long(previous)
            && pack.level == previous.level
            && pack.lowest_sector > previous.highest_sector
        {
            previous = pack;
            from += 1;
        }
        Some(first..from)
    })
}

fn stored_bytes(packs: &[PackRef]) -> u64 {
    packs.iter().fold(0, |bytes, pack| bytes.saturating_add(pack.total_bytes))
}

/// The step that is due, if one is.
fn choose(packs: &[PackRef], limits: &Limits) -> Option<Step> {
    // Where a level is followed by a lower one, a step has ended early.
    if let Some(at) = (1..packs.len()).rev().find(|at| packs[at - 1].level > packs[*at].level) {
        let level = packs[at - 1].level;
        let count = packs[at..].iter().take_while(|pack| pack.level < level).count();
        return Some(Step { inputs: at..at + count, level, begin: packs[at - 1].highest_sector + 1 });
    }
    let mut on_level: Option<(u8, Range<usize>, usize)> = None;
    let mut oldest = 0..0;
    for run in runs(packs, limits) {
        let level = packs[run.start].level;
        on_level = match on_level {
            Some((same, packs, count)) if same == level => Some((level, packs.start..run.end, count + 1)),
            Some(complete) if complete.2 >= LEVEL_RUNS_MAX => return up(&complete),
            _ => Some((level, run.clone(), 1)),
        };
        oldest = run;
    }
    let complete = on_level.filter(|(_, _, count)| *count >= LEVEL_RUNS_MAX);
    if let Some(complete) = complete {
        return up(&complete);
    }
    let (young, old) = (stored_bytes(&packs[..oldest.start]), stored_bytes(&packs[oldest]));
    let due = young >= limits.young_bytes_min && young / YOUNG_RATIO_MAX >= old;
    due.then(|| everything(packs))
}

/// All runs to one.
fn everything(packs: &[PackRef]) -> Step {
    let level = packs.last().map_or(0, |pack| pack.level).max(1);
    Step { inputs: 0..packs.len(), level, begin: 0 }
}

/// The oldest run, if it is long enough to matter.
fn oldest<'a>(packs: &'a [PackRef], limits: &Limits) -> Option<&'a [PackRef]> {
    let oldest = &packs[runs(packs, limits).last()?];
    (stored_bytes(oldest) >= limits.young_bytes_min).then_some(oldest)
}

/// All runs of a level to the next one.
fn up((level, packs, _): &(u8, Range<usize>, usize)) -> Option<Step> {
    Some(Step { inputs: packs.clone(), level: level.checked_add(1)?, begin: 0 })
}

impl Volume {
    /// Does one step of compaction, if one is due. Commits go on meanwhile. `None`: none is due, or what it worked on is no
    /// longer the state of the volume.
    pub async fn compact(&self) -> Result<Option<Compacted>, VolumeError> {
        self.compact_within(&Limits::default()).await
    }

    pub(super) async fn compact_within(&self, limits: &Limits) -> Result<Option<Compacted>, VolumeError> {
        let mut discarded_bytes = self.0.compaction.lock().await;
        self.refresh().await?;
        let manifest = self.manifest().await?;
        let hollow = is_hollow(&manifest.packs, *discarded_bytes, limits);
        let step = choose(&manifest.packs, limits).or_else(|| hollow.then(|| everything(&manifest.packs)));
        let Some(step) = step else { return Ok(None) };
        let mut merge = Merge::new(self.clone(), &manifest, &step, limits);
        merge.run().await?;
        let Merge { inputs, outputs, uploads, last, at, ended_early, zeroes, .. } = merge;
        // Their sectors before `at` are in the results, which come first.
        let rest: Vec<PackRef> = inputs
            .iter()
            .filter(|pack| ended_early && pack.highest_sector >= at)
            .map(|pack| PackRef { level: step.level - 1, ..*pack })
            .collect();
        let successors = [&outputs[..], &rest].concat();
        let before = step.inputs.start.checked_sub(1).and_then(|at| manifest.packs.get(at));
        let edit = |base: &Manifest| {
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
        let Some(landed) = landed else { return Ok(None) };
        for pack in inputs.iter().filter(|pack| !successors.iter().any(|other| other.pack == pack.pack)) {
            self.0.host.metadata.forget_index(pack.pack);
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
        Ok(Some(Compacted {
            resume: committed.resume,
            packs_before: inputs.len(),
            packs_after: successors.len(),
            pack_bytes: committed.pack_bytes,
            compaction_due: hollow || choose(packs, limits).is_some(),
        }))
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
            let index = self.0.host.index(pack).await?;
            for piece in above.flat_map(|range| index.lookup(*range)) {
                if let PieceKind::Data(_) = piece.kind {
                    covered_bytes += piece.range.count() * SECTOR_BYTES;
                }
            }
        }
        Ok(covered_bytes)
    }
}

/// Whether half of the data in the oldest run was discarded.
fn is_hollow(packs: &[PackRef], discarded_bytes: u64, limits: &Limits) -> bool {
    discarded_bytes > 0
        && oldest(packs, limits).is_some_and(|oldest| {
            discarded_bytes >= oldest.iter().map(|pack| pack.data_bytes).sum::<u64>() / 2
        })
}

/// A step at work.
struct Merge {
    volume: Volume,
    /// What is merged, newest first.
    inputs: Vec<PackRef>,
    /// There is nothing older, and all of it is merged in this step: zeroes need not be kept.
    last: bool,
    level: u8,
    last_seq: Seq,
    step_bytes_max: u64,
    move_bytes_min: u64,
    /// Sectors before are merged.
    at: u64,
    ended_early: bool,
    /// Results, ascending.
    outputs: Vec<PackRef>,
    uploads: Uploads,
    builder: Option<PackBuilder>,
    /// Indexes of the inputs that `at` is in.
    indexes: HashMap<PackId, Arc<PackIndex>>,
    /// What the results say is zero, ascending.
    zeroes: Vec<SectorRange>,
    /// What was looked up and is to be written, ascending.
    batch: Vec<Part>,
    /// Which packs it is in.
    batch_packs: Vec<Opened>,
    batch_bytes: u64,
}

impl Merge {
    fn new(volume: Volume, manifest: &Manifest, step: &Step, limits: &Limits) -> Self {
        let inputs = manifest.packs[step.inputs.clone()].to_vec();
        let whole = stored_bytes(&inputs) <= limits.step_bytes_max;
        let begun = volume.0.host.options.clock.since_boot();
        Self {
            inputs,
            last: whole && step.inputs.end == manifest.packs.len(),
            level: step.level,
            last_seq: manifest.cut,
            step_bytes_max: if whole { u64::MAX } else { limits.step_bytes_max },
            move_bytes_min: limits.move_bytes_min,
            at: step.begin,
            ended_early: false,
            outputs: Vec::new(),
            uploads: Uploads { begun, packs: Vec::new() },
            builder: None,
            indexes: HashMap::new(),
            zeroes: Vec::new(),
            batch: Vec::new(),
            batch_packs: Vec::new(),
            batch_bytes: 0,
            volume,
        }
    }

    /// Merges all that is left, or as much as a step may.
    async fn run(&mut self) -> Result<(), VolumeError> {
        // One pack is in memory at a time.
        let _permit = self.volume.0.host.merge_memory().await?;
        while self.look_up().await? {
            if self.batch_bytes >= BATCH_BYTES {
                self.write_batch().await?;
            }
            if stored_bytes(&self.uploads.packs) >= self.step_bytes_max {
                self.ended_early = true;
                break;
            }
        }
        self.finish_pack().await
    }

    /// Looks some more sectors up. `false`: there are none.
    async fn look_up(&mut self) -> Result<bool, VolumeError> {
        let at = self.at;
        let opened = self.open(between(at, at.saturating_add(1))).await?;
        let later = self.inputs.iter().map(|pack| pack.lowest_sector).filter(|lowest| *lowest > at).min();
        let next = opened.iter().filter_map(|(_, index)| next_sector(index, at)).chain(later).min();
        let Some(next) = next else { return Ok(false) };
        if next > at {
            self.at = next;
            return Ok(true);
        }
        if let [(pack, _)] = opened[..]
            && self.moves(&pack)
        {
            self.finish_pack().await?;
            self.outputs.push(PackRef { level: self.level, ..pack });
            self.at = pack.highest_sector + 1;
            return Ok(true);
        }
        let window_end = |(pack, index): &Opened| {
            let entries = index.entries();
            let first = entries.partition_point(|entry| entry.range.end() <= at);
            let end = entries.get(first.saturating_add(WINDOW_ENTRIES)).map(|entry| entry.range.start());
            end.unwrap_or(pack.highest_sector + 1)
        };
        let end = opened.iter().map(window_end).chain(later).min().unwrap_or(at + 1);
        for part in resolve(&opened, between(at, end)) {
            let content = match part.content {
                Content::Block(number, entry) => {
                    self.batch_bytes += part.range.count() * SECTOR_BYTES;
                    Content::Block(self.place_in_batch(&opened[number]), entry)
                }
                Content::Zero if !self.last => {
                    self.zeroes.push(part.range);
                    Content::Zero
                }
                Content::Zero | Content::Absent => continue,
            };
            self.batch.push(Part { content, ..part });
        }
        self.at = end;
        Ok(true)
    }

    /// The inputs that may have something of `range`, which does not go back, with their indexes.
    async fn open(&mut self, range: SectorRange) -> Result<Vec<Opened>, VolumeError> {
        let packs = self.inputs.iter().filter(|pack| overlaps(pack, range));
        let host = &self.volume.0.host;
        let opened = packs.map(|pack| async {
            let index = match self.indexes.get(&pack.pack) {
                Some(index) => index.clone(),
                None => host.index(pack).await?,
            };
            Ok::<_, VolumeError>((*pack, index))
        });
        let opened = try_join_all(opened).await?;
        self.indexes = opened.iter().map(|(pack, index)| (pack.pack, index.clone())).collect();
        Ok(opened)
    }

    fn place_in_batch(&mut self, opened: &Opened) -> usize {
        let place = self.batch_packs.iter().position(|(pack, _)| pack.pack == opened.0.pack);
        place.unwrap_or_else(|| {
            self.batch_packs.push(opened.clone());
            self.batch_packs.len() - 1
        })
    }

    /// Whether `pack`, which nothing else of `self.at` is in, can stay as it is.
    fn moves(&self, pack: &PackRef) -> bool {
        // A short pack before it would stay short.
        let open_bytes = self.builder.as_ref().map_or(0, PackBuilder::bytes) + self.batch_bytes;
        let others = self.inputs.iter().filter(|other| overlaps(other, reach(pack))).count();
        pack.lowest_sector == self.at
            && pack.total_bytes >= self.move_bytes_min
            && others == 1
            && (open_bytes == 0 || open_bytes >= self.move_bytes_min)
    }

    /// Reads what was looked up, and packs it.
    async fn write_batch(&mut self) -> Result<(), VolumeError> {
        self.batch_bytes = 0;
        let (parts, packs) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.batch_packs));
        let extents = self.volume.0.host.fetch(&packs, &parts, Keeping::Nothing).await?;
        let (builder, volume, level, last_seq) =
            (self.builder.take(), self.volume.clone(), self.level, self.last_seq);
        let options = move || volume.pack_options(level, Seq(0), last_seq);
        let (full, builder) = blocking(move || pack(builder, extents, options)).await?;
        self.builder = builder;
        self.upload(full).await
    }

    /// Ends the pack that is being made.
    async fn finish_pack(&mut self) -> Result<(), VolumeError> {
        self.write_batch().await?;
        let Some(builder) = self.builder.take() else { return Ok(()) };
        let pack = blocking(move || Ok(builder.finish())).await?;
        self.upload(pack.into_iter().collect()).await
    }

    async fn upload(&mut self, packs: Vec<EncodedPack>) -> Result<(), VolumeError> {
        for pack in &packs {
            let pack = self.volume.create_pack(pack).await?;
            self.outputs.push(pack);
            self.uploads.packs.push(pack);
        }
        Ok(())
    }
}

/// The first sector from `at` on that `index` has.
fn next_sector(index: &Arc<PackIndex>, at: u64) -> Option<u64> {
    let entries = index.entries();
    let entry = entries.get(entries.partition_point(|entry| entry.range.end() <= at))?;
    Some(entry.range.start().max(at))
}

/// Adds `extents` to `builder`, or to new ones that `options` are for. The packs that became full, and the last builder.
fn pack(
    mut builder: Option<PackBuilder>,
    extents: Vec<ReadExtent>,
    options: impl Fn() -> PackOptions,
) -> Result<(Vec<EncodedPack>, Option<PackBuilder>), VolumeError> {
    let mut full = Vec::new();
    for extent in extents {
        let mut open = match builder.take() {
            Some(open) => open,
            None => PackBuilder::new(options()).map_err(|error| VolumeError::Compressor(Arc::new(error)))?,
        };
        match extent.data {
            Some(data) => open.push_data(extent.range.start(), data).map_err(bad)?,
            None => open.push_zero(extent.range).map_err(bad)?,
        }
        if open.is_full() {
            full.extend(open.finish());
        } else {
            builder = Some(open);
        }
    }
    Ok((full, builder))
}
