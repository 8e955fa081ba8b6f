//! Which packs are merged next.
//!
//! Owns the decision only: a function of the packs that a manifest lists. Does not own merging (`merge`), nor when a step begins
//! (`compact`). Invariant: at most one merge into a level is unfinished, and no other merge has packs of an unfinished merge.
//!
//! A **run** is long packs of one level whose sectors ascend, and a last pack of any length: a sector is in at most one pack of a
//! run. A manifest lists runs by age, newest first, on levels that grow with age. With [`LEVEL_RUNS_MAX`] runs on a level, the
//! level becomes one run on the next. When everything else is twice as long as the oldest run, or half of the data in the oldest
//! run was discarded, all runs are merged into one, which removes overwritten and discarded data.
//!
//! ```text
//! newest ── oldest       0 0 0 0 0 0 0 0 │ 1 1 │ 2        eight runs on level 0
//!                        1 1 1 │ 2                        ... are one on level 1
//! ```
//!
//! A step takes a bounded part of a merge. The results, up to some sector, stand in the list before their inputs. Packs with
//! later sectors stay listed, one level below the results: a level followed by a lower one is an **unfinished** merge. Lower
//! levels go first, so a long merge of old packs waits while new packs are merged:
//!
//! ```text
//!                        0 0 0 │ 2 2 (up to here) 1 1 1 1 1 1 1 1 │ 3     from level 1 to 2, unfinished
//! ```
//!
//! A pack that cannot be read is **left out**, and parts the list. Packs are never merged across it: its content may be newer than that
//! of the older packs, and older than that of the newer ones.

use std::ops::Range;

use crate::store::format::{ENTRIES_MAX, PACK_BYTES_TARGET, PACKS_MAX, PackRef};

/// Number of runs on a level at which the level is merged.
pub(in crate::store::volume) const LEVEL_RUNS_MAX: usize = 8;
/// Most runs of a level in one merge, which has one index of each run in memory.
const MERGED_RUNS_MAX: usize = 32;
/// Greatest length of everything but the oldest run, in lengths of the oldest run.
const YOUNG_RATIO_MAX: u64 = 2;
/// Below this length of everything but the oldest run, the ratio does not matter, bytes.
const YOUNG_BYTES_MIN: u64 = 16 << 20;
/// Cost after which a step ends, bytes of data.
const STEP_BYTES_MAX: u64 = 128 << 20;
/// Memory of the entries of indexes in a merge, bytes.
pub(in crate::store::volume) const WINDOWS_BYTES_MAX: usize = 64 << 20;
/// Columns of indexes after which a step ends: one whose windows do not hold all entries decodes the same indexes again and again, and
/// others wait for its memory.
const LOADED_BYTES_MAX: u64 = 1 << 30;
/// A pack of at least this length, bytes, stays as it is when no other pack of the merge counts for its sectors.
const MOVE_BYTES_MIN: u64 = PACK_BYTES_TARGET / 2;

/// A step to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::volume) struct PlannedStep {
    /// Positions of the packs to merge in the manifest.
    pub inputs: Range<usize>,
    pub level: u8,
    /// Earlier steps have merged the sectors before this one.
    pub begin: u64,
}

impl PlannedStep {
    /// The same step, where `from` other packs come first in the list.
    fn behind(self, from: usize) -> Self {
        let Range { start, end } = self.inputs;
        Self { inputs: start + from..end + from, ..self }
    }
}

/// Limits of merging, which tests make smaller.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::volume) struct MergeLimits {
    pub step_bytes_max: u64,
    pub young_bytes_min: u64,
    pub move_bytes_min: u64,
    /// Length of the packs made by a merge, bytes; `None`: decided by the size of the volume.
    pub pack_bytes: Option<u64>,
    pub windows_bytes_max: usize,
    pub loaded_bytes_max: u64,
}

impl MergeLimits {
    pub const USUAL: Self = Self {
        step_bytes_max: STEP_BYTES_MAX,
        young_bytes_min: YOUNG_BYTES_MIN,
        move_bytes_min: MOVE_BYTES_MIN,
        pack_bytes: None,
        windows_bytes_max: WINDOWS_BYTES_MAX,
        loaded_bytes_max: LOADED_BYTES_MAX,
    };
}

/// Neighbours in the list on one level.
#[derive(Debug)]
struct Level {
    level: u8,
    packs: Range<usize>,
    /// Position of the first pack of each run.
    runs: Vec<usize>,
}

/// Whether a step of compaction is due when no pack is left out.
pub(in crate::store::volume) fn is_due(packs: &[PackRef]) -> bool {
    plan_step(packs, &MergeLimits::USUAL, |_| false).is_some()
}

/// The next step, if one is due.
pub(in crate::store::volume) fn plan_step(
    packs: &[PackRef],
    limits: &MergeLimits,
    is_left_out: impl Fn(&PackRef) -> bool,
) -> Option<PlannedStep> {
    let mut behind = 0;
    let parts = packs.split(is_left_out).map(|part| {
        let from = behind;
        behind += part.len() + 1;
        (from, part)
    });
    let parts: Vec<_> = parts.collect();
    let steps = parts.iter().flat_map(|(from, part)| steps_of_levels(part, limits, *from));
    // Of two steps into one level, an unfinished merge goes on first.
    let lowest = steps.min_by_key(|step| (step.level, step.begin == 0));
    lowest.or_else(|| {
        let (from, part) = parts.iter().find(|(_, part)| is_young(part, limits))?;
        Some(everything(part).behind(*from))
    })
}

/// The steps due for the levels of `packs`, which stand behind `from` others in the list.
fn steps_of_levels(
    packs: &[PackRef],
    limits: &MergeLimits,
    from: usize,
) -> impl Iterator<Item = PlannedStep> {
    let levels = levels(packs, limits);
    (0..levels.len()).filter_map(move |at| {
        let newer = at.checked_sub(1).and_then(|newer| levels.get(newer));
        Some(step_of_level(packs, newer, &levels[at], levels.get(at + 1))?.behind(from))
    })
}

/// The step due for the runs of `here`, whose neighbours in the list are `newer` and `older`.
fn step_of_level(
    packs: &[PackRef],
    newer: Option<&Level>,
    here: &Level,
    older: Option<&Level>,
) -> Option<PlannedStep> {
    let Level { level, packs: at, runs } = here;
    if older.is_some_and(|older| older.level < *level) {
        let count = packs[at.end..].iter().take_while(|pack| pack.level < *level).count();
        let begin = packs[at.end - 1].highest_sector + 1;
        return Some(PlannedStep { inputs: at.end..at.end + count, level: *level, begin });
    }
    // Packs that an unfinished merge has not merged yet belong to that merge.
    let is_rest = newer.is_some_and(|newer| newer.level > *level);
    if is_rest || runs.len() < LEVEL_RUNS_MAX {
        return None;
    }
    let first = runs[runs.len().saturating_sub(MERGED_RUNS_MAX)];
    Some(PlannedStep { inputs: first..at.end, level: level.checked_add(1)?, begin: 0 })
}

/// The merge of all packs into one run.
pub(in crate::store::volume) fn everything(packs: &[PackRef]) -> PlannedStep {
    let level = packs.last().map_or(0, |pack| pack.level).max(1);
    PlannedStep { inputs: 0..packs.len(), level, begin: 0 }
}

/// Whether the packs beside the oldest run take too much space in the store, or too many places of a manifest.
fn is_young(packs: &[PackRef], limits: &MergeLimits) -> bool {
    let oldest = runs(packs, limits).last().unwrap_or(0..0);
    let (young, old) = packs.split_at(oldest.start);
    let (young_bytes, old_bytes) = (stored_bytes(young), stored_bytes(old));
    let long = young_bytes >= limits.young_bytes_min && young_bytes / YOUNG_RATIO_MAX >= old_bytes;
    long || (packs.len() > PACKS_MAX / 2 && young.len() > packs.len() / 4)
}

/// The oldest run, if the run is long enough to matter.
pub(in crate::store::volume) fn oldest<'a>(
    packs: &'a [PackRef],
    limits: &MergeLimits,
) -> Option<&'a [PackRef]> {
    let oldest = &packs[runs(packs, limits).last()?];
    (stored_bytes(oldest) >= limits.young_bytes_min).then_some(oldest)
}

/// Whether half of the data in the oldest run was discarded.
pub(in crate::store::volume) fn is_hollow(
    packs: &[PackRef],
    discarded_bytes: u64,
    limits: &MergeLimits,
) -> bool {
    discarded_bytes > 0
        && oldest(packs, limits).is_some_and(|oldest| {
            discarded_bytes >= oldest.iter().map(|pack| pack.data_bytes).sum::<u64>() / 2
        })
}

pub(in crate::store::volume) fn stored_bytes(packs: &[PackRef]) -> u64 {
    packs.iter().fold(0, |bytes, pack| bytes.saturating_add(pack.total_bytes))
}

/// The levels of `packs`, newest first.
fn levels(packs: &[PackRef], limits: &MergeLimits) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for run in runs(packs, limits) {
        let level = packs[run.start].level;
        match levels.last_mut() {
            Some(last) if last.level == level => {
                last.packs.end = run.end;
                last.runs.push(run.start);
            }
            _ => levels.push(Level { level, runs: vec![run.start], packs: run }),
        }
    }
    levels
}

/// The runs of `packs`, newest first, as positions.
fn runs<'a>(packs: &'a [PackRef], limits: &MergeLimits) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let long_bytes = limits.move_bytes_min.min(MOVE_BYTES_MIN);
    // A pack with this many entries was full, however short the pack is.
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
