//! The segments that a checkpoint lists and the log lacks, and the content of these segments.
//!
//! Owns the vocabulary only. Does not own which segments are lost (`missing`).

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::log::format::KeptExtent;
use crate::cache::volume::Volume;
use crate::units::{ExportId, Seq};

/// Most extents not in the store of missing segments that a start keeps in memory. In tests two segments have fewer, and three more.
const EXTENTS_MAX: usize = if cfg!(test) { 70 } else { 1 << 20 };
/// Most samples of a segment.
const SAMPLES_MAX: usize = 256;

/// How the checkpoint lists a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// With the extents that were the newest content.
    Covered,
    /// With records, which were stable when the checkpoint was complete.
    Filled,
    /// Without a stable record. Records may have come since.
    Prepared,
}

/// A segment that the checkpoint lists and the log lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingSegment {
    /// The file, as a segment number.
    pub number: u32,
    pub segment_id: u64,
    pub listed: Listed,
}

/// The segments that the checkpoint lists and the log lacks.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub segments: Vec<MissingSegment>,
    pub content: LostContent,
    /// The highest id of a segment listed.
    pub last_listed: u64,
    /// The files held the segments listed, and no later ones, when they were lost: the checkpoint tells all that is lost.
    pub is_known: bool,
    /// Entries about these segments have to be stable before the checkpoint is removed.
    pub needs_note: bool,
    /// What the catalog has to bar before the checkpoint is removed.
    pub marks: Vec<(ExportId, Seq)>,
}

impl Missing {
    /// Whether no segment is missing.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether the segment of file `number` is missing.
    pub fn has(&self, number: u32) -> bool {
        self.segments.iter().any(|missing| missing.number == number)
    }
}

/// The extents in missing segments, by segment number, of known exports, and not older than what the catalog bars.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LostContent {
    /// Extents not in the store, in the order of the checkpoint: [`EXTENTS_MAX`] at most.
    pub extents: Vec<(ExportId, KeptExtent)>,
    /// Some extents were left out.
    pub is_cut_short: bool,
    /// The last sequence number given out of each export with an extent not in the store.
    pub exports: BTreeMap<ExportId, Seq>,
    /// The exports with extents in the store.
    pub stored: BTreeSet<(u32, ExportId)>,
    /// Some extents of each segment, in the store or not: [`SAMPLES_MAX`] at most.
    pub samples: BTreeMap<u32, Vec<(ExportId, KeptExtent)>>,
}

impl LostContent {
    /// Adds `extents` of `volume`, whose last sequence number given out was `last`.
    pub fn add(&mut self, volume: &Volume, last: Seq, extents: Vec<KeptExtent>) {
        let (export, marks) = (volume.id(), volume.marks());
        for extent in extents.into_iter().filter(|extent| extent.seq > marks.evicted) {
            let samples = self.samples.entry(extent.number).or_default();
            if samples.len() < SAMPLES_MAX {
                samples.push((export, extent));
            }
            if extent.seq <= marks.stored {
                self.stored.insert((extent.number, export));
                continue;
            }
            let known = self.exports.entry(export).or_default();
            *known = last.max(*known);
            if self.extents.len() < EXTENTS_MAX {
                self.extents.push((export, extent));
            } else {
                self.is_cut_short = true;
            }
        }
    }
}

/// The id of the segment in each file, by segment number, as the file itself says.
pub(super) struct Ids(pub Vec<u64>);

impl Ids {
    /// Whether file `number` has segment `segment_id`, or a later one.
    pub fn has(&self, number: u32, segment_id: u64) -> bool {
        self.0.get(number as usize).is_some_and(|id| *id >= segment_id)
    }
}
