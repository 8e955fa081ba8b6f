//! The segments that a checkpoint lists and the log lacks, and the content of these segments.
//!
//! Owns the vocabulary only. Does not own which segments are lost (`missing`).

use std::collections::BTreeMap;

use crate::cache::log::format::KeptExtent;
use crate::units::{ExportId, Seq};

/// Most extents in missing segments that a start keeps in memory. In tests two segments have fewer, and three more.
const EXTENTS_MAX: usize = if cfg!(test) { 70 } else { 1 << 20 };

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

/// The extents in missing segments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LostContent {
    /// In the order of the checkpoint: [`EXTENTS_MAX`] at most.
    pub extents: Vec<(ExportId, KeptExtent)>,
    /// Some extents were left out.
    pub is_cut_short: bool,
    /// The last sequence number given out of each export with such an extent.
    pub exports: BTreeMap<ExportId, Seq>,
}

impl LostContent {
    /// Adds `extents` of `export`, whose last sequence number given out was `last`.
    pub fn add(&mut self, export: ExportId, last: Seq, extents: Vec<KeptExtent>) {
        if extents.is_empty() {
            return;
        }
        let known = self.exports.entry(export).or_default();
        *known = last.max(*known);
        let room = EXTENTS_MAX.saturating_sub(self.extents.len());
        self.is_cut_short |= extents.len() > room;
        self.extents.extend(extents.into_iter().take(room).map(|extent| (export, extent)));
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
