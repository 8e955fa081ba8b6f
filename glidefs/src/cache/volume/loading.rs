//! The extents of a volume on their way into a checkpoint, and back into an empty volume, in parts made by several threads.
//!
//! Does not own which segments a checkpoint covers (`keeper/checkpoint`), or which a start may use (`recovery/checkpoint`). Invariants:
//! the extents of a slice are all content of a range of sectors at one moment, in whatever layers; a loaded extent is in the layer,
//! and counts as the references, that an insert of the extent would have led to, but for pieces of one write at the junction of two
//! parts, which stay two extents.

use super::Volume;
use crate::cache::log::format::{Kept, KeptExtent};
use crate::cache::log::table::{Refs, SegmentTable};
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::volume::index::IndexLoader;
use crate::cache::volume::layers::SeqMarks;
use crate::cache::volume::ranks::Ranks;
use crate::units::Seq;

/// Content of a volume for a checkpoint.
#[derive(Debug)]
pub(in crate::cache) struct Slice {
    /// By first sector. Extents of different layers may overlap.
    pub extents: Vec<KeptExtent>,
    /// The sector to go on from.
    pub next: Option<u64>,
    /// Last sequence number given out.
    pub last: Seq,
    /// Records of the volume may be lost.
    pub is_doubted: bool,
}

/// References to one segment gained while extents are loaded.
#[derive(Clone, Copy, Debug, Default)]
struct Gained {
    extents: i32,
    sectors: i64,
}

/// References to segments gained, by segment number: counted in the table when a volume is loaded, and not for each extent.
#[derive(Debug, Default)]
struct Counts {
    by_number: Vec<Gained>,
    numbers: Vec<u32>,
}

impl Counts {
    #[inline]
    fn count(&mut self, refs: Refs) {
        let at = refs.number as usize;
        if at >= self.by_number.len() {
            self.by_number.resize(at.saturating_add(1), Gained::default());
        }
        let Some(gained) = self.by_number.get_mut(at) else { return };
        if gained.extents == 0 {
            self.numbers.push(refs.number);
        }
        // A segment has fewer than 2^31 entries, of fewer than 2^32 sectors in all.
        gained.extents = gained.extents.saturating_add(refs.extents);
        gained.sectors = gained.sectors.saturating_add(refs.sectors);
    }

    /// Takes the references out, one segment at a time.
    fn take(&mut self, mut visit: impl FnMut(Refs)) {
        for number in self.numbers.drain(..) {
            let Some(gained) = self.by_number.get_mut(number as usize) else { continue };
            let Gained { extents, sectors } = std::mem::take(gained);
            visit(Refs { number, extents, sectors });
        }
    }
}

/// References to segments gained by the extents of any volumes.
#[derive(Debug, Default)]
pub(in crate::cache) struct GainedRefs {
    active: Counts,
    clean: Counts,
}

impl GainedRefs {
    /// Takes all references out of `other`.
    pub fn append(&mut self, other: &mut Self) {
        other.active.take(|refs| self.active.count(refs));
        other.clean.take(|refs| self.clean.count(refs));
    }

    /// Takes the references out, and counts each in `table`.
    fn count_in(&mut self, table: &SegmentTable) {
        self.active.take(|refs| table.count_refs(refs));
        self.clean.take(|refs| {
            table.count_refs(refs);
            table.count_clean(refs);
        });
    }
}

/// Extents of a checkpoint for an empty volume.
#[derive(Debug)]
pub(in crate::cache) struct Loading {
    active: IndexLoader,
    clean: IndexLoader,
    /// Extents which overlap others, of other layers.
    rest: Vec<Extent>,
    marks: SeqMarks,
    last: Seq,
    loaded: u64,
}

impl Loading {
    /// No extents yet for `volume`, which is empty.
    pub fn of(volume: &Volume) -> Self {
        let (active, clean) = Default::default();
        Self { active, clean, rest: Vec::new(), marks: volume.marks(), last: Seq(0), loaded: 0 }
    }

    /// Notes that sequence numbers up to `last` were given out.
    pub fn gave_out(&mut self, last: Seq) {
        self.last = self.last.max(last);
    }

    /// Adds `kept`, unless newer data of the same sectors may have left the log since. `refs` counts the references, some of these
    /// when the loading is closed.
    // Inlined: an extent that is handed on in memory, field by field, would be waited for at each step.
    #[inline]
    pub fn add(&mut self, kept: &KeptExtent, refs: &mut GainedRefs) {
        self.last = self.last.max(kept.seq);
        if kept.seq <= self.marks.evicted {
            return;
        }
        self.loaded += 1;
        let extent = extent_of(kept);
        let is_clean = extent.seq <= self.marks.stored;
        let (loader, refs) =
            if is_clean { (&mut self.clean, &mut refs.clean) } else { (&mut self.active, &mut refs.active) };
        if !loader.push(&extent, &mut |gained| refs.count(gained)) {
            self.rest.push(extent);
        }
    }

    /// Counts the references of all extents added.
    pub fn close(&mut self, refs: &mut GainedRefs) {
        self.active.close(&mut |gained| refs.active.count(gained));
        self.clean.close(&mut |gained| refs.clean.count(gained));
    }

    /// Adds the extents of `next`, which is closed, and whose references are in `refs`.
    pub fn append(&mut self, next: Self, refs: &mut GainedRefs) {
        let Self { active, clean, rest, marks: _, last, loaded } = next;
        self.gave_out(last);
        self.loaded = self.loaded.saturating_add(loaded);
        let refused = &mut self.rest;
        self.active.append(active, &mut |gained| refs.active.count(gained), |extent| refused.push(extent));
        self.clean.append(clean, &mut |gained| refs.clean.count(gained), |extent| refused.push(extent));
        self.rest.extend(rest);
    }
}

impl Volume {
    /// How far the volume is in the store, and what may not be read from the log.
    pub(in crate::cache) fn marks(&self) -> SeqMarks {
        let inner = self.lock();
        SeqMarks { stored: inner.layers.stored(), evicted: inner.evicted }
    }

    /// A slice of the volume from sector `from` on: the extents in segments which `is_covered` accepts, of
    /// about `limit` of all extents.
    pub(in crate::cache) fn slice(&self, from: u64, limit: usize, is_covered: impl Fn(u32) -> bool) -> Slice {
        let inner = self.lock();
        let (found, next) = inner.layers.extents_in(is_covered, from, limit);
        let is_doubted = inner.layers.is_doubted();
        let last = Seq(inner.last_seq);
        drop(inner);
        let mut extents: Vec<KeptExtent> = found.iter().filter_map(kept_of).collect();
        extents.sort_by_key(|extent| extent.range.start());
        Slice { extents, next, last, is_doubted }
    }

    /// Makes everything in `loading` the content of the volume, which is empty, and counts `refs` in `table`: the references of the
    /// extents, at least. Returns the number of extents.
    pub(in crate::cache) fn load(
        &self,
        table: &SegmentTable,
        ranks: &Ranks,
        loading: Loading,
        refs: &mut GainedRefs,
    ) -> u64 {
        let Loading { active, clean, rest, marks: _, last, loaded } = loading;
        let active = active.finish(&mut |gained| refs.active.count(gained));
        let clean = clean.finish(&mut |gained| refs.clean.count(gained));
        refs.count_in(table);
        let mut inner = self.lock();
        inner.layers.load(active, clean);
        inner.last_seq = inner.last_seq.max(last.0);
        for extent in rest {
            inner.layers.insert(table, Some(ranks), extent);
        }
        self.note_index(&inner);
        loaded
    }
}

fn kept_of(extent: &Extent) -> Option<KeptExtent> {
    let content = match extent.backing {
        Backing::Data { sector, .. } => Kept::Data(sector),
        Backing::Zero { .. } => Kept::Zero,
        Backing::Damaged { .. } => Kept::Damaged,
        // A segment with the entry of a doubt is not covered.
        Backing::Doubt { .. } => return None,
    };
    Some(KeptExtent { range: extent.range, seq: extent.seq, number: extent.backing.number(), content })
}

#[inline]
fn extent_of(kept: &KeptExtent) -> Extent {
    let number = kept.number;
    let backing = match kept.content {
        Kept::Data(sector) => Backing::Data { number, sector },
        Kept::Zero => Backing::Zero { number },
        Kept::Damaged => Backing::Damaged { number },
    };
    Extent { range: kept.range, seq: kept.seq, backing }
}
